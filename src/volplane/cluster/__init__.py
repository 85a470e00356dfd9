"""The composition root: where roles are put together, and nowhere else.

`whole` is a cluster in one process, `separate` the same roles as processes. What a floor may not import is
given to it here: the API server's in-process transport to the controllers, the built-in images to the nodes.
"""
