"""Pods on this node, from their start to the removal of their directories."""
