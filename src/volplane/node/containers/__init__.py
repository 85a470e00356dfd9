"""Container runtimes: built-in images run as tasks, commands as processes.

`node.pods` decides when a pod's containers start; a runtime starts, watches, execs into, stops and removes
one container. All runtimes have the same interface, `base.Runtime`.
"""
