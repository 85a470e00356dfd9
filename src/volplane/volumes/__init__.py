"""The kinds of volumes a pod can have, one small class each.

A plugin makes a volume appear at a pod's path and takes it away again. When that may happen is the node's
business.
"""
