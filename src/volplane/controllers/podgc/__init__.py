"""Pod garbage collector: delete pods that no kubelet will finish."""
