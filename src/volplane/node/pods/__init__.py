"""Pods on this node, from their first sight to the last of their directories."""
