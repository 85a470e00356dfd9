"""How an answer reads, what can be asked about, and what roles tell over their socket."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import pytest

from tests.controllers.objects import claim
from tests.explain.scenes import NOW, about, bound, change, event, pod, running, wait
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.base import clock
from volplane.explain import roles
from volplane.explain.answer import Answer, done, later, waits
from volplane.explain.asking import NoName, UnknownKind, subject
from volplane.explain.scene import ago
from volplane.explain.text import lines
from volplane.loops.wait_reports import (
    SUFFIX,
    WaitRegistry,
    WaitReport,
    serve_wait_reports,
    to_wall_time,
)

WAITING = Answer(
    "pod/default/web",
    True,
    "not free for b: attached to a",
    NOW,
    (
        done("scheduled to b", "scheduler"),
        waits(
            "attach pv to b",
            "attach/detach controller",
            "not free for b: attached to a",
            since=NOW - timedelta(seconds=64),
            until=NOW + timedelta(seconds=296),
            ends="detached by force",
            details=("a has not answered for 1m 4s, and its disk stays where it is until then",),
        ),
        waits("and another", "kubelet", "for its own reason"),
        later("start its containers", "kubelet"),
    ),
    ("kubectl delete node a",),
    ("timers",),
)

SHOWN = """\
pod/default/web waits: not free for b: attached to a
  since 03:00:57 UTC (1m 4s); detached by force in 4m 56s

  ✓ scheduled to b  [scheduler]
  ▶ attach pv to b  [attach/detach controller]
      - a has not answered for 1m 4s, and its disk stays
        where it is until then
  ▶ and another  [kubelet]
      for its own reason
  · start its containers  [kubelet]

What to do
  - kubectl delete node a

Could not be asked
  - timers"""


def test_the_sentence_comes_first_then_the_way_then_what_to_do() -> None:
    assert "\n".join(lines(WAITING, 60)) == SHOWN


def test_where_nothing_waits_it_is_said_in_a_line() -> None:
    answer = Answer("pvc/default/data", False, "bound to pv, 1Gi", NOW)
    assert list(lines(answer)) == ["pvc/default/data waits for nothing: bound to pv, 1Gi"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (296, "4m 56s"), (7400, "2h 3m"), (90000, "1d 1h")]
)
def test_spans_are_short(seconds: int, text: str) -> None:
    assert ago(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("text", "type", "shown"),
    [
        ("pvc/data", PersistentVolumeClaim, "pvc/default/data"),
        ("persistentvolumeclaims/data", PersistentVolumeClaim, "pvc/default/data"),
        ("Pod/web", Pod, "pod/default/web"),
        ("po/web", Pod, "pod/default/web"),
        ("va/csi-1", VolumeAttachment, "volumeattachment/csi-1"),
        ("volumeattachments.storage.k8s.io/csi-1", VolumeAttachment, "volumeattachment/csi-1"),
    ],
)
def test_kinds_are_known_by_all_their_names(text: str, type: object, shown: str) -> None:
    asked = subject(text, "default")
    assert (asked.type, asked.text) == (type, shown)


def test_what_cannot_be_explained_is_said_with_what_can() -> None:
    with pytest.raises(UnknownKind, match="foo cannot be explained; it can be: node, persistentvolume, "):
        subject("foo/bar", "default")
    with pytest.raises(NoName, match="which pod"):
        subject("pod", "default")


async def test_roles_tell_whoever_may_open_their_socket(tmp_path: Path) -> None:
    path = tmp_path / f"{'deep' * 40}" / f"node-a{SUFFIX}"  # longer than a socket's name may be
    path.parent.mkdir()
    mine = WaitReport("node/a", "volume", "target is busy", clock.wall(), to_wall_time(clock.now() + 5))

    def source() -> list[WaitReport]:
        return [mine]

    registry, another = WaitRegistry(), WaitRegistry()
    registry.add(source)
    async with serve_wait_reports(str(path), registry):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found = await roles.ask(path.parent)
        assert list(found.told) == [mine]
        assert (found.asked, list(found.silent)) == (True, [])
    async with serve_wait_reports(str(path), another):  # of another cluster in the same process
        assert (await roles.ask(path.parent)).told == []
    assert not path.exists()


async def test_a_role_that_is_gone_is_said_to_be_silent(tmp_path: Path) -> None:
    path = tmp_path / f"scheduler{SUFFIX}"
    async with serve_wait_reports(str(path), WaitRegistry()):
        kept = tmp_path / f"node-a{SUFFIX}"
        path.rename(kept)  # a socket that nobody listens on any more is what kill -9 leaves
    found = await roles.ask(tmp_path)
    assert (found.asked, list(found.silent)) == (False, ["node-a"])
    async with serve_wait_reports(str(kept), WaitRegistry()):  # and the next life takes its place
        assert (await roles.ask(tmp_path)).asked


def test_the_words_of_a_plan_find_the_roles_own_times() -> None:
    step = waits("leave a", "controller", "a still mounts it")
    note = wait("controller", "volume", "a still mounts it", since=30, left=5)
    known = roles.Roles([wait("controller", "volume", "something else"), note], asked=True)
    timed = known.timed(step, "controller", "volume")
    assert (timed.since, timed.until) == (note.since, note.next_try)
    assert known.timed(step, "controller", "another") is step


# --- who may not read everything is not told that what they cannot see is not there


async def test_a_volume_that_may_not_be_read_is_not_lost() -> None:
    mine, _ = bound("data", "pv")
    answer = await about(mine, unread=["persistentvolumes"])
    assert (answer.waits, answer.answer) == (False, "bound to pv, 1Gi")
    assert answer.unknown[0] == "persistentvolumes: forbidden"


async def test_a_class_that_may_not_be_read_is_not_missing() -> None:
    mine = change(claim("data", cls="gp3"), metadata={"uid": "u"})
    told = event(mine, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
    answer = await about(mine, told, unread=["storageclasses"])
    assert answer.answer == "waiting for first consumer to be created before binding"


async def test_a_node_that_may_not_be_read_is_not_lost() -> None:
    answer = await about(running("web", on="a"), unread=["nodes"])
    assert (answer.waits, answer.answer) == (False, "runs on a, and is ready")
    said = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/3 nodes are available: 3 x. preemption: y",
    }
    answer = await about(pod("web", status={"conditions": [said]}), unread=["nodes"])
    assert answer.answer == "0/3 nodes are available: 3 x"
