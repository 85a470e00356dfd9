"""Eviction of pods from a node whose disk is nearly full: thresholds, ranking, and the eviction manager."""
