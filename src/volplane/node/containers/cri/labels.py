"""The labels and annotations by which a node finds its own sandboxes and containers in a shared runtime.

Several nodes of one machine, and several data directories, may share one runtime. Each node only looks at
what has the label with its own root directory.
"""

from __future__ import annotations

import hashlib

from volplane.api.core import Pod
from volplane.node.containers.base import ContainerSpec

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"

NODE_ROOT = "volplane.io/node-root"  # the node's directory on this machine
CONTAINER_ID = "volplane.io/container-id"  # the id that the node has chosen

RESTART_COUNT = "io.kubernetes.container.restartCount"
STOP_SIGNAL = "volplane.io/stop-signal"  # stopSignal of the container's lifecycle
TERMINATION_MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"


def node_labels(root: str) -> dict[str, str]:
    """The labels of everything that belongs to the node with this root directory."""
    return {NODE_ROOT: root}


def node_digest(root: str) -> str:
    """A short name of the node that is unique on this machine."""
    return hashlib.sha256(root.encode()).hexdigest()[:10]


def sandbox_uid(pod: Pod, root: str) -> str:
    """The uid in a sandbox's name, which is unique in a runtime: copies of a cluster have the same pods."""
    return f"{pod.uid}-{node_digest(root)}"


def pod_labels(pod: Pod, root: str) -> dict[str, str]:
    own = {POD_NAME: pod.name, POD_NAMESPACE: pod.namespace, POD_UID: pod.uid}
    return {**pod.metadata.labels, **own, **node_labels(root)}


def container_labels(spec: ContainerSpec, root: str) -> dict[str, str]:
    return {
        POD_NAME: spec.pod_name,
        POD_NAMESPACE: spec.namespace,
        POD_UID: spec.pod_uid,
        CONTAINER_NAME: spec.name,
        CONTAINER_ID: spec.id,
        **node_labels(root),
    }
