"""What is read for the picture of a cluster: its objects, and what kubelets and the disk service report."""

from __future__ import annotations

import asyncio

from msgspec import structs

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.views.cluster_picture import ClusterFacts
from volplane.loops.disk_states import DiskState
from volplane.loops.volume_states import StateComparison
from volplane.loops.wait_reports import Question

SHOWN = (Node, Pod, PersistentVolumeClaim, PersistentVolume, VolumeAttachment, CSINode)
NODE = "node/"  # begins the name of a kubelet's role


async def read_facts(observer: ClusterObserver) -> ClusterFacts:
    facts = ClusterFacts(
        nodes=(await observer.cache(Node)).all(),
        pods=(await observer.cache(Pod)).all(),
        claims=(await observer.cache(PersistentVolumeClaim)).all(),
        volumes=(await observer.cache(PersistentVolume)).all(),
        attachments=(await observer.cache(VolumeAttachment)).all(),
        csi_nodes=(await observer.cache(CSINode)).all(),
    )
    if observer.source.sockets is None:
        return facts
    states, disks = await asyncio.gather(
        observer.ask(Question.VOLUMES, StateComparison), observer.ask(Question.DISKS, DiskState)
    )
    kubelets = {s.role.removeprefix(NODE): s.volumes for s in states.found if s.role.startswith(NODE)}
    return structs.replace(facts, kubelets=kubelets, disks=disks.found or None)
