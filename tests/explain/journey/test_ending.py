"""A journey is over when nothing is left to happen: not while the volume of a deleted claim is unmounted."""

from __future__ import annotations

import pytest

from tests.explain.journey.spans import (
    ATTACHMENT,
    BACK,
    CLAIM,
    DELETE,
    FORWARDS,
    HANDLE,
    POD,
    TRACE,
    UID,
    VOLUME,
    WORKER,
    stored,
    write,
)
from volplane.base.span_store import StoredSpan
from volplane.explain.journey.ending import is_over
from volplane.explain.journey.join import join_journey
from volplane.explain.journey.model import JourneyOutcome

CLAIM_GONE = write(101, "patch", CLAIM, {"exists": ("yes", "")})
RETAINED = write(
    102, "patch", VOLUME, {"status.phase": ("Bound", "Released")}, details={"reclaim policy": "Retain"}
)
MOUNTS = (
    stored(43, 12, "kubelet", "MountDevice", VOLUME, id="m1", node=WORKER, pod="default/web"),
    stored(55, 2, "kubelet", "MountVolume", VOLUME, id="m2", node=WORKER, pod="default/web"),
)
UNMOUNT = stored(105, 1, "kubelet", "UnmountVolume", VOLUME, id="m3", node=WORKER, pod="default/web")
ATTACHMENT_GONE = write(123, "patch", ATTACHMENT, {"exists": ("yes", "")})


def over(*spans: StoredSpan) -> bool:
    return is_over(join_journey(spans, TRACE))


def without(spans: tuple[StoredSpan, ...], step: str) -> tuple[StoredSpan, ...]:
    return tuple(span for span in spans if span.span.step != step)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param(FORWARDS, False, id="in use"),
        pytest.param((*FORWARDS, *BACK), False, id="the pod is gone"),
        pytest.param((*FORWARDS, CLAIM_GONE, RETAINED), False, id="kept, and still mounted"),
        pytest.param(
            (*FORWARDS, CLAIM_GONE, RETAINED, *BACK[:-1]), False, id="kept, and its attachment is still there"
        ),
        pytest.param((*FORWARDS, CLAIM_GONE, RETAINED, *BACK), True, id="kept and detached"),
        pytest.param((*FORWARDS, *BACK, *DELETE[:-1]), False, id="the PersistentVolume is still there"),
        pytest.param((*FORWARDS, *BACK, *DELETE), True, id="everything is deleted"),
        pytest.param((*FORWARDS, *DELETE), False, id="deleted before it was detached"),
        pytest.param(
            (*MOUNTS, *FORWARDS, *without(BACK, "NodeUnstageVolume"), *DELETE), True, id="lost node"
        ),
        pytest.param(
            (
                *FORWARDS,
                CLAIM_GONE,
                *BACK,
                write(130, "patch", VOLUME, {"spec.claimRef": (UID, "default/b (x)")}),
            ),
            True,
            id="bound to another claim",
        ),
        pytest.param(
            (write(0, "create", CLAIM, {"exists": ("", "yes")}), CLAIM_GONE), True, id="never bound"
        ),
        pytest.param((), False, id="nothing is known"),
    ],
)
def test_a_journey_is_over_when_nothing_is_left_to_happen(
    spans: tuple[StoredSpan, ...], expected: bool
) -> None:
    assert over(*spans) is expected


def test_a_volume_without_attachment_is_unmounted_first() -> None:
    """As of a driver with attachRequired: false and without staging."""
    mounted = (FORWARDS[0], FORWARDS[8], MOUNTS[1], CLAIM_GONE, RETAINED)
    assert not over(*mounted)
    other = stored(104, 1, "kubelet", "UnmountVolume", VOLUME, node=WORKER, pod="default/other")
    assert not over(*mounted, other)
    assert over(*mounted, other, UNMOUNT)
    restarted = stored(105, 1, "kubelet", "NodeUnpublishVolume", HANDLE)  # knows neither pod nor node
    assert over(*mounted, restarted)


def test_an_unmount_that_failed_has_unmounted_nothing() -> None:
    mounted = (FORWARDS[0], MOUNTS[0], CLAIM_GONE)
    failed = stored(105, 1, "kubelet", "UnmountDevice", VOLUME, node=WORKER, error="CallError: busy")
    done = stored(107, 1, "kubelet", "UnmountDevice", VOLUME, node=WORKER)
    assert not over(*mounted, failed)
    assert over(*mounted, failed, done)


def test_a_pod_without_claims_is_over_when_it_is_gone() -> None:
    created = write(0, "create", POD, {"exists": ("", "yes")})
    assert not over(created)
    assert over(created, write(5, "delete", POD, {"exists": ("yes", "")}))


def test_a_deleted_claim_stays_deleted_while_its_volume_is_unmounted() -> None:
    assert join_journey((*FORWARDS, CLAIM_GONE, *BACK), TRACE).outcome is JourneyOutcome.DELETED
