"""Volplane: the Kubernetes volume control plane without the cluster."""
