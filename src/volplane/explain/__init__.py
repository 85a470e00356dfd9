"""`volplane explain`: why an object waits. Runs the controllers' own views and plans, and acts on nothing.

The reason is always that of the code that decides. What only a running role knows (timers, backoff, mounts)
the role reports (`loops.wait_reports`); where it cannot be asked, the answer says so. Only standard objects
are read, so that any Kubernetes cluster can be explained.
"""
