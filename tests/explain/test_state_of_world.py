"""Desired and actual state, as roles report them and as objects show them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.explain.explain_objects import NOW, attachment, bound_pair, cluster_of, in_use, node, pod, running
from volplane.api.meta import Resource
from volplane.explain.state_of_world import StateReport, StateSource, report_states
from volplane.explain.state_table import render_states
from volplane.explain.wait_reports import RoleAnswers, UnknownRole, ask_all
from volplane.loops.volume_states import ComparedVolume, PendingStep, StateComparison
from volplane.loops.wait_reports import SUFFIX, Question, WaitRegistry, ask, serve_wait_reports

ELSEWHERE = "cannot attach the volume to b: it is attached to a"


def multi_attach() -> list[Resource]:
    claim, disk = bound_pair("data", "pv")
    pods = [running("web", "data", on="a"), pod("next", "data", on="b")]
    return [claim, disk, *pods, attachment("pv", "a"), in_use("a", "pv"), node("b")]


def mounted(name: str, pod: str, pending: PendingStep | None = None) -> ComparedVolume:
    actual = "" if pending else "mounted"
    return ComparedVolume(name, name, "kubernetes.io/csi:d", "a", (pod,), "mounted", actual, pending)


def from_roles(*found: StateComparison) -> RoleAnswers[StateComparison]:
    return RoleAnswers(found, asked=True)


RETRY = PendingStep("no such option", "Retry", NOW - timedelta(seconds=12), NOW + timedelta(seconds=4))
KUBELET = StateComparison("node/a", [mounted("pv", "default/web"), mounted("pv-2", "default/bad", RETRY)])


async def report(*found: StateComparison, only: str = "", only_pending: bool = False) -> StateReport:
    return await report_states(
        cluster_of(*multi_attach()), from_roles(*found), only, only_pending=only_pending
    )


async def test_the_controllers_side_is_derived_from_objects_and_says_what_is_missing() -> None:
    found = await report_states(cluster_of(*multi_attach()), RoleAnswers())
    controller, first, second = found.roles
    assert controller.source is StateSource.API
    assert [(row.node, row.pods, row.actual) for row in controller.volumes] == [
        ("a", ("default/web",), "attached, in use"),
        ("b", ("default/next",), ""),
    ]
    assert [row.pending.text for row in controller.pending if row.pending] == [ELSEWHERE]
    assert "timers" in controller.unknown
    for kubelet in (first, second):
        assert (kubelet.source, kubelet.volumes) == (StateSource.NONE, ())
        assert "--data-dir" in kubelet.unknown
    assert found.waits


async def test_what_may_not_be_read_is_not_guessed() -> None:
    found = await report_states(cluster_of(*multi_attach(), unread=["pods"]), RoleAnswers(), "attachdetach")
    (controller,) = found.roles
    assert (controller.source, controller.volumes, found.waits) == (StateSource.NONE, (), False)
    assert "may be read" in controller.unknown
    assert found.unknown == ["pods: forbidden"]


async def test_a_running_role_is_believed_and_a_silent_one_is_said_to_be_silent() -> None:
    controller, first, second = (await report(KUBELET)).roles
    assert controller.source is StateSource.API  # no controller has answered
    assert (first.source, first.count, len(first.pending)) == (StateSource.ROLE, 2, 1)
    assert (second.source, second.unknown) == (
        StateSource.NONE,
        "its kubelet does not answer: the node is down, or starting",
    )


async def test_one_role_can_be_asked_for_alone() -> None:
    assert [role.role for role in (await report(KUBELET, only="node/a")).roles] == ["node/a"]
    assert [role.role for role in (await report(only="attachdetach")).roles] == ["attachdetach"]


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("node/c", "node c does not exist; nodes: a, b"),
        ("pods", "cannot show pods: write attachdetach, or node/NAME"),
    ],
)
async def test_an_unknown_role_is_refused(only: str, message: str) -> None:
    with pytest.raises(UnknownRole, match=message):
        await report(only=only)


async def test_the_table_shows_each_step_below_its_volume() -> None:
    found = await report(KUBELET, only="node/a")
    assert list(render_states(found)) == [
        "node/a (kubelet): 2 entries, 1 to do",
        "  VOLUME  POD          DESIRED  ACTUAL",
        "  pv      default/web  mounted  mounted",
        "  pv-2    default/bad  mounted  -",
        "    ▶ no such option (since 12s, next try in 4s)",
    ]
    pending = list(render_states(await report(KUBELET, only="node/a", only_pending=True)))
    assert [line for line in pending if "default/web" in line] == []
    assert pending[0] == "node/a (kubelet): 2 entries, 1 to do"


async def test_the_controllers_table_has_nodes() -> None:
    lines = list(render_states(await report(only="attachdetach")))
    assert lines[:5] == [
        "attachdetach (attach/detach controller, derived from the API): 2 entries, 1 to do",
        "  VOLUME  NODE  POD           DESIRED   ACTUAL",
        "  pv      a     default/web   attached  attached, in use",
        "  pv      b     default/next  attached  -",
        f"    ▶ {ELSEWHERE}",
    ]


async def test_states_that_agree_need_nothing() -> None:
    agreed = StateComparison("node/a", [mounted("pv", "default/web")])
    found = await report(agreed, only="node/a")
    assert not found.waits
    assert next(iter(render_states(found))) == "node/a (kubelet): 1 entry, nothing to do"


# --- the socket


async def test_one_socket_answers_several_questions(tmp_path: Path) -> None:
    registry = WaitRegistry()

    async def slowly() -> list[StateComparison]:
        return [KUBELET]

    with registry.reporting(slowly, Question.VOLUMES):
        async with serve_wait_reports(str(tmp_path / f"node-a{SUFFIX}"), registry):
            answers = await ask_all(tmp_path, Question.VOLUMES, StateComparison)
            assert [answer.role for answer in answers.found] == ["node/a"]
            assert (await ask_all(tmp_path, Question.PLUGINS, StateComparison)).found == []
    assert (await ask_all(tmp_path, Question.VOLUMES, StateComparison)).asked is False


async def test_a_role_that_cannot_report_does_not_hide_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = WaitRegistry()

    def fail() -> list[StateComparison]:
        raise KeyError("pv")

    with registry.reporting(fail, Question.VOLUMES), registry.reporting(lambda: [KUBELET], Question.VOLUMES):
        async with serve_wait_reports(str(tmp_path / f"node-a{SUFFIX}"), registry):
            answers = await ask_all(tmp_path, Question.VOLUMES, StateComparison)
    assert [answer.role for answer in answers.found] == ["node/a"]
    assert "a role cannot report its volumes" in caplog.text


async def test_a_question_that_a_role_does_not_know_counts_as_no_answer(tmp_path: Path) -> None:
    path = str(tmp_path / f"node-a{SUFFIX}")
    async with serve_wait_reports(path, WaitRegistry()):
        with pytest.raises(OSError, match="node-a"):
            await ask(path, "weather", StateComparison)  # type: ignore[arg-type]
        assert await ask(path, Question.VOLUMES, StateComparison) == []
