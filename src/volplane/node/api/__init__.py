"""The kubelet's HTTPS API: logs, exec, attach, port-forward, metrics, and the node's pods.

Only the API server uses it, and only its certificate is accepted.
"""

from volplane.node.api.app import KubeletApi

__all__ = ["KubeletApi"]
