"""The volumes of a life on the driver: names, paths, and the requests of its steps."""

from __future__ import annotations

import os
from contextlib import suppress

from google.protobuf.message import Message

from volplane.csi import v1
from volplane.testing.cases.controller import UNKNOWN
from volplane.testing.cases.expand import may_grow_mounted_ext
from volplane.testing.soak.model import CreateArguments, Model
from volplane.testing.soak.steps import CONTROLLER_CALLS, Mistake, Source, Step, VolumeKind
from volplane.testing.socket_env import BLOCK, SHARED, WRITER, DriverSocket, SocketEnv
from volplane.testing.volume import VolumeUnderTest

UNKNOWN_SNAPSHOT, UNKNOWN_NODE = "volplane-no-such-snapshot", "volplane-no-such-node"
PODS = ("a", "b")  # the pod of each target
OTHER_SIZE = 8  # units; no life expands a volume to it
CAPABILITIES = {VolumeKind.MOUNT: WRITER, VolumeKind.BLOCK: BLOCK, VolumeKind.SHARED: SHARED}


def expandable_kinds() -> frozenset[VolumeKind]:
    """Kinds of volumes that this machine can expand while they are published."""
    return frozenset(VolumeKind if may_grow_mounted_ext() else {VolumeKind.BLOCK})


