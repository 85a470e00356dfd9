"""Job: pods that run to their end, as often as it takes."""
