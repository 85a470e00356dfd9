"""The program that starts `process` containers: small, single-threaded, on its own.

It imports nothing of volplane and little of the standard library, because every container is a fork of it.
It runs as long as its node role and ends with it; the containers it started outlive both. Per container:

    launcher ── shim ─┬─ init (pid 1 of the container) ── the command
                      └─ log, pid file, exit file

The shim stays outside the container's namespaces, so the node's directories are never reachable from inside.
"""
