"""What of a cluster's picture matches a filter."""

from __future__ import annotations

from msgspec import structs

from volplane.dashboard.views.cluster_picture import (
    ClusterPicture,
    DrawnDisk,
    DrawnNode,
    PlacedPod,
    PlacedVolume,
)


def filter_picture(picture: ClusterPicture, text: str) -> ClusterPicture:
    """Only what has the text in one of its names or in its state. A node that matches is shown whole."""
    wanted = text.strip().lower()
    if not wanted:
        return picture
    zones = []
    for zone in picture.zones:
        nodes = tuple(node for each in zone.nodes if (node := _filter_node(each, wanted)) is not None)
        if nodes:
            zones.append(structs.replace(zone, nodes=nodes))
    return structs.replace(
        picture,
        zones=tuple(zones),
        storage=tuple(volume for volume in picture.storage if _matches_volume(volume, wanted)),
        disks=tuple(disk for disk in picture.disks if _matches_disk(disk, wanted)),
    )


def _filter_node(node: DrawnNode, wanted: str) -> DrawnNode | None:
    if wanted in node.name or wanted in node.problem:
        return node
    volumes = tuple(volume for volume in node.volumes if _matches_volume(volume, wanted))
    pods = tuple(pod for pod in node.pods if _matches_pod(pod, wanted))
    return structs.replace(node, volumes=volumes, pods=pods) if volumes or pods else None


def _matches_volume(volume: PlacedVolume, wanted: str) -> bool:
    names = (volume.subject, volume.title, volume.volume, volume.state, volume.problem, *volume.pods)
    return any(wanted in name.lower() for name in names)


def _matches_pod(pod: PlacedPod, wanted: str) -> bool:
    return wanted in f"{pod.namespace}/{pod.name}" or wanted in pod.state.lower()


def _matches_disk(drawn: DrawnDisk, wanted: str) -> bool:
    disk = drawn.disk
    names = (disk.id, disk.state, disk.type, disk.node, drawn.title, drawn.subject)
    return any(wanted in name.lower() for name in names)