class LifeVolumes:
    """Fresh names for the volumes and snapshots of one life; builds requests for its steps."""

    def __init__(self, env: SocketEnv, model: Model, name: str) -> None:
        self._env, self._model, self._name = env, model, name
        self._volumes: dict[int, VolumeUnderTest] = {}
        self.seen: list[VolumeUnderTest] = []  # all volumes of the life, to clean up

    def volume(self, number: int) -> VolumeUnderTest:
        if number not in self._volumes:
            self._volumes[number] = self._new_volume(number, CreateArguments(self._model.limits.unit))
        return self._volumes[number]

    def _new_volume(self, number: int, arguments: CreateArguments) -> VolumeUnderTest:
        capability = CAPABILITIES[self._model.kinds[number]]
        request = self._env.create_request(
            f"pvc-{self._name}-{number}",
            capability=capability,
            size=arguments.size,
            source=self._source(arguments),
        )
        volume = VolumeUnderTest(self._env, request, capability)
        volume.made = v1.Volume(volume_id=UNKNOWN)
        self.seen.append(volume)
        return volume

    def _source(self, arguments: CreateArguments) -> v1.VolumeContentSource | None:
        if arguments.source is Source.SNAPSHOT:
            id = self._model.snapshot_ids.get(arguments.snapshot, UNKNOWN_SNAPSHOT)
            return v1.VolumeContentSource(snapshot={"snapshot_id": id})
        if arguments.source is Source.VOLUME:
            return v1.VolumeContentSource(volume={"volume_id": self.volume(arguments.origin).id})
        return None

    def node(self, step: Step) -> DriverSocket:
        return self._env.nodes[step.node]

    def remote(self, step: Step) -> DriverSocket:
        """The instance that serves the call."""
        return self._env.controller if step.call in CONTROLLER_CALLS else self.node(step)

    def target(self, volume: int, node: int, target: int) -> str:
        return self.volume(volume).target_path(self._env.nodes[node], PODS[target])

    def staging(self, volume: int, node: int) -> str:
        return self.volume(volume).staging_path(self._env.nodes[node])

    # --- requests

    def request(self, step: Step) -> Message:
        request = self._correct_request(step)
        match step.mistake:
            case Mistake.UNKNOWN_VOLUME:
                _set_volume(request, UNKNOWN)
                self._use_own_paths(request, step)
            case Mistake.NO_VOLUME:
                _set_volume(request, "")
                self._use_own_paths(request, step)
            case Mistake.NO_CAPABILITY:
                plural = "volume_capabilities" in request.DESCRIPTOR.fields_by_name
                request.ClearField("volume_capabilities" if plural else "volume_capability")
                self._use_own_paths(request, step)
            case Mistake.UNKNOWN_NODE:
                request.node_id = UNKNOWN_NODE  # type: ignore[attr-defined]
            case Mistake.OTHER_SIZE:
                wanted = OTHER_SIZE * self._model.limits.unit
                request.capacity_range.required_bytes = wanted  # type: ignore[attr-defined]
            case _:
                pass
        return request

    def _use_own_paths(self, request: Message, step: Step) -> None:
        """A wrong call does not touch the paths of a volume."""
        fields = request.DESCRIPTOR.fields_by_name
        for field in ("staging_target_path", "target_path", "volume_path"):
            if field in fields:
                directory = self.node(step).root / "wrong"
                directory.mkdir(parents=True, exist_ok=True)
                if field == "staging_target_path":
                    (directory / field).mkdir(exist_ok=True)
                setattr(request, field, str(directory / field))

    def _correct_request(self, step: Step) -> Message:
        env, secrets = self._env, self._env.secrets
        if step.call == "CreateVolume":
            return self._create_request(step)
        if step.call == "DeleteSnapshot":
            id = self._model.snapshot_ids.get(step.snapshot, UNKNOWN_SNAPSHOT)
            return v1.DeleteSnapshotRequest(snapshot_id=id, secrets=secrets)
        if step.call in _EMPTY:
            return _EMPTY[step.call]()
        volume, node = self.volume(step.volume), self.node(step)
        match step.call:
            case "DeleteVolume":
                return v1.DeleteVolumeRequest(volume_id=volume.id, secrets=secrets)
            case "ControllerPublishVolume":
                return volume.publish_request(node)
            case "ControllerUnpublishVolume":
                return v1.ControllerUnpublishVolumeRequest(
                    volume_id=volume.id, node_id=node.id, secrets=secrets
                )
            case "NodeStageVolume":
                return volume.stage_request(node)
            case "NodeUnstageVolume":
                path = volume.staging(node)
                return v1.NodeUnstageVolumeRequest(volume_id=volume.id, staging_target_path=path)
            case "NodePublishVolume":
                return volume.mount_request(node, volume.target(node, PODS[step.target]))
            case "NodeUnpublishVolume":
                path = volume.target(node, PODS[step.target])
                return v1.NodeUnpublishVolumeRequest(volume_id=volume.id, target_path=path)
            case "NodeGetVolumeStats":
                path = volume.target(node, PODS[step.target])
                return v1.NodeGetVolumeStatsRequest(volume_id=volume.id, volume_path=path)
            case "CreateSnapshot":
                name = f"snapshot-{self._name}-{step.snapshot}"
                return v1.CreateSnapshotRequest(name=name, source_volume_id=volume.id, secrets=secrets)
            case "ControllerExpandVolume":
                return v1.ControllerExpandVolumeRequest(
                    volume_id=volume.id,
                    capacity_range={"required_bytes": max(step.size, 1) * self._model.limits.unit},
                    volume_capability=volume.capability,
                    secrets=secrets,
                )
            case "NodeExpandVolume":
                return v1.NodeExpandVolumeRequest(
                    volume_id=volume.id,
                    volume_path=volume.target(node, PODS[step.target]),
                    staging_target_path=volume.staging(node) if env.capabilities.has("stage") else "",
                    capacity_range={"required_bytes": max(step.size, 1) * self._model.limits.unit},
                    volume_capability=volume.capability,
                    secrets=secrets,
                )
            case "ControllerGetVolume":
                return v1.ControllerGetVolumeRequest(volume_id=volume.id)
            case "ValidateVolumeCapabilities":
                return v1.ValidateVolumeCapabilitiesRequest(
                    volume_id=volume.id,
                    volume_context=volume.made.volume_context,
                    volume_capabilities=[volume.capability],
                    secrets=secrets,
                )
            case _:
                raise ValueError(f"no request for {step.call}")

    def _create_request(self, step: Step) -> v1.CreateVolumeRequest:
        fresh = not self._model.maybe("volume", step.volume) and not step.mistake
        if fresh:
            arguments = self._model.create_arguments(step)
            self._volumes[step.volume] = self._new_volume(step.volume, arguments)
        return v1.CreateVolumeRequest.FromString(self.volume(step.volume).request.SerializeToString())

    # --- answers

    def note_answer(self, step: Step, reply: object) -> None:
        """Keep what later requests need."""
        if step.mistake:
            return
        volume, node = self.volume(step.volume), self.node(step)
        if isinstance(reply, v1.CreateVolumeResponse):
            volume.made = reply.volume
        elif isinstance(reply, v1.ControllerPublishVolumeResponse):
            volume.attached[node.id] = (node, dict(reply.publish_context))

    def note_request(self, step: Step) -> None:
        """Keep what may have to be undone."""
        if step.mistake or step.call not in _UNDONE:
            return
        volume, node = self.volume(step.volume), self.node(step)
        if step.call == "ControllerPublishVolume":
            volume.attached.setdefault(node.id, (node, {}))
        elif step.call == "NodeStageVolume":
            volume.staged[volume.staging_path(node)] = node
        else:
            volume.targets[volume.target_path(node, PODS[step.target])] = node

    def with_unknown_ids(self) -> list[VolumeUnderTest]:
        """All volumes, to clean up; one whose CreateVolume has no answer has no id."""
        for number, volume in self._volumes.items():
            if self._model.maybe("volume", number) and not self._model.has_id(number):
                volume.made = v1.Volume()
        return self.seen

    def remove_directories(self) -> None:
        """Remove the caller's empty directories of the life's volumes."""
        for volume in self.seen:
            for node in self._env.nodes:
                for path in (*(volume.target_path(node, pod) for pod in PODS), volume.staging_path(node)):
                    with suppress(OSError):
                        os.rmdir(path)
                    with suppress(OSError):
                        os.rmdir(os.path.dirname(path))


_UNDONE = ("ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume")
_EMPTY: dict[str, type[Message]] = {
    "ListVolumes": v1.ListVolumesRequest,
    "ListSnapshots": v1.ListSnapshotsRequest,
    "GetCapacity": v1.GetCapacityRequest,
    "Probe": v1.ProbeRequest,
    "NodeGetInfo": v1.NodeGetInfoRequest,
}


def _set_volume(request: Message, id: str) -> None:
    fields = request.DESCRIPTOR.fields_by_name
    if "volume_id" in fields:
        request.volume_id = id  # type: ignore[attr-defined]
    elif "source_volume_id" in fields:
        request.source_volume_id = id  # type: ignore[attr-defined]
    else:
        request.name = id  # type: ignore[attr-defined]
