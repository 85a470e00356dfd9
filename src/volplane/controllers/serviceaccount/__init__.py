"""Every namespace has a ServiceAccount `default` and the cluster's CA in the ConfigMap `kube-root-ca.crt`."""
