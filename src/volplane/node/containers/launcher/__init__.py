"""The program that starts `process` containers: small and single-threaded, a process of its own.

It imports nothing of volplane and little of the standard library, because every container is a fork of it.
It ends with its node role; the containers it started outlive both. Per container:

    launcher ── shim ─┬─ init (pid 1 of the container) ── the command
                      └─ log, pid file, exit file

The shim stays outside the container's namespaces, so the container never reaches the node's directories.
"""
