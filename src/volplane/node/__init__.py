"""The kubelet role: pods, their volumes and their containers on one node."""
