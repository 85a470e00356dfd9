"""Jobs on the real API server; the test says how the pods end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api import codec
from volplane.api.batch import Job
from volplane.api.core import Event, Pod
from volplane.api.errors import Invalid
from volplane.controllers.garbage.controller import GarbageCollector
from volplane.controllers.job.controller import Jobs
from volplane.rules.pods import has_ended

pytestmark = pytest.mark.virtual
FINALIZER = "batch.kubernetes.io/job-tracking"


def job(**spec: Any) -> Job:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "a"}]}}
    metadata = {"name": "work", "namespace": "default"}
    return codec.convert(Job, {"metadata": metadata, "spec": {"template": template, **spec}})


class Bench:
    def __init__(self, around: InProcessEnv, kubelets: Kubelets) -> None:
        self.client, self.kubelets = around.client, kubelets

    async def pods(self) -> list[Pod]:
        return sorted(await self.client.list(Pod, "default"), key=lambda p: p.name)

    async def active(self, count: int) -> list[Pod]:
        async def there() -> list[Pod] | None:
            found = [p for p in await self.pods() if p.status.phase == "Running" and not p.is_deleting]
            return found if len(found) == count else None

        found: list[Pod] = await until(there, 3600)
        return found

    async def nothing_runs(self) -> None:
        async def empty() -> bool:
            return not await self.pods()

        await until(empty)

    async def end(self, *pods: Pod, phase: str = "Succeeded") -> None:
        for pod in pods:
            await self.kubelets.show(pod, phase=phase)

    async def get(self) -> Job:
        return await self.client.get(Job, "work", "default")

    async def is_over(self, word: str) -> Job:
        async def over() -> Job | None:
            held = await self.get()
            return (
                held if any(c.type == word and c.status == "True" for c in held.status.conditions) else None
            )

        found: Job = await until(over, 7200)
        return found

    async def events(self, reason: str) -> list[str]:
        await asyncio.sleep(1)
        return [e.message for e in await self.client.list(Event, "default") if e.reason == reason]


@asynccontextmanager
async def bench(*others: type[Any]) -> AsyncIterator[Bench]:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelets"))
        kinds: tuple[Any, ...] = (Jobs, *others)
        rooms = [kind(around.role("kcm")) for kind in kinds]
        async with running(kubelets.run(), *(room.run() for room in rooms)):
            yield Bench(around, kubelets)


async def test_a_job_runs_its_pods_to_their_end() -> None:
    async with bench() as b:
        await b.client.create(job(completions=3, parallelism=2))
        first = await b.active(2)
        assert all(p.metadata.finalizers == (FINALIZER,) for p in first)
        await b.end(*first)
        (last,) = await b.active(1)
        await b.end(last)
        held = await b.is_over("Complete")
        assert (held.status.succeeded, held.status.active, held.status.failed) == (3, 0, 0)
        assert held.status.completion_time
        await asyncio.sleep(1)
        assert all(has_ended(p) and not p.metadata.finalizers for p in await b.pods())
        assert await b.events("Completed") == ["Job completed"]


async def test_the_server_makes_selector_and_labels() -> None:
    async with bench() as b:
        made = await b.client.create(job())
        assert made.spec.selector is not None
        assert made.spec.selector.match_labels == {"batch.kubernetes.io/controller-uid": made.uid}
        (pod,) = await b.active(1)
        assert pod.metadata.labels == {
            "batch.kubernetes.io/controller-uid": made.uid,
            "batch.kubernetes.io/job-name": "work",
            "controller-uid": made.uid,
            "job-name": "work",
        }
        assert pod.name.startswith("work-")
        spec = made.spec
        assert (spec.parallelism, spec.completions, spec.backoff_limit) == (1, 1, 6)


async def test_failures_are_tried_again_later_and_later_up_to_the_limit() -> None:
    async with bench() as b:
        await b.client.create(job(backoffLimit=2))
        loop = asyncio.get_running_loop()
        times: list[float] = []
        for _ in range(3):
            (pod,) = await b.active(1)
            times.append(loop.time())
            await b.end(pod, phase="Failed")
        held = await b.is_over("Failed")
        assert held.status.failed == 3
        assert [round(two - one) for one, two in pairwise(times)] == [10, 20]
        assert held.status.conditions[-1].reason == "BackoffLimitExceeded"
        assert await b.events("BackoffLimitExceeded") == ["Job has reached the specified backoff limit"]


async def test_the_deadline_ends_it() -> None:
    async with bench() as b:
        await b.client.create(job(activeDeadlineSeconds=60, parallelism=2, completions=4))
        await b.active(2)
        held = await b.is_over("Failed")
        assert held.status.conditions[0].reason == "DeadlineExceeded"
        assert [p.name for p in await b.pods() if not has_ended(p)] == []
        assert (held.status.failed, held.status.active) == (2, 0)


async def test_a_job_in_pause_has_no_pods() -> None:
    async with bench() as b:
        await b.client.create(job(completions=2, parallelism=2))
        await b.active(2)
        await b.client.patch(Job, "work", "default", merge={"spec": {"suspend": True}})
        await b.nothing_runs()
        held = await b.get()
        assert held.status.failed == 0
        await b.client.patch(Job, "work", "default", merge={"spec": {"suspend": False}})
        await b.end(*await b.active(2))
        await b.is_over("Complete")


async def test_an_indexed_job_completes_each_index() -> None:
    async with bench() as b:
        await b.client.create(job(completionMode="Indexed", completions=3, parallelism=3))
        pods = await b.active(3)
        assert [p.spec.hostname for p in pods] == ["work-0", "work-1", "work-2"]
        await b.end(pods[0], pods[2])
        await b.end(pods[1], phase="Failed")
        (again,) = await b.active(1)
        assert again.spec.hostname == "work-1"
        await b.end(again)
        held = await b.is_over("Complete")
        assert (held.status.completed_indexes, held.status.failed) == ("0-2", 1)


async def test_a_finished_job_goes_after_its_time_with_its_pods() -> None:
    async with bench(GarbageCollector) as b:
        await b.client.create(job(ttlSecondsAfterFinished=100))
        await b.end(*await b.active(1))
        await b.is_over("Complete")
        await asyncio.sleep(90)
        await b.get()

        async def is_gone() -> bool:
            return await b.client.find(Job, "work", "default") is None and not await b.pods()

        await until(is_gone, 60)


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
async def test_pods_of_a_deleted_job_are_let_go(propagation: str) -> None:
    async with bench(GarbageCollector) as b:
        await b.client.create(job())
        (pod,) = await b.active(1)
        await b.client.delete(Job, "work", "default", propagation=propagation)

        async def free() -> bool:
            held = await b.client.find(Pod, pod.name, "default")
            return (
                held is None if propagation != "Orphan" else held is not None and not held.metadata.finalizers
            )

        await until(free)
        assert await b.client.find(Job, "work", "default") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"template": {"spec": {"containers": [{"name": "c", "image": "a"}]}}},
            'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"',
            id="restart policy",
        ),
        pytest.param(
            {"completionMode": "Indexed", "parallelism": 1},
            "spec.completions: Required value: when completion mode is Indexed",
            id="an indexed job has completions",
        ),
        pytest.param({"backoffLimit": -1}, "spec.backoffLimit: Invalid value: -1", id="backoff limit"),
        pytest.param(
            {"completionMode": "Odd"},
            'spec.completionMode: Unsupported value: "Odd": supported values: "NonIndexed", "Indexed"',
            id="mode",
        ),
        pytest.param(
            {"selector": {"matchLabels": {"a": "b"}}},
            "`selector` not auto-generated",
            id="a selector of one's own",
        ),
    ],
)
async def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    async with world() as around:
        with pytest.raises(Invalid) as refused:
            await around.client.create(job(**change))
        assert message in str(refused.value)


async def test_a_template_never_changes() -> None:
    async with world() as around:
        await around.client.create(job())
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "b"}]}}}}
        with pytest.raises(Invalid) as refused:
            await around.client.patch(Job, "work", "default", merge=patch)
        assert "field is immutable" in str(refused.value)
        await around.client.patch(Job, "work", "default", merge={"spec": {"parallelism": 3}})


async def test_an_index_that_failed_too_often_does_not_stop_the_others() -> None:
    async with bench() as b:
        spec = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimitPerIndex": 1}
        await b.client.create(job(**spec))
        zero, one, two = await b.active(3)
        await b.end(one, phase="Failed")
        *_, again = [p for p in await b.active(3) if p.name not in (zero.name, two.name)]
        assert again.metadata.annotations["batch.kubernetes.io/job-index-failure-count"] == "1"
        await b.end(again, phase="Failed")
        await b.end(zero, two)
        held = await b.is_over("Failed")
        assert (held.status.completed_indexes, held.status.failed_indexes) == ("0,2", "1")
        assert (held.status.succeeded, held.status.failed) == (2, 2)
        assert held.status.conditions[-1].reason == "FailedIndexes"


async def test_a_job_that_is_created_again_adopts_its_pods() -> None:
    async with bench(GarbageCollector) as b:
        manual = {"manualSelector": True, "selector": {"matchLabels": {"app": "work"}}}
        template = {
            "metadata": {"labels": {"app": "work"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "a"}]},
        }
        await b.client.create(job(**manual, template=template))
        (pod,) = await b.active(1)
        await b.client.delete(Job, "work", "default", propagation="Orphan")

        async def is_free() -> bool:
            held = await b.client.get(Pod, pod.name, "default")
            return not held.metadata.owner_references and not held.metadata.finalizers

        await until(is_free)
        again = await b.client.create(job(**manual, template=template))

        async def is_adopted() -> bool:
            held = await b.client.get(Pod, pod.name, "default")
            return [r.uid for r in held.metadata.owner_references] == [again.uid]

        await until(is_adopted)
        (adopted,) = await b.active(1)
        assert (adopted.uid, adopted.metadata.finalizers) == (pod.uid, (FINALIZER,))
        await b.end(adopted)
        held = await b.is_over("Complete")
        assert held.status.succeeded == 1


WRONG_POLICIES = {
    "not indexed": (
        {"backoffLimitPerIndex": 1},
        "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
    ),
    "no limit of each index": (
        {"maxFailedIndexes": 1, "completionMode": "Indexed", "completions": 2},
        "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
    ),
    "more than there are": (
        {"maxFailedIndexes": 3, "backoffLimitPerIndex": 1, "completionMode": "Indexed", "completions": 2},
        "spec.maxFailedIndexes: Invalid value: 3: must be less than or equal to completions",
    ),
    "success of what is not indexed": (
        {"successPolicy": {"rules": [{"succeededCount": 1}]}},
        "requires indexed completion mode",
    ),
    "no success rules": (
        {"successPolicy": {"rules": []}, "completionMode": "Indexed", "completions": 2},
        "at least one rules must be specified when the successPolicy is specified",
    ),
    "an empty success rule": (
        {"successPolicy": {"rules": [{}]}, "completionMode": "Indexed", "completions": 2},
        "at least one of succeededCount or succeededIndexes must be specified",
    ),
    "indexes out of order": (
        {
            "successPolicy": {"rules": [{"succeededIndexes": "1,0"}]},
            "completionMode": "Indexed",
            "completions": 2,
        },
        "error parsing succeededIndexes: non-increasing order, previous: 1, current: 0",
    ),
    "an index that does not exist": (
        {
            "successPolicy": {"rules": [{"succeededIndexes": "0-5"}]},
            "completionMode": "Indexed",
            "completions": 2,
        },
        'error parsing succeededIndexes: too large index: "5"',
    ),
    "more successes than indexes": (
        {
            "successPolicy": {"rules": [{"succeededIndexes": "0", "succeededCount": 2}]},
            "completionMode": "Indexed",
            "completions": 2,
        },
        "must be less than or equal to 1 (the number of indexes in the specified succeededIndexes field)",
    ),
}


@pytest.mark.parametrize(("spec", "text"), WRONG_POLICIES.values(), ids=WRONG_POLICIES)
async def test_the_server_refuses_policies_that_cannot_hold(spec: dict[str, Any], text: str) -> None:
    async with world() as around:
        with pytest.raises(Invalid) as refused:
            await around.client.create(job(**spec))
        assert text in refused.value.message
