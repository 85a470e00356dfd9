"""(g) The baseline: the same CSI calls, one after the other, by a minimal gRPC client with the same driver.

The difference from (a) is our overhead: API writes, controllers, scheduling, the container's start.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from tests.bench.cluster_process import ClusterProcess
from tests.bench.report import Figure
from tests.support.up import wait_until
from volplane.api.core import Node
from volplane.base.sockets import short_path
from volplane.csi import convert, v1
from volplane.csi.services import METHODS
from volplane.host import NodePaths

DRIVER = "ebs.csi.aws.com"
ZONE = "topology.ebs.csi.aws.com/zone"
WARM_UP = 2

UP = "floor up: create, attach, stage, publish"
DOWN = "floor down: unpublish, unstage, detach"
CREATE = "floor: create alone"


async def measure(running: ClusterProcess, times: int) -> list[Figure]:
    nodes = await running.client.list(Node)
    node = next(n for n in nodes if n.name == "worker-1")
    place = (node.metadata.labels["topology.kubernetes.io/zone"], node.spec.provider_id.rsplit("/", 1)[1])
    # Blocking calls from a separate thread: a minimal client.
    rounds = await asyncio.to_thread(_measure, running.directory, place, times)
    return [
        Figure(
            key="g",
            name=name,
            unit="ms",
            samples=tuple(r[name] for r in rounds),
            upstream=upstream,
            stages={call: tuple(r[call] for r in rounds) for call in calls},
        )
        for name, upstream, calls in ((UP, 15, _UP), (DOWN, 20, _DOWN), (CREATE, None, ()))
    ]


_UP = ("CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume")
_DOWN = ("NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")


def _measure(directory: Path, place: tuple[str, str], times: int) -> list[dict[str, float]]:
    node = directory / "n" / "1"
    with (
        _calls(_wait_for_controller(directory)) as controller,
        _calls(node / "plugins" / DRIVER / "csi.sock") as on_node,
    ):
        rounds = [
            _round(controller, on_node, NodePaths(str(node)), place, f"floor-{number}")
            for number in range(times + WARM_UP)
        ]
    return rounds[WARM_UP:]


def _wait_for_controller(directory: Path) -> Path:
    """`up` is ready when the controller's containers run; its socket may come a moment later."""
    found: Path = wait_until(f"the controller of {DRIVER} answers", lambda: _find_controller(directory))
    return found


def _find_controller(directory: Path) -> Path | None:
    """Other drivers have a controller with such a socket, too."""
    for socket in directory.glob("n/*/pods/*/volumes/kubernetes.io~empty-dir/socket-dir/csi.sock"):
        with _calls(socket) as call, suppress(grpc.RpcError):
            if call("GetPluginInfo", v1.GetPluginInfoRequest()).name == DRIVER:
                return socket
    return None


Call = Callable[[str, Any], Any]


@contextmanager
def _calls(socket: Path) -> Iterator[Call]:
    with ExitStack() as stack:
        path = stack.enter_context(short_path(str(socket)))
        options = [("grpc.default_authority", "localhost")]
        channel = stack.enter_context(grpc.insecure_channel(f"unix:{path}", options=options))

        def call(name: str, request: Any) -> Any:
            method = METHODS[name]
            stub = channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.reply.FromString,
            )
            return stub(request, timeout=60)

        yield call


def _round(
    controller: Call, node: Call, paths: NodePaths, place: tuple[str, str], name: str
) -> dict[str, float]:
    zone, instance = place
    capability = convert.capability(convert.access_mode(convert.RWO, multi_writer=True), fs_type="ext4")
    times: dict[str, float] = {}
    start = time.monotonic_ns()

    def record_time(call: str) -> None:
        times[call] = (time.monotonic_ns() - start) / 1e6

    made = controller(
        "CreateVolume",
        v1.CreateVolumeRequest(
            name=name,
            capacity_range=v1.CapacityRange(required_bytes=1 << 30),
            volume_capabilities=[capability],
            parameters={"type": "gp3"},
            accessibility_requirements=v1.TopologyRequirement(
                requisite=[convert.topology({ZONE: zone})], preferred=[convert.topology({ZONE: zone})]
            ),
        ),
    )
    record_time("CreateVolume")
    volume = made.volume.volume_id
    context = controller(
        "ControllerPublishVolume",
        v1.ControllerPublishVolumeRequest(volume_id=volume, node_id=instance, volume_capability=capability),
    ).publish_context
    record_time("ControllerPublishVolume")
    staging, target = paths.staging(DRIVER, volume), paths.csi_target(f"{name}-pod", name)
    node(
        "NodeStageVolume",
        v1.NodeStageVolumeRequest(
            volume_id=volume,
            publish_context=context,
            staging_target_path=staging,
            volume_capability=capability,
        ),
    )
    record_time("NodeStageVolume")
    node(
        "NodePublishVolume",
        v1.NodePublishVolumeRequest(
            volume_id=volume,
            publish_context=context,
            staging_target_path=staging,
            target_path=target,
            volume_capability=capability,
        ),
    )
    record_time("NodePublishVolume")
    times[UP], times[CREATE] = times["NodePublishVolume"], times["CreateVolume"]
    start = time.monotonic_ns()
    node("NodeUnpublishVolume", v1.NodeUnpublishVolumeRequest(volume_id=volume, target_path=target))
    record_time("NodeUnpublishVolume")
    node("NodeUnstageVolume", v1.NodeUnstageVolumeRequest(volume_id=volume, staging_target_path=staging))
    record_time("NodeUnstageVolume")
    controller(
        "ControllerUnpublishVolume",
        v1.ControllerUnpublishVolumeRequest(volume_id=volume, node_id=instance),
    )
    record_time("ControllerUnpublishVolume")
    times[DOWN] = times["ControllerUnpublishVolume"]
    controller("DeleteVolume", v1.DeleteVolumeRequest(volume_id=volume))
    for path in (staging, os.path.dirname(target)):
        _remove_empty(paths.real(path), levels=2)
    return times


def _remove_empty(path: str, levels: int) -> None:
    """Remove the directories that a kubelet would remove."""
    for _ in range(levels):
        if os.path.isdir(path):
            os.rmdir(path)
        path = os.path.dirname(path)
