"""Node expansion: while pods use the volume or when it is mounted, with the claim's status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, NodeEnv, node_env, wait_briefly
from volplane.api.codec import convert
from volplane.api.core import Event, PersistentVolume, PersistentVolumeClaim
from volplane.api.storage import StorageClass
from volplane.csi.outcome import CallError, Code
from volplane.host import mounts
from volplane.node.volume_manager.expansion import ExpansionTarget, find_expansion_target

SOON = 0.05  # between two reads of a claim


def claim_of(
    capacity: str, target: str = "", status: str = "", *, annotations: Mapping[str, str] | None = None
) -> PersistentVolumeClaim:
    body: dict[str, Any] = {"capacity": {"storage": capacity}} if capacity else {}
    if target:
        body["allocatedResources"] = {"storage": target}
    if status:
        body["allocatedResourceStatuses"] = {"storage": status}
    return convert(
        PersistentVolumeClaim, {"metadata": {"name": "c", "annotations": annotations or {}}, "status": body}
    )


def volume_of(capacity: str, mode: str = "ReadWriteOnce") -> PersistentVolume:
    spec = {"capacity": {"storage": capacity}, "accessModes": [mode]}
    return convert(PersistentVolume, {"metadata": {"name": "v"}, "spec": spec})


GI = 1 << 30
NOT_REQUIRED = {"volume.kubernetes.io/node-expansion-not-required": "true"}


@pytest.mark.parametrize(
    ("claim", "volume", "noted", "expected"),
    [
        pytest.param(claim_of("1Gi"), volume_of("1Gi"), GI, None, id="nothing has grown"),
        pytest.param(claim_of(""), volume_of("1Gi"), 0, None, id="a claim without a size says nothing"),
        pytest.param(
            claim_of("1Gi", "2Gi", "NodeResizePending"),
            volume_of("2Gi"),
            GI,
            ExpansionTarget("2Gi"),
            id="pending",
        ),
        pytest.param(
            claim_of("1Gi", "2Gi", "NodeResizeInProgress"),
            volume_of("2Gi"),
            GI,
            ExpansionTarget("2Gi"),
            id="resumed",
        ),
        pytest.param(
            claim_of("1Gi", "2Gi", "NodeResizeInfeasible"), volume_of("2Gi"), GI, None, id="given up"
        ),
        pytest.param(
            claim_of("1Gi", "2Gi", "ControllerResizeInProgress"), volume_of("2Gi"), GI, None, id="not yet"
        ),
        pytest.param(
            claim_of("1Gi"), volume_of("2Gi"), GI, ExpansionTarget("2Gi", tracked=False), id="old resizer"
        ),
        pytest.param(claim_of("2Gi", "2Gi"), volume_of("2Gi"), GI, None, id="written by us"),
        pytest.param(
            claim_of("2Gi", "2Gi"),
            volume_of("2Gi", "ReadWriteMany"),
            GI,
            ExpansionTarget("2Gi", finished=True),
            id="another node was first",
        ),
        pytest.param(
            claim_of("2Gi", "2Gi", annotations=NOT_REQUIRED),
            volume_of("2Gi", "ReadWriteMany"),
            GI,
            None,
            id="no node has to do anything",
        ),
        pytest.param(
            claim_of("2Gi", "2Gi"), volume_of("2Gi", "ReadWriteMany"), 2 * GI, None, id="both are done"
        ),
    ],
)
def test_growth(
    claim: PersistentVolumeClaim, volume: PersistentVolume, noted: int, expected: ExpansionTarget | None
) -> None:
    assert find_expansion_target(claim, volume, noted) == expected


# --- on a node


async def ready(here: NodeEnv) -> None:
    await here.start(claim_read_frequency=SOON)
    await here.start_driver()
    await here.wait_until_registered()
    growing = {
        "metadata": {"name": "growing"},
        "provisioner": DRIVER,
        "allowVolumeExpansion": True,
    }
    await here.client.create(convert(StorageClass, growing))
    await here.volume(storageClassName="growing")
    await status(here, {"capacity": {"storage": "1Gi"}})


async def status(here: NodeEnv, body: dict[str, Any]) -> None:
    await here.client.patch(
        PersistentVolumeClaim, "data", "default", merge={"status": body}, subresource="status"
    )


async def expand_disk(here: NodeEnv, size: str = "2Gi", *, request: str = "", tracked: bool = True) -> None:
    """What the resizer does, in its order."""
    resources = {"spec": {"resources": {"requests": {"storage": request or size}}}}
    await here.client.patch(PersistentVolumeClaim, "data", "default", merge=resources)
    await here.client.patch(PersistentVolume, "pv-data", merge={"spec": {"capacity": {"storage": size}}})
    pending = {"type": "FileSystemResizePending", "status": "True"}
    status_fields: dict[str, Any] = {"conditions": [pending]}
    if tracked:
        status_fields |= {
            "allocatedResources": {"storage": size},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        }
    await status(here, status_fields)


async def claim(here: NodeEnv) -> PersistentVolumeClaim:
    return await here.client.get(PersistentVolumeClaim, "data", "default")


async def until_capacity(here: NodeEnv, size: str) -> PersistentVolumeClaim:
    async def reached() -> PersistentVolumeClaim | None:
        found = await claim(here)
        return found if found.status.capacity.get("storage") == size else None

    found: PersistentVolumeClaim = await until(reached)
    return found


def expansions(here: NodeEnv) -> list[Any]:
    return [request for name, request in here.disks.calls if name == "expand"]


def refusing(here: NodeEnv, *errors: CallError) -> None:
    pending = list(errors)

    async def refuse(request: Any) -> None:
        if pending:
            raise pending.pop(0)

    here.disks.hooks["expand"] = refuse


@pytest.mark.root
async def test_a_mounted_volume_is_expanded_and_the_claims_status_is_written() -> None:
    async with node_env() as here:
        await ready(here)
        pod = await here.pod(claim="data")
        await here.wait_until_ready()
        seen: list[str] = []

        async def look(request: Any) -> None:
            seen.append((await claim(here)).status.allocated_resource_statuses["storage"])

        here.disks.hooks["expand"] = look
        await expand_disk(here)
        found = await until_capacity(here, "2Gi")
        assert seen == ["NodeResizeInProgress"]
        assert not found.status.conditions
        assert not found.status.allocated_resource_statuses
        assert found.status.allocated_resources == {"storage": "2Gi"}
        (request,) = expansions(here)
        assert request.capacity_range.required_bytes == 2 * GI
        assert request.volume_path == here.paths.csi_target(pod.uid, "pv-data")
        assert request.staging_target_path.endswith("/globalmount")
        assert request.volume_capability.mount.fs_type == "ext4"
        text = 'MountVolume.NodeExpandVolume succeeded for volume "pv-data" worker-1'
        await here.wait_for_event(text)
        about = {
            e.involved_object.kind
            for e in await here.client.list(Event, "default")
            if e.reason == "FileSystemResizeSuccessful"
        }
        assert about == {"Pod", "PersistentVolumeClaim"}
        await wait_briefly(3 * SOON)
        assert len(expansions(here)) == 1


@pytest.mark.root
async def test_a_volume_that_grew_while_no_pod_used_it_is_expanded_before_the_containers_start() -> None:
    async with node_env() as here:
        await ready(here)
        await expand_disk(here)
        refusing(here, CallError(Code.INTERNAL, "not now"))
        await here.pod(claim="data")
        await here.wait_for_event(
            'MountVolume.Setup failed while expanding volume for volume "pv-data" : rpc error: code = '
        )
        assert await here.phase() == "Pending"
        conditions = {c.type for c in (await claim(here)).status.conditions}
        assert conditions == {"FileSystemResizePending", "NodeResizeError"}
        await here.wait_until_ready()
        found = await claim(here)
        assert found.status.capacity == {"storage": "2Gi"}
        assert not found.status.conditions
        assert len(expansions(here)) == 2


@pytest.mark.root
async def test_a_size_that_will_never_be_reached_is_given_up_and_keeps_no_pod_from_mounting() -> None:
    async with node_env() as here:
        await ready(here)
        refusing(here, CallError(Code.OUT_OF_RANGE, "too much"), CallError(Code.OUT_OF_RANGE, "again"))
        await expand_disk(here)
        await here.pod(claim="data")
        await here.wait_until_ready()
        found = await claim(here)
        assert found.status.allocated_resource_statuses == {"storage": "NodeResizeInfeasible"}
        assert {c.type: c.message for c in found.status.conditions}["NodeResizeError"].endswith("too much")
        await wait_briefly(3 * SOON)
        assert len(expansions(here)) == 1


@pytest.mark.root
async def test_a_refusal_is_final_once_the_user_asks_for_another_size() -> None:
    async with node_env() as here:
        await ready(here)
        await here.pod(claim="data")
        await here.wait_until_ready()
        refusing(here, CallError(Code.INTERNAL, "no"))
        await expand_disk(here, "3Gi", request="2Gi")

        async def infeasible() -> bool:
            statuses = (await claim(here)).status.allocated_resource_statuses
            return statuses.get("storage") == "NodeResizeInfeasible"

        await until(infeasible)
        assert (await claim(here)).status.capacity == {"storage": "1Gi"}


@pytest.mark.root
async def test_a_driver_that_cannot_expand_in_use_is_asked_once_and_blocks_no_mount() -> None:
    async with node_env() as here:
        await ready(here)
        refusing(here, *[CallError(Code.FAILED_PRECONDITION, "in use")] * 9)
        await expand_disk(here)
        await here.pod(claim="data")
        await here.wait_until_ready()
        await wait_briefly(3 * SOON)
        assert len(expansions(here)) == 1
        assert (await claim(here)).status.capacity == {"storage": "1Gi"}


@pytest.mark.root
async def test_a_lost_answer_is_asked_for_again() -> None:
    async with node_env() as here:
        await ready(here)
        await here.pod(claim="data")
        await here.wait_until_ready()
        refusing(here, CallError(Code.DEADLINE_EXCEEDED, "lost"))
        await expand_disk(here)
        await here.wait_for_event('NodeExpandVolume.NodeExpandVolume failed for volume "pv-data" : rpc error')
        assert (await claim(here)).status.allocated_resource_statuses == {"storage": "NodeResizeInProgress"}
        await until_capacity(here, "2Gi")
        assert await here.phase() == "Running"


@pytest.mark.root
async def test_a_read_only_pod_expands_nothing() -> None:
    async with node_env() as here:
        await ready(here)
        await expand_disk(here)
        await here.pod(claim="data", readonly=True)
        await here.wait_until_ready()
        await here.wait_for_event(
            'MountVolume.NodeExpandVolume failed for volume "pv-data" requested read-only file system'
        )
        assert not expansions(here)


@pytest.mark.root
async def test_an_old_resizer_leaves_only_the_capacity_to_the_node() -> None:
    async with node_env() as here:
        await ready(here)
        await here.pod(claim="data")
        await here.wait_until_ready()
        await expand_disk(here, tracked=False)
        found = await until_capacity(here, "2Gi")
        assert not found.status.conditions
        assert not found.status.allocated_resources


@pytest.mark.root
async def test_a_disk_that_grew_between_two_pods_is_expanded_although_its_device_is_still_mounted() -> None:
    """The driver expands file systems only before it mounts them, as with ext4 but no CAP_SYS_RESOURCE."""
    async with node_env() as here:
        await ready(here)
        disk, staged = ["1Gi"], [""]

        async def stage(request: Any) -> None:
            if not mounts.is_mount(here.paths.real(request.staging_target_path)):
                staged[0] = disk[0]

        async def expand(request: Any) -> None:
            if staged != disk:
                raise CallError(Code.FAILED_PRECONDITION, "the file system is mounted")

        arrived: list[str] = []

        async def unstage(request: Any) -> None:
            if not arrived:
                raise CallError(Code.UNAVAILABLE, "the driver was killed")

        here.disks.hooks |= {"stage": stage, "expand": expand, "unstage": unstage}
        await here.pod("first", claim="data")
        await here.wait_until_ready("first")
        await here.delete("first")
        await here.wait_for_phase("gone", "first")
        disk[0] = "2Gi"
        await expand_disk(here)
        pod = await here.pod("second", claim="data")

        async def is_desired() -> bool:
            assert here.role is not None
            return any(spec.pod.uid == pod.uid for spec in here.role.volumes.desired_specs())

        await until(is_desired)
        arrived.append(pod.uid)
        await until_capacity(here, "2Gi")
        await here.wait_until_ready("second")
