"""PodDisruptionBudget: how many pods may go now."""
