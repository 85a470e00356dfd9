"""Pod garbage: pods that no kubelet will ever finish."""
