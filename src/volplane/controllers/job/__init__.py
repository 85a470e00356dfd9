"""Job: pods that run to completion, with retries."""
