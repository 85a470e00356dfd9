"""Variants of the full driver with one bug each, in its optional calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import ClassVar

from tests.support.sample_driver.driver import SampleDriver
from tests.support.sample_driver.full import FullDriver
from volplane.csi import convert, v1
from volplane.sdk import errors

ZONE = {"blocks.example.com/zone": "a"}


class GroupForgetsAVolume(FullDriver):
    def volumes_to_snapshot(self, volumes: list[str]) -> list[str]:
        return volumes[:1]


class GroupOneByOne(FullDriver):
    """Each snapshot is taken at another time."""

    async def copy_snapshots(self, cuts: dict[str, str]) -> None:
        for volume, snapshot in reversed(cuts.items()):
            await super().copy_snapshots({volume: snapshot})
            await asyncio.sleep(1)  # on a busy machine, too, some writes come in between


class GroupLeavesSnapshots(FullDriver):
    def snapshots_to_delete(self, snapshots: list[str]) -> list[str]:
        return snapshots[1:]


class GroupForgetsItsName(FullDriver):
    """Forgets used names when it restarts."""

    async def create_volume_group_snapshot(
        self, request: v1.CreateVolumeGroupSnapshotRequest
    ) -> v1.CreateVolumeGroupSnapshotResponse:
        request.name += f"-{os.getpid()}"
        return await super().create_volume_group_snapshot(request)


class ModifiesOnce(FullDriver):
    """Refuses a modification that is already done."""

    async def controller_modify_volume(
        self, request: v1.ControllerModifyVolumeRequest
    ) -> v1.ControllerModifyVolumeResponse:
        if self.get_record(request.volume_id).get("mutable") == dict(request.mutable_parameters):
            raise errors.InvalidArgument(f"{request.volume_id} has these parameters")
        return await super().controller_modify_volume(request)


class AnswersOnce(FullDriver):
    """Answers only once for each volume."""

    answered: ClassVar[set[str]] = set()

    async def controller_get_volume(
        self, request: v1.ControllerGetVolumeRequest
    ) -> v1.ControllerGetVolumeResponse:
        reply = await super().controller_get_volume(request)
        if request.volume_id in self.answered:
            reply.ClearField("status")
        self.answered.add(request.volume_id)
        return reply


class ModifiesAnything(FullDriver):
    """Accepts and ignores unknown parameters."""

    def check(self, parameters: object) -> None:
        """Whatever."""


class DeltaMisses(FullDriver):
    """Omits the last changed block."""

    def changed_blocks(self, base: str, target: str) -> list[tuple[int, int]]:
        return super().changed_blocks(base, target)[:-1]


class NeverStartsOver(FullDriver):
    """Ignores the starting offset."""

    def get_metadata_allocated(self, request: v1.GetMetadataAllocatedRequest):  # type: ignore[no-untyped-def]
        request.starting_offset = 0
        return super().get_metadata_allocated(request)


class NowhereKnown(FullDriver):
    def nodes(self, id: str) -> list[str]:
        return []


class NoCondition(FullDriver):
    def condition(self) -> v1.VolumeCondition | None:
        return None


class OneSnapshotPage(FullDriver):
    """Returns the first page of snapshots without a token."""

    async def list_snapshots(self, request: v1.ListSnapshotsRequest) -> v1.ListSnapshotsResponse:
        reply = await super().list_snapshots(request)
        reply.next_token = ""
        return reply


class AnySize(FullDriver):
    def measure(self, size: int) -> None:
        """Accepts any size."""


class TwoWriters(FullDriver):
    """Publishes a single-writer volume for a second pod."""

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        request.volume_capability.access_mode.mode = v1.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
        return await super().node_publish_volume(request)


class KeepsTheSlot(FullDriver):
    """Counts a detached volume towards the limit of its node."""

    def check_nodes(self, nodes: list[str], request: v1.ControllerPublishVolumeRequest) -> None:
        super().check_nodes(nodes, request)
        book = self.root / f"taken.{request.node_id}"
        taken = set(book.read_text().split()) if book.exists() else set()
        there = {id for id, _ in self.list_records("vol")}
        taken = (taken & there) | {request.volume_id}
        if len(taken) > 4:
            raise errors.ResourceExhausted(f"{request.node_id} has {len(taken) - 1} volumes")
        book.write_text(" ".join(sorted(taken)))


class Zoned(SampleDriver):
    """Correct: all volumes are in the only zone."""

    extra_capabilities: ClassVar[frozenset[str]] = SampleDriver.extra_capabilities | {
        "VOLUME_ACCESSIBILITY_CONSTRAINTS"
    }

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        wanted = [dict(t.segments) for t in request.accessibility_requirements.requisite]
        if wanted and ZONE not in wanted and self.respects_topology():
            raise errors.ResourceExhausted(f"there is no room in {wanted}")
        reply = await super().create_volume(request)
        reply.volume.accessible_topology.append(convert.topology(ZONE))
        return reply

    def respects_topology(self) -> bool:
        return True

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        reply = await super().node_get_info(request)
        reply.accessible_topology.CopyFrom(convert.topology(ZONE))
        return reply


class Displaced(Zoned):
    """Ignores the required topology."""

    def respects_topology(self) -> bool:
        return False


FULL_MUTANTS: Mapping[str, type[SampleDriver]] = {
    "zoned": Zoned,
    "group-forgets-a-volume": GroupForgetsAVolume,
    "group-one-by-one": GroupOneByOne,
    "group-leaves-snapshots": GroupLeavesSnapshots,
    "group-forgets-its-name": GroupForgetsItsName,
    "modifies-once": ModifiesOnce,
    "answers-once": AnswersOnce,
    "modifies-anything": ModifiesAnything,
    "delta-misses": DeltaMisses,
    "never-starts-over": NeverStartsOver,
    "nowhere-known": NowhereKnown,
    "no-condition": NoCondition,
    "one-snapshot-page": OneSnapshotPage,
    "any-size": AnySize,
    "two-writers": TwoWriters,
    "keeps-the-slot": KeepsTheSlot,
    "displaced": Displaced,
}
