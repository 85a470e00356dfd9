"""The sequence diagram, the time line and the comparison of journeys: pure functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane.explain.journey.comparison import pair_steps
from volplane.explain.journey.diagram import (
    DiagramColumns,
    describe_arrow,
    describe_step,
    make_axis,
    render_svg,
)
from volplane.explain.journey.model import (
    Journey,
    JourneyOutcome,
    JourneyStep,
    Lane,
    Phase,
    StateChange,
    StepOutcome,
)
from volplane.explain.journey.render_html import render_html
from volplane.explain.journey.time_axis import GAP_WIDTH, TimeAxis

BEGAN = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


def step(
    milliseconds: float,
    took: float | None = 10.0,
    *,
    lane: Lane = Lane.PROVISIONER,
    to: Lane = Lane.DRIVER_CONTROLLER,
    what: str = "CreateVolume",
    component: str = "csi-provisioner",
    subject: str = "pvc/default/data",
    outcome: StepOutcome = StepOutcome.OK,
    id: str = "",
    changes: tuple[StateChange, ...] = (),
) -> JourneyStep:
    return JourneyStep(
        at=BEGAN + timedelta(milliseconds=milliseconds),
        seconds=None if took is None else took / 1000,
        lane=lane,
        to=to,
        component=component,
        what=what,
        subject=subject,
        phase=Phase.PROVISION,
        outcome=outcome,
        id=id,
        changes=changes,
    )


# --- time line


def test_without_idle_time_the_line_is_proportional() -> None:
    axis = make_axis([step(0, 100), step(50, 150)])
    assert [axis.locate(BEGAN + timedelta(milliseconds=ms)) for ms in (0, 50, 200)] == [0.0, 0.25, 1.0]
    assert axis.gaps == []


def test_idle_time_is_shortened_to_a_gap() -> None:
    axis = make_axis([step(0, 100), step(3_600_000, 100)])
    ((at, length),) = axis.gaps
    assert at == pytest.approx(0.5)
    assert length == timedelta(seconds=3600) - timedelta(milliseconds=100)
    assert axis.locate(BEGAN + timedelta(milliseconds=100)) == pytest.approx(0.5 - GAP_WIDTH / 2)
    assert axis.locate(BEGAN + timedelta(minutes=30)) == pytest.approx(0.5 - GAP_WIDTH / 2)
    assert axis.locate(BEGAN + timedelta(milliseconds=3_600_100)) == pytest.approx(1.0)


def test_steps_without_duration_have_a_place_too() -> None:
    axis = make_axis([step(0, 0), step(60_000, 0)])
    assert axis.locate(BEGAN) < axis.locate(BEGAN + timedelta(minutes=1)) <= 1.0
    assert make_axis([]).locate(BEGAN) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e5)), min_size=1, max_size=20))
def test_the_line_keeps_the_order_and_stays_between_0_and_1(times: list[tuple[float, float]]) -> None:
    axis = make_axis([step(at, took) for at, took in times])
    moments = sorted(BEGAN + timedelta(milliseconds=each) for at, took in times for each in (at, at + took))
    places = [axis.locate(moment) for moment in moments]
    assert places == sorted(places)
    assert places[0] >= 0.0
    assert places[-1] <= 1.0


@pytest.mark.parametrize(
    ("took", "ticks"), [(100, [0.05, 0.1]), (1000, [0.5, 1.0]), (7, [0.002, 0.004, 0.006])]
)
def test_ticks_are_at_round_times(took: float, ticks: list[float]) -> None:
    assert [seconds for _, seconds in make_axis([step(0, took)]).list_ticks()] == pytest.approx(ticks)


def test_an_axis_without_parts_has_no_ticks() -> None:
    assert TimeAxis(()).list_ticks() == []


# --- diagram


def test_a_picture_is_well_formed_and_has_a_row_for_each_step() -> None:
    steps = [step(0), step(5, lane=Lane.KUBELET, to=Lane.KUBELET, what="MountVolume"), step(9, None)]
    picture = ElementTree.fromstring(render_svg(steps, "Journey"))
    labels = [e.text for e in picture.iter(f"{SVG}text") if e.get("class") == "label"]
    assert labels == ["CreateVolume", "MountVolume", "CreateVolume"]
    assert len([e for e in picture.iter(f"{SVG}rect") if "bar" in e.get("class", "").split()]) == 3
    assert picture.get("role") == "img"


def test_lanes_stand_in_the_order_of_the_articles_and_usual_ones_from_the_start() -> None:
    columns = DiagramColumns([step(0)], always=(Lane.USER, Lane.CONTAINER))
    assert columns.lanes == (Lane.USER, Lane.PROVISIONER, Lane.DRIVER_CONTROLLER, Lane.CONTAINER)
    places = [columns.locate(lane) for lane in columns.lanes]
    assert places == [12.5, 37.5, 62.5, 87.5]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (StepOutcome.OK, "ok"),
        (StepOutcome.FAILED, "bad"),
        (StepOutcome.CUT_OFF, "bad"),
        (StepOutcome.IN_PROGRESS, "open"),
    ],
)
def test_an_arrow_shows_how_its_step_ended(outcome: StepOutcome, state: str) -> None:
    made = step(0, outcome=outcome)
    assert f'class="arrow {state}"' in DiagramColumns([made]).draw_row(made)


def test_text_of_users_stays_text() -> None:
    hostile = step(0, what="<script>alert(1)</script>", subject='pvc/"><b>/x')
    text = render_svg([hostile], "<i>")
    ElementTree.fromstring(text)
    assert "<script" not in text
    journey = Journey("pvc/<b>/x", "u", "t", JourneyOutcome.PENDING, steps=(hostile,), unknown=("<u>",))
    page = "\n".join(render_html([journey], [journey.steps]))
    assert "<script" not in page
    assert "<b>" not in page.replace("<b></b>", "")
    assert "<u>" not in page


@pytest.mark.parametrize(
    ("verb", "subject", "fields", "arrow"),
    [
        (
            "create",
            "pvc/default/data",
            [("exists", "", "yes"), ("status.phase", "", "Pending")],
            "create pvc",
        ),
        ("patch", "node/w", [("status.volumesInUse[csi^v]", "", "yes")], "node volumesInUse"),
        ("patch", "pod/default/web", [("status.phase", "Pending", "Running")], "pod Running"),
        (
            "patch",
            "pvc/default/data",
            [("metadata.annotations[selected-node]", "", "w")],
            "pvc selected-node",
        ),
        ("patch", "va/x", [("metadata.finalizers[a]", "", "yes")], "va finalizers"),
        ("patch", "va/x", [("status.attached", "", "true")], "va attached"),
        ("patch", "va/x", [("status.attached", "true", "")], "va not attached"),
        ("patch", "va/x", [("metadata.finalizers[a]", "yes", ""), ("exists", "yes", "")], "va removed"),
        ("delete", "pod/default/web", [("metadata.deletionTimestamp", "", "now")], "delete pod"),
        ("patch", "pod/default/web", [], "patch pod"),
    ],
)
def test_an_arrow_of_a_write_says_what_was_written(
    verb: str, subject: str, fields: list[tuple[str, str, str]], arrow: str
) -> None:
    changes = tuple(StateChange(*each) for each in fields)
    assert (
        describe_arrow(step(0, component="apiserver", what=verb, subject=subject, changes=changes)) == arrow
    )


def test_a_step_in_words_says_who_asks_whom() -> None:
    assert describe_step(step(0)) == "csi-provisioner to driver controller: CreateVolume pvc/default/data"
    write = step(0, lane=Lane.USER, to=Lane.APISERVER, component="apiserver", what="create")
    assert describe_step(write) == "kubectl to API server: create pvc/default/data"
    patch = step(
        0,
        lane=Lane.KUBELET,
        to=Lane.APISERVER,
        component="apiserver",
        what="patch",
        subject="node/worker-1",
        changes=(StateChange("status.volumesInUse[x]", "", "yes"),),
    )
    assert describe_step(patch) == "kubelet to API server: patch node/worker-1 (volumesInUse)"
    own = step(0, lane=Lane.KUBELET, to=Lane.KUBELET, component="kubelet", outcome=StepOutcome.FAILED)
    assert describe_step(own) == "kubelet: CreateVolume pvc/default/data, failed"


# --- comparison


def names(pairs: list[tuple[JourneyStep | None, JourneyStep | None]]) -> list[tuple[str, str]]:
    return [(a.what if a else "", b.what if b else "") for a, b in pairs]


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("abc", "abc", ["aa", "bb", "cc"]),
        ("abc", "ac", ["aa", "b-", "cc"]),
        ("ac", "abc", ["aa", "-b", "cc"]),
        ("abcd", "acbd", ["aa", "-c", "bb", "c-", "dd"]),
        ("abXYd", "abYXd", ["aa", "bb", "-Y", "XX", "Y-", "dd"]),
        ("ab", "", ["a-", "b-"]),
        ("", "", []),
    ],
)
def test_the_same_steps_stand_beside_each_other(first: str, second: str, pairs: list[str]) -> None:
    found = pair_steps(*([step(n, what=what) for n, what in enumerate(each)] for each in (first, second)))
    shown = [(p.first.what if p.first else "-") + (p.second.what if p.second else "-") for p in found]
    assert sorted(shown) == sorted(pairs)
    assert [s[0] for s in shown if s[0] != "-"] == list(first)


def test_objects_of_other_names_are_the_same_step_but_other_kinds_are_not() -> None:
    first = step(0, subject="pvc/default/a")
    assert pair_steps([first], [step(0, subject="pvc/default/b")])[0].second is not None
    assert len(pair_steps([first], [step(0, subject="pod/default/b")])) == 2


@pytest.mark.parametrize(("first", "second", "slower"), [(10, 30, 0.02), (30, 10, -0.02), (None, 10, None)])
def test_a_pair_says_how_much_slower_the_second_was(
    first: float | None, second: float | None, slower: float | None
) -> None:
    (pair,) = pair_steps([step(0, first)], [step(0, second)])
    assert pair.slower == (pytest.approx(slower) if slower is not None else None)
    (single,) = pair_steps([step(0)], [])
    assert single.slower is None
    assert single.step == step(0)
