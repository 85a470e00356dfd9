"""Job: situation → steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from volplane.api import codec
from volplane.api.batch import Job, JobStatus, UncountedTerminatedPods
from volplane.api.core import EnvVar, Pod, PodStatus
from volplane.base import clock
from volplane.controllers.job import completion_indexes as indexes
from volplane.controllers.job import plan as jobs
from volplane.controllers.job.index_failures import FAILURE_COUNT, IGNORED_COUNT
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait, WaitReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stamp(ago: float) -> str:
    return clock.stamp(NOW - timedelta(seconds=ago))


def job(status: dict[str, Any] | None = None, **spec: Any) -> Job:
    whole = {
        "metadata": {"name": "j", "namespace": "ns", "uid": "job", **spec.pop("metadata", {})},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 6,
            "completionMode": "NonIndexed",
            "podReplacementPolicy": "TerminatingOrFailed",
            "selector": {},
            "template": {"spec": {"containers": [{"name": "c"}], "restartPolicy": "Never"}},
            **spec,
        },
        "status": {"startTime": stamp(0), **(status or {})},
    }
    return codec.convert(Job, whole)


def pod(
    name: str,
    phase: str = "Running",
    *,
    tracked: bool = True,
    going: bool = False,
    index: int | None = None,
    ago: float = 3600.0,
    exit_code: int = 1,
) -> Pod:
    made = jobs.new_pod(job(), index)
    ended = {"exitCode": exit_code if phase == "Failed" else 0, "finishedAt": stamp(ago)}
    statuses = [{"name": "c", "state": {"terminated": ended}}] if phase in ("Failed", "Succeeded") else []
    return structs.replace(
        made,
        metadata=structs.replace(
            made.metadata,
            name=name,
            namespace="ns",
            uid=name,
            creation_timestamp=stamp(ago),
            finalizers=made.metadata.finalizers if tracked else (),
            deletion_timestamp=stamp(0) if going else None,
        ),
        status=codec.convert(PodStatus, {"phase": phase, "containerStatuses": statuses}),
    )


def describe_steps(steps: list[jobs.Step]) -> list[str]:
    words = {
        jobs.CreatePod: "+",
        jobs.DeletePod: "-",
        jobs.DiscardPod: "x",
        jobs.RemoveTrackingFinalizer: "~",
    }
    said: list[str] = []
    for step in steps:
        match step:
            case jobs.CreatePod(made):
                said.append("+" + made.metadata.annotations.get(indexes.ANNOTATION, ""))
            case jobs.DeletePod(it) | jobs.DiscardPod(it) | jobs.RemoveTrackingFinalizer(it):
                said.append(words[type(step)] + it.name)
            case _:
                pass
    return said


def status_of(steps: list[Any]) -> JobStatus:
    (report,) = [s for s in steps if isinstance(s, jobs.SetJobStatus)]
    return report.status


def run(wanted: Job, *pods: Pod) -> list[Any]:
    return list(jobs.plan(wanted, pods, NOW))


@pytest.mark.parametrize(
    ("wanted", "pods", "expected"),
    [
        pytest.param(job(), [], ["+"], id="one pod by default"),
        pytest.param(job(), [pod("a")], [], id="it runs"),
        pytest.param(job(completions=5, parallelism=2), [], ["+", "+"], id="no more than parallelism"),
        pytest.param(
            job({"succeeded": 4}, completions=5, parallelism=3), [], ["+"], id="no more than what is left"
        ),
        pytest.param(
            job(completions=5, parallelism=1), [pod("a"), pod("b", "Pending")], ["xb"], id="one too many"
        ),
        pytest.param(job(parallelism=0), [pod("a")], ["xa"], id="parallelism zero is a pause"),
        pytest.param(job(completions=None, parallelism=3), [], ["+", "+", "+"], id="a work queue"),
        pytest.param(
            job({"succeeded": 1}, completions=None, parallelism=3),
            [pod("a")],
            [],
            id="a work queue that saw a success lets the others finish",
        ),
        pytest.param(job(), [pod("a", "Failed")], ["~a", "+"], id="a failed pod is counted and replaced"),
        pytest.param(job(), [pod("a", going=True)], ["~a"], id="one that goes counts as failed"),
        pytest.param(
            job(podReplacementPolicy="Failed"), [pod("a", going=True)], [], id="unless its end is waited for"
        ),
        pytest.param(job(suspend=True), [pod("a")], ["xa"], id="suspended: nothing runs"),
        pytest.param(job(suspend=True), [], [], id="suspended from the start"),
        pytest.param(job(), [pod("a", "Failed", ago=3)], ["~a"], id="the next one waits after a failure"),
        pytest.param(
            job(metadata={"deletionTimestamp": stamp(0)}), [pod("a")], ["~a"], id="a job that goes lets go"
        ),
    ],
)
def test_how_many_run(wanted: Job, pods: list[Pod], expected: list[str]) -> None:
    assert describe_steps(run(wanted, *pods)) == expected


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [
        pytest.param([1], 9.0, id="ten seconds after the first"),
        pytest.param([20, 1], 19.0, id="twice that after the second"),
        pytest.param([1] * 10, 599.0, id="never more than ten minutes"),
    ],
)
def test_the_pause_doubles_with_each_failure(failures: list[int], seconds: float) -> None:
    pods = [pod(f"p{n}", "Failed", ago=ago, tracked=False) for n, ago in enumerate(failures)]
    steps = run(job({"failed": len(failures)}, backoffLimit=99), *pods)
    assert [s.seconds for s in steps if isinstance(s, Wait)] == [seconds]


def test_a_success_in_between_resets_the_pause() -> None:
    pods = [
        pod("a", "Failed", ago=9, tracked=False),
        pod("b", "Failed", ago=8, tracked=False),
        pod("c", "Succeeded", ago=7, tracked=False),
    ]
    assert describe_steps(run(job({"failed": 2, "succeeded": 1}, completions=5), *pods)) == ["+"]


# Counting


def test_a_pod_is_noted_before_it_is_let_go_and_counted_after() -> None:
    first = run(job(completions=2), pod("a", "Succeeded"))
    status = status_of(first)
    assert status.uncounted_terminated_pods == UncountedTerminatedPods(succeeded=("a",))
    assert status.succeeded == 0
    assert describe_steps(first) == ["~a", "+"]
    # The finalizer did not go yet: nothing is counted twice, and it is tried again.
    noted = structs.replace(job(completions=2), status=status)
    again = run(noted, pod("a", "Succeeded"), pod("b"))
    assert describe_steps(again) == ["~a"]
    assert status_of(again).succeeded == 0
    # It is gone, and even the pod may be.
    for left in ([pod("a", "Succeeded", tracked=False)], []):
        counted = status_of(run(noted, *left, pod("b")))
        assert counted.succeeded == 1
        assert counted.uncounted_terminated_pods == UncountedTerminatedPods()


def test_a_job_ends_in_two_steps() -> None:
    first = run(job(), pod("a", "Succeeded"))
    assert [c.type for c in status_of(first).conditions] == ["SuccessCriteriaMet"]
    assert describe_steps(first) == ["~a"]
    met = structs.replace(job(), status=status_of(first))
    second = run(met, pod("a", "Succeeded", tracked=False))
    status = status_of(second)
    assert [(c.type, c.reason, c.message) for c in status.conditions] == [
        ("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"),
        ("Complete", "CompletionsReached", "Reached expected number of succeeded pods"),
    ]
    assert status.completion_time == clock.stamp(NOW)
    assert (status.succeeded, status.active) == (1, 0)
    assert [s.reason for s in second if isinstance(s, RecordEvent)] == ["Completed"]
    assert run(structs.replace(met, status=status), pod("a", "Succeeded", tracked=False)) == []


def test_too_many_failures_end_it_and_clear_its_pods_away() -> None:
    wanted = job({"failed": 1}, backoffLimit=1, completions=3, parallelism=3)
    first = run(wanted, pod("a", "Failed"), pod("b"))
    (condition,) = status_of(first).conditions
    assert (condition.type, condition.reason) == ("FailureTarget", "BackoffLimitExceeded")
    assert describe_steps(first) == ["~a", "-b"]
    failing = structs.replace(wanted, status=status_of(first))
    going = run(failing, pod("a", "Failed", tracked=False), pod("b", going=True))
    assert describe_steps(going) == ["~b"]
    assert [c.type for c in status_of(going).conditions] == ["FailureTarget"]
    last = run(structs.replace(wanted, status=status_of(going)), pod("a", "Failed", tracked=False))
    status = status_of(last)
    assert [c.type for c in status.conditions] == ["FailureTarget", "Failed"]
    assert status.failed == 3
    assert status.completion_time is None
    (said,) = [s for s in last if isinstance(s, RecordEvent)]
    text = "Job has reached the specified backoff limit"
    assert (said.type, said.reason, said.message) == ("Warning", "BackoffLimitExceeded", text)


def test_restarts_in_place_count_against_the_limit() -> None:
    template = {"spec": {"containers": [{"name": "c"}], "restartPolicy": "OnFailure"}}
    restarted = structs.replace(
        pod("a"),
        status=codec.convert(
            PodStatus, {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 2}]}
        ),
    )
    assert describe_steps(run(job(template=template, backoffLimit=3), restarted)) == []
    assert describe_steps(run(job(template=template, backoffLimit=2), restarted)) == ["-a"]


def test_the_deadline() -> None:
    early = run(job({"startTime": stamp(50)}, activeDeadlineSeconds=60), pod("a"))
    assert [s.seconds for s in early if isinstance(s, Wait)] == [10.0]
    late = run(job({"startTime": stamp(60)}, activeDeadlineSeconds=60), pod("a"))
    assert status_of(late).conditions[0].reason == "DeadlineExceeded"
    assert describe_steps(late) == ["-a"]


# Indexed


def indexed_job(status: dict[str, Any] | None = None, **spec: Any) -> Job:
    return job(status, **{"completionMode": "Indexed", "completions": 4, "parallelism": 2, **spec})


def test_indexes_are_given_out_in_order_and_each_once() -> None:
    assert describe_steps(run(indexed_job())) == ["+0", "+1"]
    assert describe_steps(run(indexed_job(), pod("a", index=1))) == ["+0"]
    assert describe_steps(
        run(indexed_job({"completedIndexes": "0,2", "succeeded": 2}), pod("a", index=1))
    ) == ["+3"]
    assert describe_steps(run(indexed_job(), pod("a", index=1), pod("b", "Pending", index=1))) == ["xb"]
    assert describe_steps(run(indexed_job(), pod("a", index=9))) == ["xa"]


def test_a_completed_index_is_written_down_before_its_pod_is_let_go() -> None:
    steps = run(indexed_job({"completedIndexes": "0", "succeeded": 1}), pod("a", "Succeeded", index=1))
    status = status_of(steps)
    assert (status.completed_indexes, status.succeeded) == ("0,1", 2)
    assert describe_steps(steps) == ["~a", "+2", "+3"]


def test_a_pod_knows_its_index() -> None:
    made = jobs.new_pod(indexed_job(), 3)
    assert made.metadata.generate_name == "j-3-"
    assert made.spec.hostname == "j-3"
    (variable,) = made.spec.containers[0].env
    assert variable.name == "JOB_COMPLETION_INDEX"
    assert variable.value_from is not None
    assert variable.value_from.field_ref is not None
    path = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert variable.value_from.field_ref.field_path == path


@pytest.mark.parametrize(
    ("rule", "completed", "met"),
    [
        pytest.param({"succeededCount": 2}, "0,3", True, id="any two"),
        pytest.param({"succeededIndexes": "0-1"}, "0,3", False, id="these two"),
        pytest.param({"succeededIndexes": "0-1"}, "0,1", True, id="all of these"),
        pytest.param({"succeededIndexes": "0-2", "succeededCount": 2}, "0,2", True, id="two of these"),
    ],
)
def test_the_success_policy(rule: dict[str, Any], completed: str, met: bool) -> None:
    wanted = indexed_job({"completedIndexes": completed, "succeeded": 2}, successPolicy={"rules": [rule]})
    steps = run(wanted, pod("a", index=2))
    conditions = [c for s in steps if isinstance(s, jobs.SetJobStatus) for c in s.status.conditions]
    assert [c.message for c in conditions] == (["Matched rules at index 0"] if met else [])
    assert ("-a" in describe_steps(steps)) is met


@pytest.mark.parametrize(
    ("text", "held"),
    [
        pytest.param("", set(), id="none"),
        pytest.param("1", {1}, id="one"),
        pytest.param("1,2", {1, 2}, id="two neighbours are written one by one"),
        pytest.param("0-2,5", {0, 1, 2, 5}, id="three make a range"),
        pytest.param("0,2,4-9", {0, 2, 4, 5, 6, 7, 8, 9}, id="mixed"),
    ],
)
def test_indexes_on_the_wire(text: str, held: set[int]) -> None:
    assert indexes.parse(text, 100) == held
    assert indexes.write(held) == text


def test_indexes_beyond_the_completions_are_gone() -> None:
    assert indexes.parse("0-9", 3) == {0, 1, 2}


# The failure policy


def with_policy(action: str, **rule: Any) -> Job:
    policy = {"rules": [{"action": action, **rule}]}
    return job(podFailurePolicy=policy, podReplacementPolicy="Failed", backoffLimit=0)


def test_an_ignored_failure_does_not_count() -> None:
    wanted = with_policy("Ignore", onExitCodes={"operator": "In", "values": [42]})
    steps = run(wanted, pod("a", "Failed", exit_code=42))
    assert describe_steps(steps) == ["~a", "+"]
    assert status_of(steps).uncounted_terminated_pods == UncountedTerminatedPods()
    assert "FailureTarget" in [c.type for c in status_of(run(wanted, pod("a", "Failed"))).conditions]


def test_a_failure_that_ends_the_job_says_why() -> None:
    wanted = with_policy("FailJob", onExitCodes={"operator": "NotIn", "values": [1]})
    (condition,) = status_of(run(wanted, pod("a", "Failed", exit_code=42))).conditions
    assert condition.reason == "PodFailurePolicy"
    text = "Container c for pod ns/a failed with exit code 42 matching FailJob rule at index 0"
    assert condition.message == text


# Suspension, expiry


def test_suspending_and_resuming_are_told_and_restart_the_clock() -> None:
    first = run(job({"startTime": stamp(500)}, suspend=True))
    (condition,) = status_of(first).conditions
    assert (condition.type, condition.status, condition.reason) == ("Suspended", "True", "JobSuspended")
    assert [s.reason for s in first if isinstance(s, RecordEvent)] == ["Suspended"]
    resumed = structs.replace(job(), status=status_of(first))
    second = run(resumed)
    (condition,) = status_of(second).conditions
    assert (condition.status, condition.reason) == ("False", "JobResumed")
    assert status_of(second).start_time == clock.stamp(NOW)


@pytest.mark.parametrize(
    ("ttl", "ago", "expected"),
    [
        pytest.param(None, 9999, [], id="kept"),
        pytest.param(60, 10, [Wait(WaitReason.TTL_AFTER_FINISHED, seconds=50.0)], id="not yet"),
        pytest.param(60, 60, [jobs.DeleteExpiredJob()], id="now"),
        pytest.param(0, 0, [jobs.DeleteExpiredJob()], id="at once"),
    ],
)
def test_a_finished_job_expires(ttl: int | None, ago: float, expected: list[jobs.Step]) -> None:
    ended = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": stamp(ago)}]}
    assert run(job(ended, ttlSecondsAfterFinished=ttl)) == expected


def test_a_container_that_has_the_index_already_is_left_alone() -> None:
    variable = EnvVar(name="JOB_COMPLETION_INDEX", value="mine")
    wanted = indexed_job()
    spec = wanted.spec.template.spec
    containers = tuple(structs.replace(c, env=(variable,)) for c in spec.containers)
    template = structs.replace(wanted.spec.template, spec=structs.replace(spec, containers=containers))
    own = structs.replace(wanted, spec=structs.replace(wanted.spec, template=template))
    assert jobs.new_pod(own, 3).spec.containers[0].env == (variable,)


# Failures per index


def per_index(status: dict[str, Any] | None = None, **spec: Any) -> Job:
    return indexed_job(status, **{"backoffLimitPerIndex": 1, "backoffLimit": 2**31 - 1, **spec})


def with_counts(of: Pod, failed: int = 0, ignored: int = 0) -> Pod:
    counts = {FAILURE_COUNT: str(failed), IGNORED_COUNT: str(ignored)}
    metadata = structs.replace(of.metadata, annotations={**of.metadata.annotations, **counts})
    return structs.replace(of, metadata=metadata)


def created(steps: list[Any]) -> dict[str, str]:
    """Index → how often it has failed, of the pods that are created."""
    notes = [s.pod.metadata.annotations for s in steps if isinstance(s, jobs.CreatePod)]
    return {n[indexes.ANNOTATION]: f"{n[FAILURE_COUNT]}+{n.get(IGNORED_COUNT, '0')}" for n in notes}


def test_the_first_pod_of_an_index_has_not_failed() -> None:
    assert created(run(per_index(completions=2, parallelism=2))) == {"0": "0+0", "1": "0+0"}


def test_a_failed_pod_is_kept_until_its_replacement_carries_the_number() -> None:
    wanted = per_index(completions=1)
    steps = run(wanted, pod("a", "Failed", index=0))
    assert describe_steps(steps) == ["+0"]
    assert created(steps) == {"0": "1+0"}
    assert status_of(steps).failed_indexes == ""
    # Its replacement exists: it is counted and let go.
    steps = run(wanted, pod("a", "Failed", index=0), with_counts(pod("b", index=0), 1))
    assert describe_steps(steps) == ["~a"]
    assert status_of(steps).uncounted_terminated_pods == UncountedTerminatedPods(failed=("a",))


def test_each_index_waits_for_its_own_backoff() -> None:
    wanted = per_index(completions=2, parallelism=2, backoffLimitPerIndex=5)
    young = with_counts(pod("a", "Failed", index=0, ago=3), 2)
    old = with_counts(pod("b", "Failed", index=1, ago=50), 2)
    steps = run(wanted, young, old)
    assert created(steps) == {"1": "3+0"}
    (wait,) = [s for s in steps if isinstance(s, Wait)]
    assert (wait.reason, wait.seconds) == (WaitReason.POD_FAILURE_BACKOFF, 37.0)


def test_an_index_fails_after_its_limit_and_the_others_go_on() -> None:
    wanted = per_index(completions=3, parallelism=3)
    steps = run(wanted, with_counts(pod("a", "Failed", index=1), 1))
    assert describe_steps(steps) == ["~a", "+0", "+2"]
    assert status_of(steps).failed_indexes == "1"


def test_the_last_of_several_failed_pods_is_kept() -> None:
    wanted = per_index(completions=1, backoffLimitPerIndex=9)
    pods = [
        with_counts(pod("a", "Failed", index=0, ago=900), 3),
        with_counts(pod("b", "Failed", index=0, ago=800), 4),
        with_counts(pod("c", "Failed", index=0, ago=950), 2),
    ]
    steps = run(wanted, *pods)
    assert created(steps) == {"0": "5+0"}
    assert sorted(s for s in describe_steps(steps) if s.startswith("~")) == ["~a", "~c"]


def test_a_job_with_failed_indexes_fails_when_all_others_are_done() -> None:
    wanted = per_index({"completedIndexes": "0", "succeeded": 1, "failedIndexes": "1"}, completions=2)
    (condition,) = status_of(run(wanted)).conditions[:1]
    assert (condition.type, condition.reason, condition.message) == (
        "FailureTarget",
        "FailedIndexes",
        "Job has failed indexes",
    )


def test_a_job_fails_with_more_failed_indexes_than_allowed() -> None:
    wanted = per_index({"failedIndexes": "0,1"}, completions=5, maxFailedIndexes=1)
    (condition, *_) = status_of(run(wanted, pod("a", index=2))).conditions
    assert condition.reason == "MaxFailedIndexesExceeded"
    allowed = per_index({"failedIndexes": "0,1"}, completions=5, maxFailedIndexes=2)
    assert status_of(run(allowed, pod("a", index=2))).conditions == ()


def test_a_rule_fails_an_index_at_once_or_ignores_a_failure() -> None:
    rules = [
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [43]}},
    ]
    wanted = per_index(
        completions=2, parallelism=2, podFailurePolicy={"rules": rules}, podReplacementPolicy="Failed"
    )
    steps = run(wanted, pod("a", "Failed", index=0, exit_code=42), pod("b", "Failed", index=1, exit_code=43))
    assert status_of(steps).failed_indexes == "0"
    assert created(steps) == {"1": "0+1"}


def test_failures_that_await_replacement_count_for_the_limit_of_the_job() -> None:
    wanted = per_index({"failed": 1}, completions=2, parallelism=2, backoffLimit=1, backoffLimitPerIndex=5)
    (condition, *_) = status_of(run(wanted, pod("a", "Failed", index=0))).conditions
    assert condition.reason == "BackoffLimitExceeded"


def test_a_success_rule_about_indexes_that_no_longer_exist_does_not_hold() -> None:
    rule = {"succeededIndexes": "7-9"}
    wanted = indexed_job({"completedIndexes": "0", "succeeded": 1}, successPolicy={"rules": [rule]})
    assert status_of(run(wanted, pod("a", index=2))).conditions == ()


# Adoption


def test_a_job_adopts_matching_pods_and_counts_them() -> None:
    wanted = job(selector={"matchLabels": {"app": "x"}})
    other, orphan, ended = (pod(name, tracked=False) for name in ("other", "orphan", "ended"))
    orphan, ended = (
        structs.replace(p, metadata=structs.replace(p.metadata, labels={"app": "x"}, owner_references=()))
        for p in (orphan, ended)
    )
    ended = structs.replace(ended, status=structs.replace(ended.status, phase="Succeeded"))
    steps = list(jobs.plan(wanted, [], NOW, [other, orphan, ended]))
    assert [s.orphan.name for s in steps if isinstance(s, jobs.AdoptObject)] == ["orphan", "ended"]
    assert status_of(steps).uncounted_terminated_pods == UncountedTerminatedPods(succeeded=("ended",))
    assert not any(isinstance(s, jobs.CreatePod) for s in steps)


def test_a_job_adopts_a_pod_that_has_its_finalizer() -> None:
    wanted = job(selector={"matchLabels": {"app": "x"}})
    ended = pod("ended")
    meta = structs.replace(ended.metadata, labels={"app": "x"}, owner_references=())
    ended = structs.replace(ended, metadata=meta, status=structs.replace(ended.status, phase="Succeeded"))
    steps = list(jobs.plan(wanted, [], NOW, [ended]))
    assert [s.orphan.name for s in steps if isinstance(s, jobs.AdoptObject)] == ["ended"]
    assert status_of(steps).uncounted_terminated_pods == UncountedTerminatedPods(succeeded=("ended",))


def test_a_finished_job_adopts_nothing() -> None:
    over = job({"conditions": [{"type": "Complete", "status": "True"}]})
    assert list(jobs.plan(over, [], NOW, [pod("a", tracked=False)])) == []
