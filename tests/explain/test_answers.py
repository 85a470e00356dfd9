"""How an answer reads, what can be asked about, and what roles tell over their socket."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from tests.controllers.objects import claim
from tests.explain.explain_objects import NOW, bound_pair, change, event, explain_first, pod, report, running
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.base import clock
from volplane.explain import wait_reports
from volplane.explain.cluster_state import format_duration
from volplane.explain.render import render_lines
from volplane.explain.resolve import MissingName, UnsupportedKind, parse_target
from volplane.explain.result import ExplainResult, done_step, later_step, waiting_step
from volplane.loops.wait_reports import (
    SUFFIX,
    WaitRegistry,
    WaitReport,
    serve_wait_reports,
    to_wall_time,
)
from volplane.rules.waits import SENTENCES, Wait, WaitData, WaitReason, render

WAITING = ExplainResult(
    "pod/default/web",
    True,
    "not free for b: attached to a",
    NOW,
    (
        done_step("scheduled to b", "scheduler"),
        waiting_step(
            "attach pv to b",
            "attach/detach controller",
            "not free for b: attached to a",
            since=NOW - timedelta(seconds=64),
            until=NOW + timedelta(seconds=296),
            ends="detached by force",
            details=("a has not answered for 1m 4s, and its disk stays where it is until then",),
        ),
        waiting_step("and another", "kubelet", "for its own reason"),
        later_step("start its containers", "kubelet"),
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

Not known
  - timers"""


def test_the_sentence_comes_first_then_the_way_then_what_to_do() -> None:
    assert "\n".join(render_lines(WAITING, 60)) == SHOWN


def test_where_nothing_waits_it_is_said_in_a_line() -> None:
    answer = ExplainResult("pvc/default/data", False, "bound to pv, 1Gi", NOW)
    assert list(render_lines(answer)) == ["pvc/default/data does not wait: bound to pv, 1Gi"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (296, "4m 56s"), (7400, "2h 3m"), (90000, "1d 1h")]
)
def test_spans_are_short(seconds: int, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


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
    asked = parse_target(text, "default")
    assert (asked.type, asked.text) == (type, shown)


def test_what_cannot_be_explained_is_said_with_what_can() -> None:
    with pytest.raises(
        UnsupportedKind, match="cannot explain kind foo; choose one of: node, persistentvolume, "
    ):
        parse_target("foo/bar", "default")
    with pytest.raises(MissingName, match="write pod/NAME"):
        parse_target("pod", "default")


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
        found = await wait_reports.read_all_reports(path.parent)
        assert list(found.reports) == [mine]
        assert (found.asked, list(found.silent)) == (True, [])
    async with serve_wait_reports(str(path), another):  # of another cluster in the same process
        assert (await wait_reports.read_all_reports(path.parent)).reports == []
    assert not path.exists()


async def test_a_role_that_is_gone_is_said_to_be_silent(tmp_path: Path) -> None:
    path = tmp_path / f"scheduler{SUFFIX}"
    async with serve_wait_reports(str(path), WaitRegistry()):
        kept = tmp_path / f"node-a{SUFFIX}"
        path.rename(kept)  # kill -9 leaves a socket without a listener
    found = await wait_reports.read_all_reports(tmp_path)
    assert (found.asked, list(found.silent)) == (False, ["node-a"])
    async with serve_wait_reports(str(kept), WaitRegistry()):  # and the next life takes its place
        assert (await wait_reports.read_all_reports(tmp_path)).asked


def test_a_report_is_matched_by_reason_and_data_whatever_its_sentence() -> None:
    wait = Wait(WaitReason.MOUNTED_ON_NODE, WaitData(node="a"))
    other = Wait(WaitReason.MOUNTED_ON_NODE, WaitData(node="b"))
    step = waiting_step("detach from a", "controller", wait)
    assert (step.why, step.reason) == ("a still has the volume mounted", "MountedOnNode")
    reports = [
        report("controller", "volume", other, since=90),
        report("controller", "volume", "something else", since=60),
        structs.replace(report("controller", "volume", wait, since=30, left=5), why="reworded"),
    ]
    known = wait_reports.RoleReports(reports, asked=True)
    timed = known.add_times(step, "controller", "volume", wait)
    assert (timed.since, timed.until) == (reports[2].since, reports[2].next_try)
    assert known.add_times(step, "controller", "another", wait) is step


async def test_reports_of_other_versions_are_readable(tmp_path: Path) -> None:
    """An older role sends no reason; a newer one may send a reason that is not known here."""
    older = {"role": "node/a", "key": "v", "why": "target is busy", "since": NOW}
    newer = {**older, "reason": "NotInventedYet", "data": {"node": "a", "planet": "b"}, "moon": 1}
    reports = msgspec.json.decode(msgspec.json.encode([older, newer]), type=list[WaitReport])
    wait = Wait(WaitReason.MOUNTED_ON_NODE, WaitData(node="a"))
    assert [(r.why, r.reason, r.is_about(wait)) for r in reports] == [
        ("target is busy", "", False),
        ("target is busy", "NotInventedYet", False),
    ]


def test_every_reason_has_a_sentence() -> None:
    data = WaitData("n", ("o", "p"), ("q",), "c", ("d", "e"), "v", "driver", "class", ("x",))
    for reason in WaitReason:
        sentence = render(reason, data, "why")
        assert sentence
        assert "{" not in sentence
        assert "why" in sentence
    assert set(SENTENCES) == set(WaitReason)


# --- what may not be read is not reported as missing


async def test_a_volume_that_may_not_be_read_is_not_lost() -> None:
    mine, _ = bound_pair("data", "pv")
    answer = await explain_first(mine, unread=["persistentvolumes"])
    assert (answer.waits, answer.answer) == (False, "bound to pv, 1Gi")
    assert answer.unknown[0] == "persistentvolumes: forbidden"


async def test_a_class_that_may_not_be_read_is_not_missing() -> None:
    mine = change(claim("data", cls="gp3"), metadata={"uid": "u"})
    recorded = event(mine, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
    answer = await explain_first(mine, recorded, unread=["storageclasses"])
    assert answer.answer == "waiting for first consumer to be created before binding"


async def test_a_node_that_may_not_be_read_is_not_lost() -> None:
    answer = await explain_first(running("web", on="a"), unread=["nodes"])
    assert (answer.waits, answer.answer) == (False, "running on a, and ready")
    said = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/3 nodes are available: 3 x. preemption: y",
    }
    answer = await explain_first(pod("web", status={"conditions": [said]}), unread=["nodes"])
    assert answer.answer == "0/3 nodes are available: 3 x"
