"""Pods leave a node whose disk is about to be full: thresholds, the order of pods, and who evicts them."""
