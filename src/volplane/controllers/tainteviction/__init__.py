"""Taint eviction: pods leave a node whose NoExecute taints they do not tolerate, or no longer."""
