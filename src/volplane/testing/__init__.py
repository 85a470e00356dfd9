"""Test cases for any CSI driver, their environments, reports, and the pytest plugin.

A *case* has a name, the section of the CSI specification (or behaviour of Kubernetes) that it checks, the
capabilities that it needs, and a coroutine that runs in an environment. `socket_env` calls the driver's
processes directly, `cluster_env` runs the driver in a cluster in this process, `process_env` in a cluster of
several processes. `runner` runs cases and collects results, `report` renders them.
"""
