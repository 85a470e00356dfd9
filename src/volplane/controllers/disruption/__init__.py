"""PodDisruptionBudget: how many pods may be evicted now."""
