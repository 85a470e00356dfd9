"""The kubelet's own HTTPS API: logs, exec, attach, port-forward, and what is asked about the node.

It is meant for the API server alone, and only its certificate is let in.
"""

from volplane.node.api.app import KubeletApi

__all__ = ["KubeletApi"]
