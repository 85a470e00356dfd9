"""The driver test bench: any CSI driver through every lifecycle that it promises, and then some.

A *case* is one small declared unit: what it is called, which section of the CSI specification (or behaviour
of Kubernetes) it holds the driver to, which capabilities it needs, and a coroutine over a world. `bench` is
the world of bare calls: the driver's processes on their sockets and nothing in between. `runner` runs cases
and collects results, `report` shows them to people and machines.
"""
