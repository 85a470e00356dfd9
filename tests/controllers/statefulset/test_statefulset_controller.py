"""StatefulSets on the real API server; kubelets and garbage collection beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api import codec
from volplane.api.apps import ControllerRevision, StatefulSet
from volplane.api.core import Event, PersistentVolumeClaim, Pod
from volplane.api.errors import Forbidden, Invalid
from volplane.controllers.garbage.controller import GarbageCollector
from volplane.controllers.protection.controller import ClaimProtection
from volplane.controllers.statefulset.controller import StatefulSets

pytestmark = pytest.mark.virtual


def stateful(replicas: int = 3, **spec: Any) -> StatefulSet:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "a"}]}}
    claims = [
        {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
    ]
    whole = {
        "serviceName": "web",
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": template,
        "volumeClaimTemplates": claims,
        **spec,
    }
    return codec.convert(StatefulSet, {"metadata": {"name": "web", "namespace": "default"}, "spec": whole})


class Bench:
    def __init__(self, around: InProcessEnv, kubelets: Kubelets) -> None:
        self.around, self.client, self.kubelets = around, around.client, kubelets

    async def names(self) -> list[str]:
        return sorted(p.name for p in await self.client.list(Pod, "default"))

    async def claims(self) -> list[str]:
        return sorted(c.name for c in await self.client.list(PersistentVolumeClaim, "default"))

    async def get(self) -> StatefulSet:
        return await self.client.get(StatefulSet, "web", "default")

    async def patch(self, **spec: Any) -> None:
        await self.client.patch(StatefulSet, "web", "default", merge={"spec": spec})

    async def ready(self, count: int) -> StatefulSet:
        async def there() -> StatefulSet | None:
            held = await self.get()
            status = held.status
            done = status.ready_replicas == status.replicas == count
            current = status.observed_generation == held.metadata.generation
            return held if done and current and len(await self.names()) == count else None

        found: StatefulSet = await until(there, 120)
        return found

    async def images(self) -> list[str]:
        pods = sorted(await self.client.list(Pod, "default"), key=lambda p: p.name)
        return [p.spec.containers[0].image for p in pods]

    async def become(self, *images: str) -> None:
        async def is_shown() -> bool:
            return await self.images() == list(images)

        await until(is_shown, 120)

    async def settle(self) -> None:
        await asyncio.sleep(1)  # virtual time: whatever can happen has happened

    async def messages(self, reason: str) -> list[str]:
        return [e.message for e in await self.client.list(Event, "default") if e.reason == reason]


def image(word: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "image": word}]}}


@asynccontextmanager
async def bench(*others: type[Any]) -> AsyncIterator[Bench]:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelet"))
        kinds: tuple[Any, ...] = (StatefulSets, *others)
        made = [kind(around.role("test")) for kind in kinds]
        async with running(kubelets.run(), *(c.run() for c in made)):
            yield Bench(around, kubelets)


async def test_pods_come_one_after_the_other_with_their_claims() -> None:
    async with bench() as b:
        b.kubelets.unready.add("web-1")
        await b.client.create(stateful())
        await b.settle()
        assert await b.names() == ["web-0", "web-1"]
        assert await b.claims() == ["data-web-0", "data-web-1"]
        b.kubelets.unready.clear()
        b.kubelets.look_again("web-1")
        await b.ready(3)
        assert await b.claims() == ["data-web-0", "data-web-1", "data-web-2"]
        await b.settle()
        assert "Create Pod web-2 in StatefulSet web successful" in await b.messages("SuccessfulCreate")
        claimed = "Create Claim data-web-2 Pod web-2 in StatefulSet web success"
        assert claimed in await b.messages("SuccessfulCreate")


async def test_a_pod_that_is_deleted_comes_back_under_its_name_with_its_claim() -> None:
    async with bench() as b:
        await b.client.create(stateful())
        await b.ready(3)
        before = await b.client.get(Pod, "web-1", "default")
        held = await b.client.get(PersistentVolumeClaim, "data-web-1", "default")
        await b.client.delete(Pod, "web-1", "default")
        await b.settle()
        await b.ready(3)
        after = await b.client.get(Pod, "web-1", "default")
        assert after.uid != before.uid
        assert after.spec.volumes[0].persistent_volume_claim == before.spec.volumes[0].persistent_volume_claim
        assert (await b.client.get(PersistentVolumeClaim, "data-web-1", "default")).uid == held.uid


async def test_a_pod_that_failed_is_made_again() -> None:
    async with bench() as b:
        await b.client.create(stateful(1))
        await b.ready(1)
        pod = await b.client.get(Pod, "web-0", "default")
        await b.kubelets.show(pod, phase="Failed")

        async def is_replaced() -> bool:
            held = await b.client.find(Pod, "web-0", "default")
            return held is not None and held.uid != pod.uid

        await until(is_replaced)
        await b.ready(1)


async def test_an_update_goes_from_the_highest_and_stops_at_the_partition() -> None:
    async with bench() as b:
        await b.client.create(stateful())
        await b.ready(3)
        await b.patch(updateStrategy={"rollingUpdate": {"partition": 2}}, template=image("b"))
        await b.become("a", "a", "b")
        await b.settle()
        assert await b.images() == ["a", "a", "b"]
        # A pod below the partition that is lost comes back as it was.
        await b.client.delete(Pod, "web-0", "default")
        held = await b.ready(3)
        assert await b.images() == ["a", "a", "b"]
        assert (held.status.current_replicas, held.status.updated_replicas) == (2, 1)
        await b.patch(updateStrategy={"rollingUpdate": {"partition": 0}})
        await b.become("b", "b", "b")
        held = await b.ready(3)
        assert held.status.current_revision == held.status.update_revision


async def test_an_update_that_never_gets_ready_stops_at_its_first_pod() -> None:
    async with bench() as b:
        await b.client.create(stateful())
        await b.ready(3)
        b.kubelets.unready.add("web-2")
        await b.patch(template=image("broken"))
        await b.become("a", "a", "broken")
        await b.settle()
        assert await b.images() == ["a", "a", "broken"]


async def test_on_delete_leaves_it_to_the_user() -> None:
    async with bench() as b:
        await b.client.create(stateful(2, updateStrategy={"type": "OnDelete"}))
        await b.ready(2)
        await b.patch(template=image("b"))
        await b.settle()
        assert await b.images() == ["a", "a"]
        await b.client.delete(Pod, "web-0", "default")
        await b.become("b", "a")


async def test_a_rollback_reuses_its_revision() -> None:
    async with bench() as b:
        await b.client.create(stateful(1))
        first = (await b.ready(1)).status.update_revision
        await b.patch(template=image("b"))
        await b.become("b")
        await b.patch(template=image("a"))
        await b.become("a")
        assert (await b.ready(1)).status.update_revision == first
        numbers = {r.name: r.number for r in await b.client.list(ControllerRevision, "default")}
        assert len(numbers) == 2
        assert numbers[first] == 3


async def test_two_templates_with_one_short_name_are_told_apart() -> None:
    async with bench(GarbageCollector) as b:
        await b.client.create(stateful(1))
        name = (await b.ready(1)).status.update_revision
        await b.client.delete(StatefulSet, "web", "default")

        async def empty() -> bool:
            return not await b.names() and not await b.client.list(ControllerRevision, "default")

        await until(empty)
        squatter = {"metadata": {"name": name, "namespace": "default"}, "data": {"spec": {}}, "revision": 1}
        await b.client.create(codec.convert(ControllerRevision, squatter))
        await b.client.create(stateful(1))

        async def is_counted() -> bool:
            status = (await b.get()).status
            return status.collision_count == 1 and status.update_revision not in ("", name)

        await until(is_counted)
        await b.ready(1)


async def test_all_at_once() -> None:
    async with bench() as b:
        b.kubelets.unready.update({"web-0", "web-1", "web-2"})
        await b.client.create(stateful(3, podManagementPolicy="Parallel"))
        await b.settle()
        assert await b.names() == ["web-0", "web-1", "web-2"]
        await b.patch(replicas=0)
        await b.ready(0)


async def test_ordinals_start() -> None:
    async with bench() as b:
        await b.client.create(stateful(2, ordinals={"start": 7}))
        await b.ready(2)
        assert await b.names() == ["web-7", "web-8"]


async def test_min_ready_seconds() -> None:
    async with bench() as b:
        await b.client.create(stateful(2, minReadySeconds=30))
        await asyncio.sleep(20)
        assert await b.names() == ["web-0"]
        assert (await b.get()).status.available_replicas == 0
        await asyncio.sleep(20)
        assert await b.names() == ["web-0", "web-1"]
        await asyncio.sleep(40)
        assert (await b.get()).status.available_replicas == 2


async def test_pods_left_by_an_orphaning_delete_are_adopted_by_the_next_set() -> None:
    async with bench(GarbageCollector) as b:
        await b.client.create(stateful())
        await b.ready(3)
        before = {p.name: p.uid for p in await b.client.list(Pod, "default")}
        await b.client.delete(StatefulSet, "web", "default", propagation="Orphan")

        async def is_gone() -> bool:
            return await b.client.find(StatefulSet, "web", "default") is None

        await until(is_gone)
        await b.client.create(stateful(3, minReadySeconds=0, revisionHistoryLimit=2))
        await b.ready(3)
        assert {p.name: p.uid for p in await b.client.list(Pod, "default")} == before


async def test_claims_go_with_the_set_when_it_asks_for_that() -> None:
    async with bench(GarbageCollector, ClaimProtection) as b:
        await b.client.create(stateful(2, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete"}))
        await b.ready(2)
        await b.client.delete(StatefulSet, "web", "default")

        async def empty() -> bool:
            return not await b.names() and not await b.claims()

        await until(empty)
        assert await b.client.list(ControllerRevision, "default") == []


async def test_claims_stay_by_default() -> None:
    async with bench(GarbageCollector, ClaimProtection) as b:
        await b.client.create(stateful(2))
        await b.ready(2)
        await b.client.delete(StatefulSet, "web", "default")

        async def empty() -> bool:
            return not await b.names()

        await until(empty)
        await b.settle()
        assert await b.claims() == ["data-web-0", "data-web-1"]


async def test_a_pod_that_may_not_be_made_is_told_and_tried_again() -> None:
    async with bench() as b:
        wanted = stateful(1)
        await b.client.create(
            codec.convert(StatefulSet, {**codec.to_dict(wanted), "spec": {**_spec(wanted, "nobody")}})
        )

        async def is_recorded() -> bool:
            return any("failed error" in m for m in await b.messages("FailedCreate"))

        await until(is_recorded)
        (message,) = await b.messages("FailedCreate")
        assert message.startswith("Create Pod web-0 in StatefulSet web failed error: pods ")


def _spec(wanted: StatefulSet, account: str) -> dict[str, Any]:
    spec: dict[str, Any] = codec.to_dict(wanted)["spec"]
    spec["template"]["spec"]["serviceAccountName"] = account
    return spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"podManagementPolicy": "Random"},
            "spec.podManagementPolicy: Invalid value: \"Random\": must be 'OrderedReady' or 'Parallel'",
            id="policy",
        ),
        pytest.param(
            {"updateStrategy": {"type": "Recreate"}},
            "must be 'RollingUpdate' or 'OnDelete'",
            id="strategy",
        ),
        pytest.param(
            {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 1}}},
            "only allowed for updateStrategy 'RollingUpdate'",
            id="on delete has no partition",
        ),
        pytest.param(
            {"updateStrategy": {"rollingUpdate": {"partition": -1}}},
            "rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0",
            id="partition",
        ),
        pytest.param(
            {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Keep"}},
            'whenScaled: Unsupported value: "Keep": supported values: "Retain", "Delete"',
            id="retention",
        ),
        pytest.param(
            {"ordinals": {"start": -1}},
            "spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0",
            id="ordinals",
        ),
        pytest.param(
            {"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]},
            "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode",
            id="a claim template without access modes",
        ),
        pytest.param({"serviceName": "Not_A_Name"}, "spec.serviceName: Invalid value", id="service name"),
    ],
)
async def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    async with world() as around:
        with pytest.raises(Invalid) as refused:
            await around.client.create(stateful(**change))
        assert message in str(refused.value)


async def test_what_may_not_change() -> None:
    async with world() as around:
        await around.client.create(stateful())
        with pytest.raises((Invalid, Forbidden)) as refused:
            await around.client.patch(StatefulSet, "web", "default", merge={"spec": {"serviceName": "other"}})
        assert (
            "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', "
            "'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' "
            "and 'minReadySeconds' are forbidden" in str(refused.value)
        )
        free = {"replicas": 5, "ordinals": {"start": 1}, "minReadySeconds": 3, "revisionHistoryLimit": 1}
        await around.client.patch(StatefulSet, "web", "default", merge={"spec": free})
