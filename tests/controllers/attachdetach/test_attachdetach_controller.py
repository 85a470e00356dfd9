"""Attach/detach on the real API server: the cases of contract attach-and-mount A.

The test plays the attacher (who answers attachments) and the nodes (who say what they mount).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.objects import DRIVER, MANAGED, account, claim, driver, node, pod, volume
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api import codec, names
from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import ObjectMeta
from volplane.api.storage import (
    CSIDriver,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from volplane.controllers.attachdetach.controller import AttachDetach, forced_detaches

pytestmark = pytest.mark.virtual
NAME = names.csi_volume_name(DRIVER, "vol-pv")
FINALIZER = "external-attacher/ebs-csi-aws-com"


class AttachDetachBench:
    def __init__(self, around: InProcessEnv, controller: AttachDetach | None = None) -> None:
        self.client = around.client
        self.around = around
        self.controller = controller

    async def pair(self, name: str = "pv", **spec: Any) -> None:
        """A claim `data` bound to a volume."""
        mine = await self.client.create(claim("data", volumeName=name))
        reference = {"namespace": "default", "name": "data", "uid": mine.uid}
        await self.client.create(volume(name, claimRef=reference, **spec))
        await self.bind()

    async def bind(self) -> None:
        await self.client.patch(
            PersistentVolumeClaim,
            "data",
            "default",
            merge={"status": {"phase": "Bound"}},
            subresource="status",
        )

    def attachment_name(self, on: str, name: str = "pv") -> str:
        return names.attachment_name(f"vol-{name}", DRIVER, on)

    async def attachment(self, on: str) -> VolumeAttachment:
        async def there() -> VolumeAttachment | None:
            return await self.client.find(VolumeAttachment, self.attachment_name(on))

        found: VolumeAttachment = await until(there)
        return found

    async def attached_where(self) -> set[str]:
        return {a.spec.node_name for a in await self.client.list(VolumeAttachment)}

    async def wait_until_gone(self, on: str, seconds: float = 30.0) -> None:
        async def away() -> bool:
            return await self.client.find(VolumeAttachment, self.attachment_name(on)) is None

        await until(away, seconds)

    # the attacher

    async def answer(self, on: str, **status: Any) -> None:
        await self.attachment(on)
        await self.client.patch(
            VolumeAttachment,
            self.attachment_name(on),
            merge={"metadata": {"finalizers": [FINALIZER]}},
        )
        await self.client.patch(
            VolumeAttachment, self.attachment_name(on), merge={"status": status}, subresource="status"
        )

    async def attach(self, on: str) -> None:
        await self.answer(on, attached=True, attachError=None)
        await self.wait_until_listed(on)

    async def is_leaving(self, on: str, seconds: float = 30.0) -> None:
        async def leaving() -> bool:
            return (await self.attachment(on)).is_deleting

        await until(leaving, seconds)

    async def detach(self, on: str) -> None:
        await self.is_leaving(on)
        await self.client.patch(
            VolumeAttachment, self.attachment_name(on), merge={"metadata": {"finalizers": None}}
        )

    # the node

    async def status(self, on: str, **status: Any) -> None:
        await self.client.patch(Node, on, merge={"status": status}, subresource="status")

    async def unready(self, on: str) -> None:
        await self.status(on, conditions=[{"type": "Ready", "status": "Unknown"}])

    async def wait_until_listed(self, on: str, present: bool = True) -> None:
        async def is_shown() -> bool:
            found = await self.client.get(Node, on)
            return (NAME in [v.name for v in found.status.volumes_attached]) is present

        await until(is_shown)

    # the user

    async def kill(self, name: str) -> None:
        await self.client.delete(Pod, name, "default", grace=0)

    async def events(self, reason: str, about: str = "") -> list[str]:
        events = await self.client.list(Event, "default")
        return [
            e.message for e in events if e.reason == reason and (not about or e.involved_object.name == about)
        ]

    async def wait_for_event(self, reason: str, message: str) -> None:
        async def is_recorded() -> bool:
            return message in await self.events(reason)

        await until(is_recorded)

    async def settle(self, seconds: float = 1.0) -> None:
        await asyncio.sleep(seconds)  # virtual time: whatever can happen has happened


@asynccontextmanager
async def bench(*nodes: str, **options: Any) -> AsyncIterator[AttachDetachBench]:
    async with world() as around:
        await around.client.create(account())
        for name in nodes:
            await around.client.create(node(name))
        controller = AttachDetach(around.role("ad"), **options)
        async with running(controller.run()):
            yield AttachDetachBench(around, controller)


async def test_a_pod_gets_its_volume_and_the_node_is_told() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        made = await b.attachment("a")
        assert made.spec == VolumeAttachmentSpec(
            attacher=DRIVER, node_name="a", source=VolumeAttachmentSource(persistent_volume_name="pv")
        )
        assert (await b.client.get(Node, "a")).status.volumes_attached == ()
        await b.attach("a")
        (entry,) = (await b.client.get(Node, "a")).status.volumes_attached
        assert (entry.name, entry.device_path) == (NAME, "")
        await b.wait_for_event("SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pv" ')


async def test_a_claim_that_is_bound_after_the_pod_was_scheduled_is_attached_then() -> None:
    async with bench("a") as b:
        mine = await b.client.create(claim("data", volumeName="pv"))
        await b.client.create(
            volume("pv", claimRef={"namespace": "default", "name": "data", "uid": mine.uid})
        )
        await b.client.create(pod("web", "data", on="a"))
        await b.settle()
        assert await b.attached_where() == set()
        await b.bind()
        await b.attachment("a")


async def test_a_volume_that_no_pod_needs_leaves_and_the_node_hears_of_it_first() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        await b.attach("a")
        await b.kill("web")
        await b.is_leaving("a")
        await b.wait_until_listed("a", present=False)
        await b.detach("a")
        await b.wait_until_gone("a")


async def test_a_volume_moves_only_when_the_old_node_has_unmounted_it() -> None:
    async with bench("a", "b") as b:
        await b.pair()
        await b.client.create(pod("old", "data", on="a"))
        await b.attach("a")
        await b.status("a", volumesInUse=[NAME])
        await b.kill("old")
        await b.client.create(pod("new", "data", on="b"))
        await b.wait_for_event(
            "FailedAttachVolume",
            'Multi-Attach error for volume "pv" Volume is already exclusively attached to one node and '
            "can't be attached to another",
        )
        await b.settle(3600)  # a healthy node is waited for, forever
        assert await b.attached_where() == {"a"}
        assert len(await b.events("FailedAttachVolume")) == 1
        await b.status("a", volumesInUse=[])
        await b.detach("a")
        await b.attach("b")
        await b.wait_until_gone("a")


async def test_the_other_pods_are_named() -> None:
    async with bench("a", "b") as b:
        await b.pair()
        await b.client.create(pod("old", "data", on="a"))
        await b.attach("a")
        await b.client.create(pod("new", "data", on="b"))
        await b.wait_for_event(
            "FailedAttachVolume", 'Multi-Attach error for volume "pv" Volume is already used by pod(s) old'
        )


async def test_two_pods_on_one_node_share_one_attachment() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(pod("one", "data", on="a"))
        await b.client.create(pod("two", "data", on="a"))
        await b.attach("a")
        await b.kill("one")
        await b.settle()
        assert not (await b.attachment("a")).is_deleting
        assert await b.attached_where() == {"a"}


async def test_a_shared_volume_goes_to_all_nodes_at_once() -> None:
    nodes = ("a", "b", "c", "d", "e")
    async with bench(*nodes) as b:
        await b.pair(accessModes=["ReadWriteMany"])
        for name in nodes:
            await b.client.create(pod(f"on-{name}", "data", on=name))
        for name in nodes:
            await b.attachment(name)
        await b.answer("a", attachError={"message": "no"})
        for name in nodes[1:]:
            await b.attach(name)


async def test_a_node_that_is_gone_quiet_gets_six_minutes() -> None:
    async with bench("a", "b") as b:
        before = forced_detaches.labels("timeout")._value.get()
        await b.pair()
        await b.client.create(pod("old", "data", on="a"))
        await b.attach("a")
        await b.status("a", volumesInUse=[NAME])
        await b.unready("a")
        await b.kill("old")
        await b.client.create(pod("new", "data", on="b"))
        await b.settle(355)
        assert not (await b.attachment("a")).is_deleting
        await b.is_leaving("a", seconds=10)
        assert forced_detaches.labels("timeout")._value.get() == before + 1
        await b.detach("a")
        await b.attach("b")


async def test_without_force_it_is_waited_for_until_the_operator_vouches_for_the_node() -> None:
    async with bench("a", force_detach=False) as b:
        await b.pair()
        await b.client.create(pod("old", "data", on="a"))
        await b.attach("a")
        await b.status("a", volumesInUse=[NAME])
        await b.unready("a")
        await b.kill("old")
        await b.settle(3600)
        assert not (await b.attachment("a")).is_deleting
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        await b.client.patch(Node, "a", merge={"spec": {"taints": [taint]}})
        await b.detach("a")
        await b.wait_until_gone("a")


@pytest.mark.parametrize("in_use", [True, False])
async def test_a_deleted_node_is_believed_what_it_said_last(in_use: bool) -> None:
    async with bench("a", wait_for_deleted_nodes=True) as b:
        await b.pair()
        await b.client.create(pod("old", "data", on="a"))
        await b.attach("a")
        await b.status("a", volumesInUse=[NAME] if in_use else [])
        await b.settle()
        await b.client.delete(Node, "a")
        await b.kill("old")
        await b.settle(300)
        assert (await b.attachment("a")).is_deleting is not in_use
        await b.is_leaving("a", seconds=70)


async def test_the_grace_is_a_setting() -> None:
    async with bench("a", max_wait_for_unmount=5.0) as b:
        await b.pair()
        await b.client.create(pod("old", "data", on="a"))
        await b.attach("a")
        await b.status("a", volumesInUse=[NAME])
        await b.unready("a")
        await b.kill("old")
        await b.settle(4)
        assert not (await b.attachment("a")).is_deleting
        await b.is_leaving("a", seconds=2)


async def test_a_live_look_keeps_a_volume_that_the_node_has_just_begun_to_use() -> None:
    async with world() as around:
        await around.client.create(account())
        await around.client.create(node("a"))
        b = AttachDetachBench(around)
        controller = AttachDetach(around.role("ad"))
        async with running(controller.run()):
            await b.pair()
            await b.client.create(pod("old", "data", on="a"))
            await b.attach("a")
            # The caches stand still while the node speaks and the pod goes.
            seen = controller.nodes
            apply = seen._apply
            held: list[Any] = []
            seen._apply = held.append  # type: ignore[method-assign, assignment]
            await b.status("a", volumesInUse=[NAME])
            await b.kill("old")
            await b.settle(5)
            assert not (await b.attachment("a")).is_deleting
            seen._apply = apply  # type: ignore[method-assign]
            for batch in held:
                apply(batch)
            await b.settle(60)
            assert not (await b.attachment("a")).is_deleting


async def test_an_attach_error_is_told_at_growing_intervals_until_it_works() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        await b.answer("a", attachError={"message": "no such disk"})
        await b.wait_for_event(
            "FailedAttachVolume", 'AttachVolume.Attach failed for volume "pv" : no such disk'
        )
        await b.settle(10)  # after 0, 0.5, 1.5, 3.5, 7.5 seconds

        async def count() -> int:
            events = await b.client.list(Event, "default")
            return sum(max(e.count, 1) for e in events if e.reason == "FailedAttachVolume")

        assert await count() == 5
        await b.attach("a")
        await b.wait_for_event("SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pv" ')


async def test_an_attacher_that_does_not_answer_is_named() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        await b.attachment("a")
        await b.settle(119)
        assert await b.events("FailedAttachVolume") == []
        await b.settle(2)
        message = f"timed out waiting for external-attacher of {DRIVER} CSI driver to attach volume vol-pv"
        await b.wait_for_event(
            "FailedAttachVolume", f'AttachVolume.Attach failed for volume "pv" : {message}'
        )


async def test_an_attachment_that_somebody_deleted_is_made_again() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        await b.attach("a")
        first = await b.attachment("a")
        await b.client.delete(VolumeAttachment, first.name)
        await b.detach("a")

        async def made_again() -> bool:
            found = await b.client.find(VolumeAttachment, first.name)
            return found is not None and found.uid != first.uid

        await until(made_again)
        await b.wait_until_listed("a", present=False)
        await b.attach("a")


async def test_a_driver_that_needs_no_attaching_gets_none() -> None:
    async with bench("a") as b:
        await b.client.create(driver(attachRequired=False))
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        await b.settle()
        assert await b.attached_where() == set()
        await b.client.delete(CSIDriver, DRIVER)
        await b.attachment("a")  # without a CSIDriver attaching is required


async def test_a_node_that_attaches_itself_is_left_alone() -> None:
    async with bench("a") as b:
        await b.client.patch(Node, "a", merge={"metadata": {"annotations": None}})
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        await b.settle()
        assert await b.attached_where() == set()
        await b.client.patch(Node, "a", merge={"metadata": {"annotations": {MANAGED: "true"}}})
        await b.attachment("a")


async def test_a_restart_finds_what_is_attached_and_detaches_what_nobody_needs() -> None:
    async with world() as around:
        await around.client.create(account())
        for name in ("a", "b"):
            await around.client.create(node(name))
        b = AttachDetachBench(around)
        await b.pair()
        made = VolumeAttachment(
            metadata=ObjectMeta(name=b.attachment_name("a")),
            spec=VolumeAttachmentSpec(
                attacher=DRIVER, node_name="a", source=VolumeAttachmentSource(persistent_volume_name="pv")
            ),
        )
        await b.client.create(made)
        await b.client.create(pod("web", "data", on="b"))
        async with running(AttachDetach(around.role("ad")).run()):
            await b.wait_until_gone("a")
            await b.attach("b")
        # It dies, the pod goes, and the next one knows the volume from the node's status only by name.
        await b.kill("web")
        await b.client.delete(PersistentVolumeClaim, "data", "default")
        async with running(AttachDetach(around.role("ad")).run()):
            await b.detach("b")
            await b.wait_until_gone("b")


async def test_what_a_node_lists_without_a_volume_object_is_detached_by_name() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(pod("web", "data", on="a"))
        await b.attach("a")
        await b.client.patch(PersistentVolume, "pv", merge={"metadata": {"finalizers": None}})
        await b.client.delete(PersistentVolume, "pv")
        await b.kill("web")
        await b.detach("a")
        await b.wait_until_gone("a")
        await b.wait_until_listed("a", present=False)


def made_by_hand(name: str, on: str) -> VolumeAttachment:
    return VolumeAttachment(
        metadata=ObjectMeta(name=name),
        spec=VolumeAttachmentSpec(
            attacher=DRIVER, node_name=on, source=VolumeAttachmentSource(persistent_volume_name="pv")
        ),
    )


async def test_an_attachment_made_by_hand_is_kept_and_blocks_other_nodes() -> None:
    async with bench("a", "b") as b:
        await b.pair()
        await b.client.create(made_by_hand("mine", "a"))
        await b.client.patch(
            VolumeAttachment, "mine", merge={"status": {"attached": True}}, subresource="status"
        )
        await b.settle(400.0)
        assert await b.attached_where() == {"a"}
        await b.client.create(pod("p", "data", on="b"))
        await b.settle(5.0)
        assert await b.attached_where() == {"a"}
        assert len(await b.events("FailedAttachVolume", "p")) == 1
        await b.client.delete(VolumeAttachment, "mine")
        await b.attach("b")


async def test_a_pod_beside_an_attachment_made_by_hand_gets_the_one_that_its_kubelet_reads() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(made_by_hand("mine", "a"))
        await b.client.patch(
            VolumeAttachment, "mine", merge={"status": {"attached": True}}, subresource="status"
        )
        await b.client.create(pod("p", "data", on="a"))
        await b.attach("a")
        await b.wait_until_listed("a")
        await b.kill("p")
        await b.detach("a")
        await b.settle(5.0)
        assert [each.name for each in await b.client.list(VolumeAttachment)] == ["mine"]


async def test_deleted_nodes_are_forgotten_when_nothing_is_attached_to_them() -> None:
    async with bench("a", "b", "c") as b:
        assert b.controller is not None
        await b.settle()
        memory = b.controller.memory
        await b.client.delete(Node, "a")
        await b.settle()
        assert memory.last_in_use("a") is not None
        await b.client.delete(Node, "b")
        await b.settle()
        assert memory.last_in_use("a") is None
        assert memory.last_in_use("b") is not None


# --- in-tree volumes


def ebs(disk: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "awsElasticBlockStore": {"volumeID": disk}}]}


async def test_an_in_tree_volume_is_attached_by_its_csi_driver() -> None:
    async with bench("a") as b:
        await b.pair(csi=None, awsElasticBlockStore={"volumeID": "aws://us-east-1a/vol-pv"})
        await b.client.create(pod("web", "data", on="a"))
        made = await b.attachment("a")
        assert made.spec == VolumeAttachmentSpec(
            attacher=DRIVER, node_name="a", source=VolumeAttachmentSource(persistent_volume_name="pv")
        )
        await b.attach("a")
        await b.kill("web")
        await b.detach("a")
        await b.wait_until_gone("a")


async def test_an_in_tree_volume_of_a_pod_is_attached_with_its_spec() -> None:
    async with bench("a") as b:
        await b.client.create(pod("web", on="a", **ebs("aws:///vol-pv")))
        made = await b.attachment("a")
        assert made.spec.attacher == DRIVER
        inline = made.spec.source.inline_volume_spec
        assert made.spec.source.persistent_volume_name is None
        assert inline is not None
        assert inline.csi is not None
        assert (inline.csi.driver, inline.csi.volume_handle) == (DRIVER, "vol-pv")
        assert inline.access_modes == ("ReadWriteOnce",)
        await b.attach("a")
        text = f'AttachVolume.Attach succeeded for volume "{DRIVER}-vol-pv" '
        await b.wait_for_event("SuccessfulAttachVolume", text)


async def test_an_in_tree_volume_of_a_pod_is_compared_also_before_and_after_it_is_listed() -> None:
    async with bench("a") as b:
        assert b.controller is not None
        await b.client.create(pod("web", on="a", **ebs("vol-pv")))
        await b.attachment("a")
        await b.settle()
        (row,) = (await b.controller.compare_states()).volumes
        assert (row.volume, row.desired, row.actual) == (NAME, "attached", "attaching")
        await b.attach("a")
        await b.kill("web")
        await b.is_leaving("a")
        await b.wait_until_listed("a", present=False)
        await b.settle()
        (row,) = (await b.controller.compare_states()).volumes
        assert (row.volume, row.desired, row.actual) == (NAME, "", "detaching")


async def test_other_tasks_run_while_many_volumes_are_compared() -> None:
    async with bench("a") as b:
        assert b.controller is not None
        volumes = [{"name": f"v{n}", "awsElasticBlockStore": {"volumeID": f"vol-{n}"}} for n in range(100)]
        await b.client.create(pod("web", on="a", volumes=volumes))
        await b.settle()
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        assert len((await b.controller.compare_states()).volumes) == 100
        counting.cancel()
        assert turns >= 3


async def test_it_moves_when_the_old_node_has_unmounted_it() -> None:
    async with bench("a", "b") as b:
        await b.client.create(pod("old", on="a", **ebs("vol-pv")))
        await b.attach("a")
        await b.status("a", volumesInUse=[NAME])
        await b.client.create(pod("new", on="b", **ebs("aws:///vol-pv")))
        text = f'Multi-Attach error for volume "{DRIVER}-vol-pv" Volume is already used by pod(s) old'
        await b.wait_for_event("FailedAttachVolume", text)
        await b.kill("old")
        await b.status("a", volumesInUse=[])
        await b.detach("a")
        await b.attach("b")
        await b.wait_until_gone("a")


async def test_an_attachment_of_a_volume_that_no_pod_has_any_more_is_found_after_a_restart() -> None:
    async with world() as around:
        await around.client.create(node("a"))
        source = {"csi": {"driver": DRIVER, "volumeHandle": "vol-pv"}, "accessModes": ["ReadWriteOnce"]}
        spec = {"attacher": DRIVER, "nodeName": "a", "source": {"inlineVolumeSpec": source}}
        name = names.attachment_name("vol-pv", DRIVER, "a")
        left = codec.convert(VolumeAttachment, {"metadata": {"name": name}, "spec": spec})
        await around.client.create(left)
        async with running(AttachDetach(around.role("ad")).run()):
            await AttachDetachBench(around).wait_until_gone("a")


async def test_pods_that_name_a_disk_and_pods_of_its_claim_share_one_attachment() -> None:
    async with bench("a") as b:
        await b.pair()
        await b.client.create(pod("by-claim", "data", on="a"))
        await b.client.create(pod("by-name", on="a", **ebs("vol-pv")))
        await b.attach("a")
        assert (await b.attachment("a")).spec.source.persistent_volume_name == "pv"
        await b.kill("by-claim")
        await b.settle()
        assert not (await b.attachment("a")).is_deleting
        await b.kill("by-name")
        await b.detach("a")
        await b.wait_until_gone("a")
