"""Why is this waiting? The controllers' own views and plans, run on what the API server shows; nothing acts.

The reason is always the one of the code that decides. What only a running role knows (timers, backoff,
mounts) it tells itself (`loops.wait_reports`); where it cannot be asked, the answer says so. Only standard
objects are assumed, so that any Kubernetes cluster can be asked about.
"""
