"""The model of a soak test, its rules, its random lives and its shrinker: without a driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from io import StringIO
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import json, structs

from tests.testing.reference_driver import ReferenceDriver
from volplane.csi import v1
from volplane.csi.outcome import Code
from volplane.testing.soak import rules
from volplane.testing.soak.concurrency import keeps_target_busy, may_run_together, select_steps
from volplane.testing.soak.generator import Menu, generate, predict_answer
from volplane.testing.soak.model import UNKNOWN_DATA, Answer, Known, Limits, Model
from volplane.testing.soak.report import SoakDisplay
from volplane.testing.soak.run import SoakFailure, SoakRun
from volplane.testing.soak.send import Sent, read_answer
from volplane.testing.soak.sent_steps import is_sent
from volplane.testing.soak.shrink import shrink
from volplane.testing.soak.steps import NEEDS, WRITE, Fault, Life, Mistake, Source, Step, VolumeKind
from volplane.testing.soak.violation import Rule, Violation

GIB = 1 << 30
OK = Answer(Code.OK)
MENU = Menu(
    Limits(), frozenset(NEEDS), tuple(VolumeKind), clones=True, node_expand=frozenset({VolumeKind.BLOCK})
)
menus = st.builds(
    lambda attach, stage, online, nodes: structs.replace(
        MENU, limits=Limits(attach=attach, stage=stage, online=online, nodes=nodes)
    ),
    *(st.booleans(), st.booleans(), st.booleans(), st.sampled_from((1, 2))),
)


def model_after(*steps: Step, kinds: int = 2, limits: Limits | None = None) -> Model:
    """A model after OK answers of a correct driver."""
    model = Model([VolumeKind.MOUNT] * kinds, limits or Limits())
    for step in steps:
        model.learn([(step, predict_answer(model, step))])
    return model


CREATE, ATTACH, STAGE = Step("CreateVolume"), Step("ControllerPublishVolume"), Step("NodeStageVolume")
PUBLISH, UNPUBLISH = Step("NodePublishVolume"), Step("NodeUnpublishVolume")
UNSTAGE, DETACH, DELETE = Step("NodeUnstageVolume"), Step("ControllerUnpublishVolume"), Step("DeleteVolume")
UP = (CREATE, ATTACH, STAGE, PUBLISH)
CLONE = Step("CreateVolume", volume=1, source=Source.VOLUME, origin=0)
LOST = Fault.LOST_REPLY


@pytest.mark.parametrize(
    ("before", "step", "codes"),
    [
        ((), CREATE, {"OK"}),
        ((), ATTACH, {"NOT_FOUND", "INVALID_ARGUMENT"}),
        ((), DELETE, {"OK"}),
        ((CREATE,), CREATE, {"OK"}),
        ((CREATE,), DETACH, {"OK"}),
        ((CREATE, ATTACH), ATTACH, {"OK"}),
        ((CREATE, ATTACH), Step("ControllerPublishVolume", node=1), {"FAILED_PRECONDITION"}),
        ((CREATE, ATTACH), STAGE, {"OK"}),
        (UP, UNPUBLISH, {"OK"}),
        (UP, PUBLISH, {"OK"}),
        (UP, Step("NodePublishVolume", target=1), {"OK", "FAILED_PRECONDITION"}),
        ((*UP, Step("NodePublishVolume", target=1)), PUBLISH, {"OK"}),
        (UP, DELETE, {"OK", "FAILED_PRECONDITION"}),
        (UP, Step("NodeGetVolumeStats"), {"OK"}),
        ((*UP, UNPUBLISH, UNSTAGE, DETACH), DELETE, {"OK"}),
        ((CREATE, DELETE), ATTACH, {"NOT_FOUND"}),
        ((CREATE, DELETE), Step("CreateSnapshot"), {"NOT_FOUND"}),
        ((CREATE,), Step("CreateVolume", mistake=Mistake.OTHER_SIZE), {"ALREADY_EXISTS"}),
        ((CREATE, CLONE), structs.replace(CLONE, mistake=Mistake.OTHER_SIZE), {"ALREADY_EXISTS"}),
        (
            (CREATE, CLONE, DELETE),
            structs.replace(CLONE, mistake=Mistake.OTHER_SIZE),
            {"ALREADY_EXISTS", "NOT_FOUND"},
        ),
        ((CREATE,), Step("ControllerPublishVolume", mistake=Mistake.NO_CAPABILITY), {"INVALID_ARGUMENT"}),
        ((CREATE,), Step("ControllerPublishVolume", mistake=Mistake.UNKNOWN_NODE), {"NOT_FOUND"}),
        (
            (CREATE, structs.replace(ATTACH, fault=LOST)),
            Step("ControllerPublishVolume", node=1),
            {"OK", "FAILED_PRECONDITION"},
        ),
        (
            (CREATE, Step("CreateSnapshot")),
            Step("CreateSnapshot", mistake=Mistake.UNKNOWN_VOLUME),
            {"NOT_FOUND", "INVALID_ARGUMENT", "ALREADY_EXISTS"},
        ),
        (
            (CREATE, Step("CreateSnapshot")),
            DELETE,
            {"OK", "FAILED_PRECONDITION"},
        ),
    ],
)
def test_the_rules_allow_what_the_specification_allows(
    before: tuple[Step, ...], step: Step, codes: set[str]
) -> None:
    assert {code.name for code in rules.allowed_codes(model_after(*before), step)} == codes


def test_a_shared_volume_may_have_a_second_target() -> None:
    model = Model([VolumeKind.SHARED], Limits())
    for step in UP:
        model.learn([(step, predict_answer(model, step))])
    assert rules.allowed_codes(model, Step("NodePublishVolume", target=1)) == {Code.OK}


def test_a_node_that_is_full_may_say_so_before_it_sees_that_the_volume_is_elsewhere() -> None:
    other = Step("ControllerPublishVolume", volume=1, node=1)
    model = model_after(
        CREATE, Step("CreateVolume", volume=1), ATTACH, other, limits=Limits(volumes_per_node=1)
    )
    codes = rules.allowed_codes(model, Step("ControllerPublishVolume", node=1))
    assert codes == {Code.FAILED_PRECONDITION, Code.RESOURCE_EXHAUSTED}


@pytest.mark.parametrize(
    ("before", "step"), [((CREATE,), STAGE), (UP, UNSTAGE), (UP, DETACH)], ids=["stage", "unstage", "detach"]
)
def test_a_call_in_the_wrong_order_may_fail_with_any_code_of_the_driver(
    before: tuple[Step, ...], step: Step
) -> None:
    codes = rules.allowed_codes(model_after(*before), step)
    assert {Code.OK, Code.FAILED_PRECONDITION, Code.INTERNAL} <= codes
    assert not {Code.UNAVAILABLE, Code.UNIMPLEMENTED} & codes


def test_a_volume_is_never_mounted_on_two_nodes() -> None:
    model = model_after(*UP)
    assert not is_sent(model, Step("NodeStageVolume", node=1))
    assert is_sent(model, Step("ControllerPublishVolume", node=1))


def test_a_call_without_an_answer_is_uncertain_until_it_is_repeated() -> None:
    model = model_after(CREATE, ATTACH, structs.replace(STAGE, fault=LOST))
    assert model.knowledge("staged", 0, 0) is Known.MAYBE
    model.learn([(STAGE, OK)])
    assert model.knowledge("staged", 0, 0) is Known.YES


def test_a_volume_without_a_known_id_is_created_again_before_other_calls() -> None:
    model = model_after(structs.replace(CREATE, fault=LOST))
    assert not is_sent(model, ATTACH)
    assert not is_sent(model, DELETE)
    assert model.next_teardown_step() == CREATE


def test_a_volume_that_was_perhaps_deleted_and_created_again_has_perhaps_another_id() -> None:
    model = model_after(CREATE, structs.replace(DELETE, fault=LOST), structs.replace(CREATE, fault=LOST))
    assert not is_sent(model, DELETE)  # with the old id it would leave the new volume behind
    assert model.next_teardown_step() == CREATE
    model.learn([(CREATE, Answer(Code.OK, id="new"))])
    assert is_sent(model, DELETE)
    assert model.next_teardown_step() == DELETE


def test_a_volume_without_an_id_whose_source_is_gone_was_never_created() -> None:
    model = model_after(CREATE, DELETE, structs.replace(CLONE, fault=LOST))
    again = model.next_teardown_step()
    assert again == Step("CreateVolume", volume=1)
    model.learn([(again, Answer(Code.NOT_FOUND))])
    assert model.next_teardown_step() is None


def test_a_copy_whose_source_is_gone_has_its_old_id_or_does_not_exist() -> None:
    deleted, created = Step("DeleteVolume", volume=1, fault=LOST), structs.replace(CLONE, fault=LOST)
    model = model_after(CREATE, CLONE, DELETE, deleted, created)
    again = model.next_teardown_step()
    assert again == Step("CreateVolume", volume=1)
    model.learn([(again, Answer(Code.NOT_FOUND))])
    assert model.next_teardown_step() == Step("DeleteVolume", volume=1)


@pytest.mark.parametrize("fault", [Fault.NONE, LOST])
def test_a_snapshot_of_an_earlier_volume_of_its_name_does_not_keep_a_volume(fault: Fault) -> None:
    restored = Step("CreateVolume", source=Source.SNAPSHOT)
    removed = Step("DeleteSnapshot", fault=fault)
    model = model_after(CREATE, Step("CreateSnapshot"), DELETE, restored)
    model.learn([(removed, Answer(Code.FAILED_PRECONDITION if fault is Fault.NONE else None))])
    assert model.next_teardown_step() == DELETE
    assert is_sent(model, DELETE)
    model.learn([(DELETE, OK)])
    assert model.next_teardown_step() == Step("DeleteSnapshot")


def test_unstage_before_unpublish_suspends_the_data_until_the_volume_was_taken_down() -> None:
    model = model_after(*UP)
    model.wrote(0, b"data")
    assert list(model.expected_data()) == [(0, 0, 0, b"data")]
    model.learn([(UNSTAGE, OK)])
    assert list(model.expected_data()) == []
    assert not is_sent(model, STAGE)
    for step in (UNPUBLISH, UNSTAGE, DETACH, ATTACH, STAGE, PUBLISH):
        model.learn([(step, OK)])
    assert list(model.expected_data()) == [(0, 0, 0, b"data")]


@pytest.mark.parametrize("step", [UNSTAGE, DETACH], ids=["unstage", "detach"])
def test_a_query_beside_an_unstage_or_detach_that_comes_too_early_may_fail(step: Step) -> None:
    stats = (Step("NodeGetVolumeStats"), Answer(Code.NOT_FOUND))
    assert rules.judge_moment(model_after(*UP), [(step, OK), stats]) is None
    assert rules.judge_moment(model_after(*UP), [(Step("Probe"), OK), stats]) is not None


@pytest.mark.parametrize("step", [UNSTAGE, DETACH], ids=["unstage", "detach"])
def test_an_early_unstage_or_detach_without_an_answer_suspends_the_data(step: Step) -> None:
    model = model_after(*UP)
    model.wrote(0, b"data")
    model.learn([(step, Answer(None))])
    assert list(model.expected_data()) == []


def test_a_volume_whose_deletion_has_no_answer_may_be_created_again_in_its_first_size() -> None:
    expand = Step("ControllerExpandVolume", size=2)
    model = model_after(CREATE, expand, structs.replace(DELETE, fault=LOST))
    created = [(CREATE, Answer(Code.OK, id="new", capacity=GIB))]
    assert rules.judge_moment(model, created) is None
    model.learn(created)
    assert rules.judge_moment(model, [(Step("ListVolumes"), Answer(Code.OK, listed={"new": GIB}))]) is None


def test_the_data_is_expected_after_a_refused_deletion_and_not_after_one_without_an_answer() -> None:
    model = model_after(*UP)
    model.wrote(0, b"data")
    model.learn([(DELETE, Answer(Code.FAILED_PRECONDITION))])
    assert list(model.expected_data()) == [(0, 0, 0, b"data")]
    assert model.volumes_with_data() == [0]
    model.learn([(DELETE, Answer(None))])
    assert list(model.expected_data()) == []


@pytest.mark.parametrize("written", [False, True])
def test_a_clone_without_an_answer_has_the_data_before_or_after_a_write(written: bool) -> None:
    model = model_after(CREATE)
    model.wrote(0, b"one")
    model.learn([(CLONE, Answer(None))])
    if written:
        model.wrote(0, b"two")
    model.learn([(CLONE, Answer(Code.OK, id="clone", capacity=GIB))])
    assert model.data[1] == (UNKNOWN_DATA if written else b"one")


def test_a_source_is_not_expanded_before_its_clone_has_an_answer() -> None:
    model, expand = model_after(CREATE), Step("ControllerExpandVolume", size=2)
    assert is_sent(model, expand)
    model.learn([(CLONE, Answer(None))])
    assert not is_sent(model, expand)


def test_a_clone_that_is_perhaps_deleted_may_be_too_small_for_its_expanded_source() -> None:
    expand = Step("ControllerExpandVolume", size=2)
    model = model_after(CREATE, CLONE, expand)
    assert rules.allowed_codes(model, CLONE) == {Code.OK}
    model.learn([(Step("DeleteVolume", volume=1), Answer(None))])
    assert rules.allowed_codes(model, CLONE) == {Code.OK, Code.OUT_OF_RANGE}


def test_the_source_of_an_abandoned_volume_is_not_deleted_again_and_again() -> None:
    restore = Step("CreateVolume", volume=1, source=Source.SNAPSHOT)
    model = model_after(CREATE, Step("CreateSnapshot"), restore, Step("ControllerPublishVolume", volume=1))
    model.learn([(Step("DeleteVolume", volume=1), Answer(None))])
    assert model.abandoned == {1}
    assert model.next_teardown_step() is None


def test_a_snapshot_between_two_writes_has_the_first_data() -> None:
    model = model_after(*UP)
    model.wrote(0, b"one")
    model.learn([(Step("CreateSnapshot"), Answer(Code.OK, id="s", source="volume-0"))])
    model.wrote(0, b"two")
    assert model.snapshot_data[0] == b"one"


def test_another_id_for_the_same_name_is_wrong() -> None:
    wrong = rules.judge_content(model_after(CREATE), CREATE, Answer(Code.OK, id="other", capacity=GIB))
    assert "the name has the volume volume-0, and the repeated call returns other" in wrong


def test_a_volume_that_becomes_smaller_is_wrong() -> None:
    model = model_after(CREATE, Step("ControllerExpandVolume", size=2))
    listed = Answer(Code.OK, listed={"volume-0": GIB})
    assert f"has {GIB} bytes, before it had {2 * GIB}" in rules.judge_content(
        model, Step("ListVolumes"), listed
    )


def test_a_deleted_volume_that_is_listed_is_wrong() -> None:
    model, listed = model_after(CREATE, DELETE), Answer(Code.OK, listed={"volume-0": GIB})
    assert "deleted and still listed" in rules.judge_content(model, Step("ListVolumes"), listed)


def test_concurrent_opposite_calls_leave_an_uncertain_state() -> None:
    model = model_after(CREATE, ATTACH)
    moment = [(STAGE, OK), (UNSTAGE, OK)]
    assert rules.judge_moment(model, moment) is None
    model.learn(moment)
    assert model.knowledge("staged", 0, 0) is Known.MAYBE


def test_concurrent_creates_of_one_name_return_one_volume() -> None:
    model = Model([VolumeKind.MOUNT], Limits())
    answers = [(CREATE, Answer(Code.OK, id=id, capacity=GIB)) for id in ("a", "b")]
    found = rules.judge_moment(model, answers)
    assert found is not None
    assert "concurrent calls return a and b" in found[1]


def test_concurrent_creates_of_a_deleted_name_do_not_have_its_earlier_size() -> None:
    model = model_after(Step("CreateVolume", size=3), DELETE)
    answers = [(CREATE, Answer(Code.OK, id="new", capacity=GIB))] * 2
    assert rules.judge_moment(model, answers) is None


def test_a_write_and_a_snapshot_of_one_volume_do_not_run_together() -> None:
    model = model_after(*UP)
    assert not may_run_together(model, Step(WRITE), Step("CreateSnapshot"))
    assert may_run_together(model, Step(WRITE), Step("CreateVolume", volume=1))
    assert select_steps(model, (Step("CreateSnapshot"), Step(WRITE))) == [Step("CreateSnapshot")]


@pytest.mark.parametrize(("unknown", "code"), [(True, None), (False, Code.OK)])
def test_a_snapshot_that_is_still_copied_has_no_answer_after_a_fault(
    unknown: bool, code: Code | None
) -> None:
    copying = Sent(v1.CreateSnapshotResponse(snapshot=v1.Snapshot(snapshot_id="s", ready_to_use=False)))
    assert read_answer("CreateSnapshot", copying, unknown=unknown).code is code
    ready = Sent(v1.CreateSnapshotResponse(snapshot=v1.Snapshot(snapshot_id="s", ready_to_use=True)))
    assert read_answer("CreateSnapshot", ready, unknown=unknown).code is Code.OK


@pytest.mark.parametrize(
    ("reruns", "is_reproduced", "words"),
    [(0, False, "not rerun"), (5, False, "5 reruns: none failed in this way"), (34, True, "34 reruns")],
)
def test_the_report_says_how_often_a_life_was_rerun(reruns: int, is_reproduced: bool, words: str) -> None:
    life = Life((VolumeKind.MOUNT,), ((CREATE,),))
    found = Violation(Rule.ANSWER, "CreateVolume", "wrong", 0)
    failure = SoakFailure(found, 7, life, life, is_reproduced, reruns, [], {})
    out = StringIO()
    SoakDisplay(out, seconds=60).end(SoakRun(failure=failure))
    assert f"life 7 of 1 steps, {words}" in out.getvalue()
    assert "a life failed" in out.getvalue()


# --- properties


class ReferenceLife:
    """A life on the reference driver: no answer and no data may be judged wrong."""

    def __init__(self, random: Random, life: Life, menu: Menu) -> None:
        self._random, self._life = random, life
        self.model = Model(life.volumes, menu.limits)
        self.driver = ReferenceDriver(random, menu.limits)

    def run(self) -> None:
        for moment in self._life.moments:
            self._run_moment(select_steps(self.model, moment))
        for volume in self.model.volumes_with_data():
            for next_step in (self.model.next_removal_step, self.model.next_verify_step):
                self._run_while(partial(next_step, volume))
        self._run_while(self.model.next_teardown_step)

    def _run_while(self, next_step: Callable[[], Step | None]) -> None:
        for _ in range(100):
            if (step := next_step()) is None:
                return
            self._run_moment([step])
        pytest.fail(f"{next_step()} is repeated without an end")

    def _run_moment(self, steps: list[Step]) -> None:
        answers: dict[int, Answer] = {}
        for number in self._random.sample(range(len(steps)), len(steps)):  # one after the other, in any order
            step = steps[number]
            if step.call == WRITE:
                data = self._random.randbytes(8)
                self.driver.write(self.model, step, data)
                self.model.wrote(step.volume, data)
            else:
                answers[number] = self.driver.call(self.model, step)
        answered = [(steps[number], answers[number]) for number in sorted(answers)]
        assert rules.judge_moment(self.model, answered) is None, answered
        self.model.learn(answered)
        for volume, node, target, expected in self.model.expected_data():
            id = self.model.ids[volume]
            assert (id, node, target) in self.driver.published, answered
            assert self.driver.volumes[id].data == expected, answered


@given(seed=st.integers(0, 1 << 32), menu=menus)
@settings(max_examples=200, deadline=None)
def test_a_correct_driver_passes_every_life(seed: int, menu: Menu) -> None:
    """Whatever the specification leaves to it; and every life can be taken down completely."""
    random = Random(seed)
    life = ReferenceLife(random, generate(random, menu), menu)
    life.run()
    if not life.model.abandoned:
        assert life.driver.leftovers() == []


@given(seed=st.integers(0, 1 << 32), menu=menus)
@settings(max_examples=30, deadline=None)
def test_a_life_is_repeatable_and_uses_only_what_the_driver_has(seed: int, menu: Menu) -> None:
    menu = structs.replace(menu, calls=menu.calls - {"CreateSnapshot", "DeleteSnapshot"}, skip="kill")
    life = generate(Random(seed), menu)
    assert generate(Random(seed), menu) == life
    assert json.decode(json.encode(life), type=Life) == life
    assert not [step for step in life.steps() if "Snapshot" in step.call and step.call != "ListSnapshots"]
    assert not [step for step in life.steps() if "kill" in step.fault]
    if menu.limits.nodes == 1:
        assert not [step for step in life.steps() if step.node]


def test_lives_use_every_call_fault_and_mistake() -> None:
    steps = [step for seed in range(400) for step in generate(Random(seed), MENU).steps()]
    assert {step.call for step in steps} >= NEEDS.keys() - {"NodeGetInfo"}
    assert {step.fault for step in steps} == set(Fault)
    assert {step.mistake for step in steps} == set(Mistake)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None)
def test_a_shrunk_life_fails_and_cannot_be_shortened(seed: int) -> None:
    life = generate(Random(seed), MENU)
    wanted = [step.call for step in life.steps()][-1]

    def has_bug(candidate: Life) -> bool:
        calls = [step.call for step in candidate.steps()]
        return "CreateVolume" in calls and wanted in calls[calls.index("CreateVolume") :]

    async def fails(candidate: Life) -> bool:
        return has_bug(candidate)

    assume(has_bug(life))
    short = asyncio.run(shrink(life, fails))
    assert has_bug(short)
    assert len(short.steps()) == (1 if wanted == "CreateVolume" else 2)
    assert all(step.fault is Fault.NONE and step.node == 0 for step in short.steps())
    assert len(short.volumes) <= len(life.volumes)


async def test_shrinking_keeps_a_fault_that_is_needed_and_drops_the_rest() -> None:
    kill = structs.replace(CREATE, fault=Fault.KILL_DURING, delay=3.0)
    moments = ((Step("Probe"), kill), (Step("ListVolumes"),), (Step("CreateVolume", volume=1),))
    life = Life((VolumeKind.BLOCK, VolumeKind.MOUNT, VolumeKind.MOUNT), moments)

    async def fails(candidate: Life) -> bool:
        return any(step.fault in (Fault.KILL_DURING, Fault.KILL_AFTER) for step in candidate.steps())

    short = await shrink(life, fails)
    assert short == Life((VolumeKind.MOUNT,), ((structs.replace(CREATE, fault=Fault.KILL_AFTER),),))


async def test_shrinking_ends_when_its_time_is_over() -> None:
    life, tried = generate(Random(1), MENU), list[Life]()

    async def fails(candidate: Life) -> bool:
        tried.append(candidate)
        return False

    assert await shrink(life, fails, lambda: len(tried) >= 3) == life
    assert len(tried) == 3


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Step("NodeGetVolumeStats", volume=0, node=1, target=1), True),
        (Step("NodeGetVolumeStats", volume=0, node=0), False),
        (Step("NodeGetVolumeStats", volume=1, node=1), False),
        (Step("NodePublishVolume", volume=0, node=1, target=1), False),
    ],
    ids=["its statistics", "on another node", "of another volume", "another call"],
)
def test_only_statistics_may_keep_a_target_busy(other: Step, expected: bool) -> None:
    unpublish = Step("NodeUnpublishVolume", volume=0, node=1)
    assert keeps_target_busy(unpublish, [unpublish, other]) is expected
    assert not keeps_target_busy(other, [unpublish, other])


@pytest.mark.parametrize(
    ("copy", "answer", "expected"),
    [
        (Step("CreateSnapshot", volume=0), Answer(None), True),
        (Step("CreateSnapshot", volume=0), Answer(Code.OK, id="s"), False),
        (Step("CreateVolume", volume=1, source=Source.VOLUME, origin=0), Answer(None), True),
        (Step("CreateVolume", volume=1, source=Source.VOLUME, origin=0), Answer(Code.OK, id="w"), False),
    ],
    ids=["snapshot without an answer", "snapshot", "clone without an answer", "clone"],
)
def test_a_copy_without_an_answer_may_still_be_made(copy: Step, answer: Answer, expected: bool) -> None:
    model = Model((VolumeKind.MOUNT, VolumeKind.MOUNT), Limits())
    model.learn([(Step("CreateVolume"), Answer(Code.OK, id="v", capacity=1 << 30))])
    model.learn([(copy, answer)])
    assert model.may_be_copied(0) is expected
    assert not model.may_be_copied(1)
