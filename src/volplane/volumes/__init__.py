"""Volume plugins, one class per kind of volume.

A plugin mounts a volume at a pod's path and unmounts it. The kubelet's volume manager decides when.
"""
