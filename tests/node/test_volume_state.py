"""The reducer of a volume's state: what events change, and how long a failed operation waits."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from msgspec import structs

from volplane.api.codec import convert
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod, Volume
from volplane.node.volume_manager.expansion import ExpansionOutcome, ExpansionTarget
from volplane.node.volume_manager.manager import VolumeManagerMemory
from volplane.node.volume_manager.plan import (
    AttachState,
    AttachVolume,
    DetachVolume,
    ExpandInUseVolume,
    ForgetNodeVolume,
    MountDevice,
    MountOutcome,
    MountState,
    MountVolume,
    Operation,
    UnmountDevice,
    UnmountVolume,
    plan,
)
from volplane.node.volume_manager.reducer import (
    AttachmentFound,
    AttachmentLost,
    AttachmentVerified,
    BackoffCleared,
    ClaimRead,
    DeviceFound,
    ExpansionEnded,
    MountFound,
    MountStarted,
    OperationEnded,
    PodAdded,
    PodChanged,
    PodRemoved,
    RemountRequired,
    VolumeAttached,
    VolumeEvent,
    VolumeForgotten,
    reduce,
)
from volplane.node.volume_manager.state import NodeVolumeState, VolumeOperation, find_failure, view_volume
from volplane.rules.waits import Wait
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec, StagedVolumeRef

MAX = 122.0
GI = 1 << 30
DONE, FINAL, LOST = MountOutcome.DONE, MountOutcome.FINAL, MountOutcome.UNCERTAIN


def pod(uid: str, **labels: str) -> Pod:
    return convert(Pod, {"metadata": {"name": uid, "namespace": "default", "uid": uid, "labels": labels}})


def claim(
    revision: int, *, capacity: str = "1Gi", target: str = "", status: str = ""
) -> PersistentVolumeClaim:
    body: dict[str, Any] = {"capacity": {"storage": capacity}}
    if target:
        body |= {"allocatedResources": {"storage": target}, "allocatedResourceStatuses": {"storage": status}}
    meta = {"name": "data", "uid": "c", "resourceVersion": str(revision)}
    return convert(PersistentVolumeClaim, {"metadata": meta, "status": body})


def disk(size: str) -> PersistentVolume:
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}
    return convert(PersistentVolume, {"metadata": {"name": "pv"}, "spec": spec})


BEFORE = (claim(1), disk("1Gi"))
GROWN = (claim(5, target="2Gi", status="NodeResizePending"), disk("2Gi"))
TARGET = ExpansionTarget("2Gi")


def spec(uid: str, read: tuple[PersistentVolumeClaim, PersistentVolume] = BEFORE) -> PodVolumeSpec:
    return PodVolumeSpec("csi", "v", "pv", pod(uid), Volume(name="data"), claim=read[0], volume=read[1])


def added(uid: str, read: tuple[PersistentVolumeClaim, PersistentVolume] = BEFORE) -> PodAdded:
    return PodAdded(spec(uid, read), attachable=True, has_device=True)


def ended(step: VolumeOperation, outcome: MountOutcome = DONE, *, now: float = 100.0) -> OperationEnded:
    of = spec(step.pod) if isinstance(step, MountDevice | MountVolume) else None
    return OperationEnded(step, outcome, of, "" if outcome is DONE else "no", now, MAX)


def after(*events: VolumeEvent, state: NodeVolumeState | None = None) -> NodeVolumeState:
    for event in events:
        state = reduce(state, event)
    assert state is not None
    return state


def mounted(*uids: str) -> NodeVolumeState:
    mounts = [event for uid in uids for event in (MountStarted(spec(uid)), ended(MountVolume(uid)))]
    return after(*map(added, uids), ended(MountDevice(uids[0])), *mounts)


def delay(state: NodeVolumeState, operation: Operation, pod: str = "") -> float:
    failure = find_failure(state, operation, pod)
    return failure.delay if failure is not None else 0.0


# --- mounts


def test_a_pod_is_counted_as_having_a_mount_from_the_start_of_the_call() -> None:
    state = after(added("a"), MountStarted(spec("a")), PodRemoved("a"))
    assert state.actual.mounts["a"].state is MountState.ABSENT
    assert not after(ended(MountVolume("a"), FINAL), state=state).actual.mounts
    assert after(ended(MountVolume("a")), state=state).actual.mounts["a"].state is MountState.MOUNTED


def test_a_lost_answer_leaves_an_uncertain_mount_and_a_refusal_leaves_none() -> None:
    state = after(added("a"), MountStarted(spec("a")), ended(MountVolume("a"), LOST))
    assert state.actual.mounts["a"].state is MountState.UNCERTAIN
    assert not after(ended(MountVolume("a"), FINAL), state=state).actual.mounts


def test_only_success_removes_a_mount() -> None:
    state = after(PodRemoved("a"), state=mounted("a"))
    assert (
        after(ended(UnmountVolume("a"), FINAL), state=state).actual.mounts["a"].state is MountState.UNCERTAIN
    )
    state = after(ended(UnmountVolume("a")), state=state)
    assert not state.actual.mounts
    assert after(ended(UnmountDevice()), state=state).actual.device is MountState.ABSENT


def test_what_is_found_on_disk_is_uncertain_and_survives_a_refusal() -> None:
    found = MountFound(PodVolumeRef("csi", "v", "pv", "a"), attachable=True)
    state = after(found, added("a"), ended(MountDevice("a"), FINAL), ended(MountVolume("a"), FINAL))
    assert state.actual.device is MountState.UNCERTAIN
    assert state.actual.mounts["a"].state is MountState.UNCERTAIN
    assert not mounted("a").actual.mounts["a"].reconstructed


def test_a_device_that_is_found_on_disk_is_not_forgotten_before_it_is_unmounted() -> None:
    state = after(DeviceFound(StagedVolumeRef("csi", "v"), attachable=True))
    assert state.is_only_staged
    assert state.actual.is_present


def test_only_mounted_pods_are_remounted_and_until_that_succeeds() -> None:
    assert not after(added("a"), RemountRequired("a")).desired.remount_pods
    state = after(RemountRequired("a"), state=mounted("a"))
    assert state.desired.remount_pods == {"a"}
    state = after(MountStarted(state.desired.pods["a"]), state=state)
    assert not after(ended(MountVolume("a"), DONE), state=state).desired.remount_pods
    assert after(ended(MountVolume("a"), FINAL), state=state).desired.remount_pods == {"a"}


def test_a_remount_required_during_a_mount_follows_it() -> None:
    """The mount in progress may have read a Secret before it changed."""
    first = after(added("a"))
    start = MountStarted(first.desired.pods["a"])
    state = after(start, RemountRequired("a"), ended(MountVolume("a"), DONE), state=first)
    assert state.desired.remount_pods == {"a"}


def test_a_mount_that_shows_an_earlier_pod_does_not_count_as_the_remount() -> None:
    state = mounted("a")
    start = MountStarted(state.desired.pods["a"])
    state = after(PodChanged(pod("a")), RemountRequired("a"), start, state=state)
    assert after(ended(MountVolume("a"), DONE), state=state).desired.remount_pods == {"a"}


def test_a_live_read_of_the_attachment_holds_until_the_node_lists_it_no_longer() -> None:
    state = after(added("a"), AttachmentVerified("/dev/vdb"))
    assert state.actual.attachment_verified
    assert state.actual.device_path == "/dev/vdb"
    lost = after(AttachmentLost(), state=state)
    assert not lost.actual.attachment_verified
    assert lost.actual.device_path == ""


def test_an_attach_by_the_kubelet_is_uncertain_after_any_error_of_the_driver() -> None:
    state = after(added("a"), VolumeAttached("/dev/vdb"), ended(AttachVolume("a")))
    assert state.actual.attachment is AttachState.ATTACHED
    assert state.actual.device_path == "/dev/vdb"
    for outcome in (FINAL, LOST):
        failed = after(added("a"), ended(AttachVolume("a"), outcome))
        assert failed.actual.is_attached_by_kubelet
        assert delay(failed, Operation.ATTACH) == 0.5
    not_tried = after(added("a"), ended(AttachVolume("a"), MountOutcome.TRANSIENT))
    assert not not_tried.actual.is_attached_by_kubelet


def test_only_success_detaches() -> None:
    state = after(added("a"), VolumeAttached("/dev/vdb"), PodRemoved("a"))
    failed = after(ended(DetachVolume(), FINAL), state=state)
    assert failed.actual.attachment is AttachState.UNCERTAIN
    assert delay(failed, Operation.DETACH) == 0.5
    assert after(ended(DetachVolume(), MountOutcome.TRANSIENT), state=state).actual == state.actual
    done = after(ended(DetachVolume()), state=state).actual
    assert (done.attachment, done.device_path) == (AttachState.DETACHED, "")


def test_a_record_of_an_attach_that_is_found_on_disk_has_no_device_to_unmount() -> None:
    state = after(AttachmentFound(StagedVolumeRef("flex", "v", "pv")))
    assert state.actual.attachment is AttachState.UNCERTAIN
    assert state.attachable
    assert not state.actual.is_present


def test_events_that_change_nothing_return_the_same_state() -> None:
    state = mounted("a")
    events = (PodRemoved("x"), PodChanged(pod("x")), RemountRequired("x"), BackoffCleared(), AttachmentLost())
    assert all(reduce(state, event) is state for event in events)
    assert reduce(state, VolumeForgotten()) is None
    assert reduce(None, PodRemoved("a")) is None


def test_a_pod_whose_mount_failed_is_served_last() -> None:
    state = after(added("a"), added("b"), ended(MountVolume("a"), FINAL))
    assert list(state.desired.pods) == ["b", "a"]


# --- expansion


def test_a_claim_that_was_read_earlier_does_not_undo_what_a_later_one_shows() -> None:
    state = after(added("a"), added("b", GROWN))
    assert state.desired.expansion == TARGET
    state = after(ClaimRead("a", claim(3), disk("1Gi")), state=state)
    assert state.desired.expansion == TARGET
    state = after(ClaimRead("b", claim(3), disk("1Gi")), state=state)
    assert state.desired.expansion == TARGET


def test_a_claim_that_was_read_before_our_own_write_does_not_start_the_expansion_again() -> None:
    state = after(added("a", GROWN))
    finished = ExpansionEnded(TARGET, ExpansionOutcome.EXPANDED, "a", claim(8, capacity="2Gi"))
    state = after(finished, state=state)
    assert state.desired.expansion is None
    assert state.actual.size == 2 * GI
    in_progress = claim(7, target="2Gi", status="NodeResizeInProgress")
    assert after(ClaimRead("a", in_progress, disk("2Gi")), state=state).desired.expansion is None


def test_a_larger_target_that_came_during_an_expansion_is_not_lost() -> None:
    state = after(added("a", GROWN))
    state = after(
        ClaimRead("a", claim(6, target="3Gi", status="NodeResizePending"), disk("3Gi")), state=state
    )
    state = after(ExpansionEnded(TARGET, ExpansionOutcome.EXPANDED, "a"), state=state)
    assert state.desired.expansion == ExpansionTarget("3Gi")


@pytest.mark.parametrize("outcome", ExpansionOutcome)
def test_what_an_attempt_to_expand_leaves_to_do(outcome: ExpansionOutcome) -> None:
    state = after(added("a", GROWN), ExpansionEnded(TARGET, outcome, "a"))
    left = outcome in (ExpansionOutcome.FAILED, ExpansionOutcome.READ_ONLY)
    assert (state.desired.expansion is not None) is left
    assert state.actual.refuses_expansion_in_use is (outcome is ExpansionOutcome.REFUSED_IN_USE)


def test_the_device_knows_the_expansion_that_was_pending_when_it_was_mounted() -> None:
    state = after(added("b", GROWN), state=mounted("a"))
    assert state.actual.device_expansion is None
    assert after(ended(MountDevice("b")), state=state).actual.device_expansion == TARGET
    # Or a driver whose answers are lost would be told to unstage and stage again without a pause.
    assert after(ended(MountDevice("b"), LOST), state=state).actual.device_expansion == TARGET


# --- backoff


def test_backoff_doubles_up_to_its_limit() -> None:
    state, delays = after(added("a")), []
    for _ in range(10):
        state = after(ended(MountVolume("a"), FINAL), state=state)
        delays.append(delay(state, Operation.MOUNT))
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 64, MAX, MAX]


def test_a_limit_below_the_first_delay_is_the_first_delay() -> None:
    failed = OperationEnded(MountVolume("a"), FINAL, spec("a"), "no", 100.0, 0.1)
    assert delay(after(added("a"), failed, failed), Operation.MOUNT) == pytest.approx(0.1)


def test_a_failed_mount_delays_the_mounts_of_all_pods_and_no_unmount() -> None:
    state = after(added("b"), ended(MountVolume("b"), FINAL), state=mounted("a"))
    assert delay(state, Operation.MOUNT, "a") == 0.5
    assert delay(state, Operation.UNMOUNT, "a") == 0


def test_mounts_of_a_volume_without_a_device_wait_each_for_its_own_pod() -> None:
    local = PodAdded(spec("a"), attachable=False, has_device=False)
    state = after(local, ended(MountVolume("a"), FINAL))
    assert delay(state, Operation.MOUNT, "a") == 0.5
    assert delay(state, Operation.MOUNT, "b") == 0


def test_two_operations_that_both_fail_do_not_end_each_others_backoff() -> None:
    state = after(ended(MountVolume("a"), FINAL), ended(MountVolume("a"), FINAL), state=mounted("a"))
    state = after(ended(UnmountVolume("a"), FINAL), state=state)
    assert delay(state, Operation.MOUNT) == 1
    assert delay(state, Operation.UNMOUNT, "a") == 0.5


def test_a_success_ends_the_backoff_of_all_operations_that_it_excludes() -> None:
    state = after(ended(MountVolume("a"), FINAL), ended(UnmountVolume("b"), FINAL), state=mounted("a", "b"))
    state = after(ended(UnmountVolume("a")), state=state)
    assert delay(state, Operation.MOUNT) == 0
    assert delay(state, Operation.UNMOUNT, "b") == 0.5
    assert not after(ended(ExpandInUseVolume("b")), state=state).failures


def test_backoff_ends_when_its_cause_may_be_over() -> None:
    state = after(added("a"), ended(MountVolume("a"), FINAL), BackoffCleared())
    assert not state.failures


# --- both worlds


def test_desired_and_actual_state_of_world_can_be_printed_side_by_side() -> None:
    memory = VolumeManagerMemory()
    memory.volumes["v"] = after(PodRemoved("a"), added("b"), state=mounted("a"))
    desired, actual = memory.desired_state_of_world, memory.actual_state_of_world
    assert list(desired.volumes["v"].pods) == ["b"]
    printed = msgspec.json.decode(msgspec.json.encode(actual))["volumes"]["v"]
    assert printed["device"] == "Mounted"
    assert printed["mounts"]["a"]["state"] == "Mounted"
    assert msgspec.json.encode(desired)


# --- plan and reducer together

SITUATIONS: dict[str, tuple[VolumeEvent, ...]] = {
    "a pod is new": (added("a"),),
    "two pods are new": (added("a"), added("b")),
    "a pod has left": (PodRemoved("a"),),
    "a pod has left and another came": (PodRemoved("a"), added("b")),
    "the disk grew and another pod came": (PodRemoved("a"), added("b", GROWN)),
    "the disk grew under its pod": (ClaimRead("a", *GROWN),),
    "the pod needs a remount": (RemountRequired("a"),),
}
OPERATIONS = (MountDevice, MountVolume, UnmountVolume, UnmountDevice, ExpandInUseVolume)


def rounds_to_rest(state: NodeVolumeState, outcomes: dict[type[Any], MountOutcome]) -> int:
    """How often a volume is planned at one moment, if its operations always end that way."""
    for count in range(20):
        view = view_volume(
            state,
            reported_in_use=True,
            attached=True,
            controller_manages_attach=True,
            plugin_attaches=False,
            ready_to_unmount=True,
            running_pods=(),
            now=100.0,
        )
        steps = [step for step in plan(view) if not isinstance(step, Wait)]
        if not steps or isinstance(steps[0], ForgetNodeVolume):
            return count
        for step in steps:
            assert not isinstance(step, ForgetNodeVolume)
            outcome = outcomes[type(step)]
            if isinstance(step, MountVolume):
                state = after(MountStarted(state.desired.pods[step.pod]), state=state)
            if isinstance(step, ExpandInUseVolume) and outcome is DONE:
                state = after(ExpansionEnded(TARGET, ExpansionOutcome.EXPANDED, step.pod), state=state)
            state = after(ended(step, outcome), state=state)
            if outcome is not DONE or isinstance(step, UnmountVolume | UnmountDevice):
                break
    raise AssertionError(f"no rest: {outcomes}")


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
@pytest.mark.parametrize("device", [MountState.MOUNTED, MountState.UNCERTAIN])
def test_whatever_the_driver_answers_no_operation_is_repeated_without_a_pause(
    situation: tuple[VolumeEvent, ...], device: MountState
) -> None:
    start = mounted("a")
    start = structs.replace(start, actual=structs.replace(start.actual, device=device))
    start = after(*situation, state=start)
    for chosen in itertools.product(MountOutcome, repeat=len(OPERATIONS)):
        assert rounds_to_rest(start, dict(zip(OPERATIONS, chosen, strict=True))) <= 10
