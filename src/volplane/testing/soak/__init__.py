"""Soak test of a driver: random lives of volumes, checked against a model of the CSI specification.

A *life* is a short random sequence of calls and faults on fresh volumes, from the first CreateVolume to the
last DeleteVolume. `generator` makes lives, `executor` sends their calls, `model` knows what a caller can know
about each volume, `rules` tells which answers the specification allows, `checks` looks at data and mounts,
and `shrink` makes a failing life as short as it can be. Model, rules, generator and shrinker are pure.
"""
