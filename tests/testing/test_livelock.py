"""Who waits for a driver that only refuses does not wait to the end."""

from __future__ import annotations

import asyncio

import pytest

from volplane.csi.call_interceptor import CsiCall
from volplane.testing.case import CaseFailure
from volplane.testing.livelock import NORMAL_LIMIT, SHORT_LIMIT, LivelockDetector

pytestmark = pytest.mark.virtual
TIMES = NORMAL_LIMIT.times


def refused(
    at: float, code: str = "INTERNAL", message: str = "no", note: str = "", request: str = "{}"
) -> CsiCall:
    return CsiCall(1, "NodeStageVolume", "kubelet", "here", request, at, at + 0.1, code, "", message, note)


def in_use(at: float) -> CsiCall:
    code = "FAILED_PRECONDITION"
    return CsiCall(1, "ControllerUnpublishVolume", "attacher", "here", "{}", at, at, code, "", "busy")


def unmounted(at: float) -> CsiCall:
    return CsiCall(1, "NodeUnpublishVolume", "kubelet", "here", "{}", at, at + 0.1, "OK", "{}")


async def waited(stuck: LivelockDetector) -> str:
    try:
        async with asyncio.timeout(1):
            await stuck.wait_or_livelock(asyncio.sleep(3600))
    except CaseFailure as error:
        return f"{error.section}: {error}"
    except TimeoutError:
        return ""
    raise AssertionError


def hears(stuck: LivelockDetector, *calls: CsiCall) -> LivelockDetector:
    for call in calls:
        stuck.observe_call(call)
    return stuck


async def test_the_same_words_again_and_again_end_the_waiting() -> None:
    said = await waited(hears(LivelockDetector(), *(refused(2.0 * n) for n in range(TIMES))))
    assert said == ("CSI: NodeStageVolume: NodeStageVolume failed 5 times with the same error: INTERNAL (no)")


async def test_an_error_that_names_another_parameter_each_time_is_the_same() -> None:
    refusals = (
        refused(2.0 * n, message=f'invalid parameter "{name}" (request 0{n}fe12ab-91)')
        for n, name in enumerate(("size", "pool", "size", "class", "pool"))
    )
    said = await waited(hears(LivelockDetector(), *refusals))
    assert 'failed 5 times with the same error: INTERNAL (invalid parameter "pool"' in said


async def test_the_work_may_end_first() -> None:
    await LivelockDetector().wait_or_livelock(asyncio.sleep(0))


@pytest.mark.parametrize(
    "calls",
    [
        [refused(2.0 * n) for n in range(TIMES - 1)],
        [refused(0.1 * n) for n in range(TIMES)],
        [refused(2.0 * n, "UNAVAILABLE") for n in range(TIMES)],
        [refused(2.0 * n, "ABORTED") for n in range(TIMES)],
        [refused(2.0 * n, note="cut before the driver's answer") for n in range(TIMES)],
        [refused(2.0 * n, message=f"not at {n}") for n in range(TIMES)],
        [refused(2.0 * n, request=f"{n}") for n in range(TIMES)],
        [*(refused(2.0 * n) for n in range(TIMES - 1)), refused(7.0, "OK"), refused(9.0)],
        [refused(2.0 * n, "OK") for n in range(TIMES + 1)],
        [in_use(2.0 * n) for n in range(TIMES)],
    ],
    ids=[
        "few",
        "soon",
        "away",
        "busy",
        "the tap's",
        "other words",
        "other volumes",
        "between",
        "ok",
        "in use",
    ],
)
async def test_everything_else_is_waited_for(calls: list[CsiCall]) -> None:
    assert await waited(hears(LivelockDetector(), *calls)) == ""


async def test_what_hangs_since_an_earlier_case_does_not_fail_the_next() -> None:
    stuck = hears(LivelockDetector(), *(refused(2.0 * n) for n in range(TIMES)))
    stuck.begin_case()
    hears(stuck, *(refused(20.0 + 2 * n) for n in range(TIMES)))
    assert await waited(stuck) == ""
    hears(stuck, refused(40.0, "OK"), *(refused(50.0 + 2 * n) for n in range(TIMES)))
    assert "INTERNAL" in await waited(stuck)


async def test_an_unmount_that_only_says_so_ends_the_waiting() -> None:
    few = hears(LivelockDetector(), *(unmounted(2.0 * n) for n in range(TIMES)))
    assert await waited(few) == ""
    said = await waited(hears(few, unmounted(60.0)))
    assert said.endswith("returned OK 6 times, and the volume is still mounted")


async def test_patience_may_be_short_for_one_case() -> None:
    stuck = LivelockDetector()
    stuck.limit = SHORT_LIMIT
    assert "failed 3 times" in await waited(hears(stuck, *(refused(2.0 * n) for n in range(3))))
    stuck.begin_case()
    assert stuck.limit is NORMAL_LIMIT


async def test_an_unmount_that_was_seen_not_to_happen_is_not_waited_for() -> None:
    seen = hears(LivelockDetector(lambda call: True), unmounted(0.0))
    assert await waited(seen) == ""
    assert "returned OK 2 times" in await waited(hears(seen, unmounted(0.1)))
