"""Whatever users do to claims, volumes and classes, whatever the driver answers and whichever role crashes:

no volume has two claims, no bound claim loses its volume, no disk is without an object that will delete it,
and everything comes to rest. The control plane is in memory, in virtual time; the roles are the real ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.contract.provisioning.claims_env import claim, pod, storage_class, volume
from tests.controllers.objects import account
from tests.loops.inprocess import InProcessEnv, world
from tests.properties.crashing_role import CrashingCaller, CrashingTransport, RoleLife
from tests.support import scripted
from tests.support.scripted import Break, Delay, Fail, Lose
from volplane import sdk
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.errors import APIError
from volplane.api.storage import StorageClass
from volplane.base.virtual_time_loop import VirtualLoop
from volplane.client.client import Client
from volplane.controllers.binder.controller import Binder
from volplane.controllers.protection.controller import ClaimProtection, VolumeProtection
from volplane.csi.outcome import Code
from volplane.rules import binding
from volplane.sidecars import provisioner
from volplane.sidecars.provisioner.provision_request import read_request

# Without shrinking: one example takes half a second, and shrinking plays hundreds of them.
PHASES = (Phase.explicit, Phase.generate)
EXAMPLES = int(os.environ.get("VOLPLANE_EXAMPLES", "40"))
LOOKS = 8  # during a wait
CLAIMS = ("a", "b", "c")
STATIC = ("v", "w")
CLASSES: Mapping[str, dict[str, Any]] = {
    "fast": {},
    "late": {"mode": "WaitForFirstConsumer"},
    "keep": {"reclaimPolicy": "Retain"},
}
ROLES = ("binder", "claim-protection", "volume-protection", "provisioner")
CONTROLLERS = {"binder": Binder, "claim-protection": ClaimProtection, "volume-protection": VolumeProtection}
OPEN = (Code.UNAVAILABLE, Code.ABORTED)  # codes that leave open whether there is a volume
CODES = (Code.INTERNAL, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.ABORTED, Code.INVALID_ARGUMENT)

name_of = st.sampled_from(CLAIMS)
static = st.sampled_from(STATIC)
trouble = st.one_of(
    st.builds(Fail, st.sampled_from(CODES)),
    st.builds(Lose, st.sampled_from((Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE))),
    st.just(Break()),
    st.builds(Delay, st.sampled_from((0.01, 3.0, 30.0))),
)
deeds = st.one_of(
    st.tuples(st.just("claim"), name_of, st.sampled_from(("fast", "late", "keep", "")), st.booleans()),
    st.tuples(st.just("claim"), name_of, st.just("fast"), st.booleans()),
    st.tuples(st.just("delete claim"), name_of),
    st.tuples(st.just("volume"), static, st.sampled_from(("", "fast")), st.booleans()),
    st.tuples(st.just("delete volume"), st.integers(0, 2)),
    st.tuples(st.just("policy"), st.integers(0, 2), st.sampled_from(("Retain", "Delete"))),
    st.tuples(st.just("free"), st.integers(0, 2)),
    st.tuples(st.just("class"), st.sampled_from(tuple(CLASSES))),
    st.tuples(st.just("choose node"), name_of),
    st.tuples(st.just("pod"), name_of, st.booleans()),
    st.tuples(st.just("delete pod"), name_of),
    st.tuples(st.just("kill"), st.sampled_from(ROLES)),
    st.tuples(st.just("kill"), st.just("provisioner")),
    st.tuples(st.just("answer"), st.sampled_from(("CreateVolume", "DeleteVolume")), trouble),
    st.tuples(st.just("wait"), st.sampled_from((0.02, 0.3, 2.0, 60.0, 400.0))),
)
scripts = st.lists(deeds, min_size=8, max_size=30)


class Honest(scripted.ScriptedDriver):
    """A final error says that there is no volume: a driver that has made it cannot answer so."""

    async def _do(self, method: str, request: Any, work: Any) -> Any:
        script = self._script[method]
        if method == "CreateVolume" and request.name in self.volumes:
            while script and isinstance(script[0], Fail) and script[0].code not in OPEN:
                script.popleft()
        return await super()._do(method, request, work)


class ClaimsPlane:
    def __init__(self, around: InProcessEnv) -> None:
        self.around, self.client = around, around.client
        self.driver = Honest()
        for method in ("CreateVolume", "DeleteVolume"):
            self.driver.always(method, Delay(0.2))  # long enough for something to happen meanwhile
        self.caller = sdk.Local(self.driver, component="csi-provisioner")
        self.roles: dict[str, tuple[asyncio.Task[None], RoleLife]] = {}
        self.lives: list[RoleLife] = []
        self.pairs: dict[str, tuple[str, str]] = {}  # claim's uid → its key, its volume's uid
        self.kept: set[str] = set()  # handles whose volume was to be retained when it went
        self.told: list[str] = []
        # Looks at every change, not only at what is there after a deed.
        self.volumes = self.client.cache(PersistentVolume)
        self.volumes.subscribe(self._volume_changed)

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        source = (new or old).spec.csi  # type: ignore[union-attr]
        assert source is not None
        if new is None and old is not None and old.spec.persistent_volume_reclaim_policy != "Delete":
            self.kept.add(source.volume_handle)

    async def open(self) -> None:
        await self.client.create(account())
        for name, more in CLASSES.items():
            await self.client.create(storage_class(name, **more))
        for role in ROLES:
            self.start(role)

    def start(self, role: str) -> None:
        life = RoleLife()
        self.lives.append(life)
        transport: Any = CrashingTransport(self.around.core.in_process_transport(), life)
        client = Client(transport, caches=self.around.caches, component=role)
        if role == "provisioner":
            caller: Any = CrashingCaller(self.caller, life)
            work = provisioner.run(client, provisioner.ProvisionerOptions(), caller=caller, identity="me")
        else:
            work = CONTROLLERS[role](client).run()
        self.roles[role] = (asyncio.ensure_future(work), life)

    async def kill(self, role: str) -> None:
        task, life = self.roles.pop(role)
        life.over.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for role in list(self.roles):
            await self.kill(role)
        for life in self.lives:
            await life.wait_until_settled()
        await self.caller.close()

    # --- what happens

    async def act(self, deed: tuple[Any, ...]) -> None:
        with suppress(APIError):  # what makes no sense is refused
            await self._act(*deed)

    async def _act(self, deed: str, *about: Any) -> None:
        match deed, *about:
            case "claim", name, cls, large:
                await self.client.create(claim(name, size="2Gi" if large else "1Gi", cls=cls))
            case "delete claim", name:
                await self.client.delete(PersistentVolumeClaim, name, "default")
            case "volume", name, cls, keep:
                policy = "Retain" if keep else "Delete"
                await self.client.create(volume(name, "2Gi", cls, persistentVolumeReclaimPolicy=policy))
            case "delete volume", at:
                if (found := await self._volume(at)) is not None:
                    await self.client.delete(PersistentVolume, found.name)
            case "policy", at, policy:
                if (found := await self._volume(at)) is not None:
                    patch = {"spec": {"persistentVolumeReclaimPolicy": policy}}
                    await self.client.patch(PersistentVolume, found.name, merge=patch)
            case "free", at:
                found = await self._volume(at)
                if found is not None and found.status.phase == "Released":
                    patch = {"spec": {"claimRef": None}}
                    revision = found.metadata.resource_version
                    await self.client.patch(PersistentVolume, found.name, merge=patch, revision=revision)
            case "class", name:
                await self.client.delete(StorageClass, name, missing_ok=True)
                await self.client.create(storage_class(name, **CLASSES[name]))
            case "choose node", name:
                patch = {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: "n1"}}}
                await self.client.patch(PersistentVolumeClaim, name, "default", merge=patch)
            case "pod", name, scheduled:
                await self.client.create(pod(name, name, node="n1" if scheduled else ""))
            case "delete pod", name:
                await self.client.delete(Pod, name, "default", grace=0)
            case "kill", role:
                if role in self.roles:
                    await self.kill(role)
                self.start(role)
            case "answer", method, outcome:
                self.driver.script(method, outcome)
            case "wait", seconds:
                for _ in range(LOOKS):
                    await asyncio.sleep(seconds / LOOKS)
                    await self.check()

    async def _volume(self, at: int) -> PersistentVolume | None:
        found = sorted(await self.client.list(PersistentVolume), key=lambda v: v.name)
        return found[at] if at < len(found) else None

    # --- what must hold at every moment

    async def check(self) -> None:
        claims = await self.client.list(PersistentVolumeClaim)
        volumes = {v.name: v for v in await self.client.list(PersistentVolume)}
        self._one_claim_each(claims, volumes)
        self._nothing_lost(claims, volumes)
        self._no_disk_forgotten(claims, volumes)

    def _one_claim_each(
        self, claims: list[PersistentVolumeClaim], volumes: dict[str, PersistentVolume]
    ) -> None:
        named = [c.spec.volume_name for c in claims if c.status.phase == "Bound"]
        assert len(named) == len(set(named)), f"two claims are bound to one volume: {named}"

    def _nothing_lost(
        self, claims: list[PersistentVolumeClaim], volumes: dict[str, PersistentVolume]
    ) -> None:
        alive = {c.uid: c for c in claims}
        by_uid = {v.uid: v for v in volumes.values()}
        for uid, (key, held) in self.pairs.items():
            if uid in alive:
                found = by_uid.get(held)
                assert found is not None, f"{key} lost its volume"
                assert found.spec.claim_ref is not None, f"{key}: its volume is free"
                assert found.spec.claim_ref.uid == uid, f"{key}: its volume is another's"
        for each in claims:
            mine = volumes.get(each.spec.volume_name) if each.spec.volume_name else None
            if mine is not None and binding.is_pair(each, mine):
                self.pairs[each.uid] = (each.key, mine.uid)

    def _no_disk_forgotten(
        self, claims: list[PersistentVolumeClaim], volumes: dict[str, PersistentVolume]
    ) -> None:
        ordered = {o.name for c in claims if (o := read_request(c, scripted.NAME)) is not None}
        handles = {v.spec.csi.volume_handle for v in volumes.values() if v.spec.csi is not None}
        for name, disk in self.driver.volumes.items():
            known = name in ordered or disk.volume_id in handles or disk.volume_id in self.kept
            assert known, f"disk {disk.volume_id} will never be deleted"

    # --- and in the end

    async def rest(self) -> None:
        """With everybody alive and the driver well, nothing changes any more, and nothing is left over."""
        for method in ("CreateVolume", "DeleteVolume"):
            self.driver._script[method].clear()
        await asyncio.sleep(4000)
        await self.check()
        before = await self._picture()
        await asyncio.sleep(2000)
        assert await self._picture() == before, "it does not come to rest"
        claims = await self.client.list(PersistentVolumeClaim)
        used = {p.name for p in await self.client.list(Pod) if p.spec.node_name}
        for each in claims:
            assert not each.is_deleting or each.name in used, f"{each.key} does not go"
            assert read_request(each, scripted.NAME) is None, f"{each.key} keeps its order"
        for held in await self.client.list(PersistentVolume):
            phase, policy = held.status.phase, held.spec.persistent_volume_reclaim_policy
            assert not held.is_deleting or phase == "Bound", f"{held.name} does not go"
            assert phase != "Released" or policy == "Retain", f"{held.name} is released and stays"

    async def _picture(self) -> dict[str, str]:
        seen: list[Any] = [
            *await self.client.list(PersistentVolumeClaim),
            *await self.client.list(PersistentVolume),
        ]
        return {f"{type(o).__name__}/{o.key}": o.metadata.resource_version for o in seen}


async def make_script(script: list[tuple[Any, ...]], made: list[Any], deleted: list[Any]) -> None:
    """`made` and `deleted`: how the driver's first calls end."""
    async with world() as around:
        plane = ClaimsPlane(around)
        plane.driver.script("CreateVolume", *made)
        plane.driver.script("DeleteVolume", *deleted)
        await plane.open()
        await plane.act(("claim", "a", "fast", False))
        try:
            for deed in script:
                await plane.act(deed)
                await plane.check()
                await asyncio.sleep(0.01)
                await plane.check()
            await plane.rest()
        finally:
            await plane.close()


def play(tale: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(tale())


@settings(max_examples=EXAMPLES, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(scripts, st.lists(trouble, max_size=5), st.lists(trouble, max_size=3))
def test_invariants_hold_after_every_step_and_everything_comes_to_rest(
    script: list[tuple[Any, ...]], made: list[Any], deleted: list[Any]
) -> None:
    play(lambda: make_script(script, made, deleted))
