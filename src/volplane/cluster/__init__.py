"""The composition root: the only place where roles are put together.

`single_process` runs a cluster in one process, `multi_process` one process per role. What a layer may not
import is injected here: the API server's in-process transport into the controllers, the built-in images into
the nodes.
"""
