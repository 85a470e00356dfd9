"""A cluster for synchronous tests: it runs in its own thread.

All roles run in this process, so that every call to the driver can be recorded, held, dropped and repeated;
the driver itself is a process in a container. After a test its objects are deleted in the order in which a
user would, and leftovers are reported.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from volplane.api.core import Event, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.labels import HOSTNAME_LABEL
from volplane.api.meta import Resource
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.api.storage import StorageClass, VolumeAttachment
from volplane.client.client import Client
from volplane.cluster import external_driver, power_loss
from volplane.cluster.apply import parse_object
from volplane.cluster.external_driver import ExternalDriver
from volplane.cluster.single_process import Cluster, ClusterOptions
from volplane.cluster.user_drivers import UserDrivers
from volplane.csi.call_interceptor import CallInterceptor, CallRule, CsiCall, SendTwice
from volplane.host import Host
from volplane.host.mounts import read_table, unmount
from volplane.testing.leftovers import Leftovers, release_devices
from volplane.testing.object_handles import (
    DATA,
    DEVICE,
    NAMESPACE,
    WAIT_TIMEOUT,
    ClaimHandle,
    RunningPod,
    SnapshotHandle,
)
from volplane.testing.recorded_call import RecordedCall
from volplane.testing.waiting import until

T = TypeVar("T")
R = TypeVar("R", bound=Resource)
_WAIT = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


class WaitTimeout(AssertionError):
    """A condition did not become true in time; the message has the cluster's warnings."""


class SyncCluster:
    """The fixture `volplane_cluster`. Every method waits until it is done."""

    def __init__(self, cluster: Cluster, tap: CallInterceptor) -> None:
        self.cluster, self.tap = cluster, tap
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._thread: threading.Thread | None = None
        self._numbers = itertools.count(1)
        self._made: list[tuple[type[Resource], str]] = []
        self._before: set[str] = set()
        self._first_call = 0
        self._leftovers = Leftovers(cluster, tap)

    # --- start and stop

    @classmethod
    def start(cls, driver: object, settings: Mapping[str, Any], directory: Path) -> SyncCluster:
        """Start the cluster. Raises CannotStart and other errors of the start."""
        started: Future[SyncCluster] = Future()
        thread = threading.Thread(
            target=_run_thread, args=(cls, driver, settings, directory, started), daemon=True
        )
        thread.start()
        try:
            handle = started.result()
        except BaseException:
            started.cancel()  # also on Ctrl-C
            thread.join()
            raise
        handle._thread = thread
        return handle

    def stop(self) -> None:
        """Stop everything, unmount, and delete the directory."""
        self._loop.call_soon_threadsafe(self._end.set)
        if self._thread is not None:
            self._thread.join()

    async def wait_for_stop(self) -> None:
        await self._end.wait()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = WAIT_TIMEOUT) -> T:
        """Run your coroutine in the cluster's event loop, where it can use `client`."""

        async def within() -> T:
            async with asyncio.timeout(timeout):
                return await work

        return asyncio.run_coroutine_threadsafe(within(), self._loop).result()

    @property
    def client(self) -> Client:
        return self.cluster.client

    @property
    def kubeconfig(self) -> Path:
        """The path of a kubeconfig for kubectl and other clients."""
        return self.cluster.layout.kubeconfig

    @property
    def nodes(self) -> list[str]:
        return [member.name for member in self.cluster.members]

    @property
    def driver(self) -> str:
        """The name of the driver under test."""
        facts = self.cluster.discovered.facts
        return facts[0].name if facts else "ebs.csi.aws.com"

    # --- calls to the driver

    @property
    def calls(self) -> list[RecordedCall]:
        """All calls to the driver since the test began, in the order of their start, without secrets."""
        return [RecordedCall(call) for call in self.tap.calls if call.number > self._first_call]

    def calls_to(self, *rpcs: str) -> list[RecordedCall]:
        return [call for call in self.calls if call.method in rpcs]

    @contextmanager
    def hold(self, rpc: str) -> Iterator[HeldCall]:
        """Delay the next call of that name until the block ends or `release` is called."""
        rule = self._run_on_loop(lambda: self.tap.hold(rpc))
        try:
            yield HeldCall(self, rule)
        finally:
            self._run_on_loop(lambda: self.tap.remove_rule(rule))

    def cut(self, rpc: str, *, after: bool = False, times: int = 1) -> InjectedFault:
        """The next caller gets UNAVAILABLE: the call is not sent, or (`after`) its answer is dropped."""
        return InjectedFault(self, self._run_on_loop(lambda: self.tap.cut(rpc, after=after, times=times)))

    def delay(self, rpc: str, seconds: float, times: int = 1) -> InjectedFault:
        return InjectedFault(self, self._run_on_loop(lambda: self.tap.delay(rpc, seconds, times)))

    def repeat(self, rpc: str, times: int = 1) -> InjectedFault:
        """Send the next call a second time after its answer; the caller gets the second answer."""
        return InjectedFault(self, self._run_on_loop(lambda: self.tap.send_twice(rpc, times)))

    def kill_at(self, rpc: str, *, after: bool = False) -> InjectedFault:
        """Kill all instances of the driver (SIGKILL) when that call is made, or (`after`) answered."""

        async def kill(call: CsiCall) -> None:
            await self._kill_driver()

        rule: Callable[..., CallRule] = self.tap.after if after else self.tap.before
        return InjectedFault(self, self._run_on_loop(lambda: rule(rpc, kill)))

    def kill_driver(self, node: str = "") -> int:
        """Kill the driver's instances (SIGKILL), on one node or on all; returns their number."""
        return self.run(self._kill_driver(node))

    async def _kill_driver(self, node: str = "") -> int:
        places = [str(m.root / "containers") for m in self.cluster.members if node in ("", m.name)]
        killed = [
            await self.cluster.host.call(power_loss.kill_containers, place, "driver") for place in places
        ]
        return sum(killed)

    # --- nodes

    def crash(self, node: str) -> None:
        """Simulate a power loss of the node: kubelet, containers and mounts are gone. `revive` starts it."""
        self.run(self.cluster.crash(node))

    def revive(self, node: str) -> None:
        self.run(self.cluster.revive(node))

    # --- objects

    def claim(
        self,
        size: str = "1Gi",
        *,
        mode: str = "ReadWriteOnce",
        block: bool = False,
        storage_class: str = "",
        source: ClaimHandle | SnapshotHandle | None = None,
        **spec: Any,
    ) -> ClaimHandle:
        """Create a claim of the driver's class, empty or from another claim or a snapshot."""
        wanted: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": size}}, **spec}
        if block:
            wanted["volumeMode"] = "Block"
        if storage_class:
            wanted["storageClassName"] = storage_class
        if source is not None:
            wanted["dataSource"] = source.reference
        made = self.make("v1", "PersistentVolumeClaim", "claim", spec=wanted)
        return ClaimHandle(self, made.name, block=block)

    def pod(
        self, claim: ClaimHandle, *, node: str = "", readonly: bool = False, wait: bool = True, **spec: Any
    ) -> RunningPod:
        """Create a pod with the claim's volume at /data, or as /dev/data, and (`wait`) wait until it runs."""
        container: dict[str, Any] = {"name": "main", "image": "busybox", "command": ["sh", "-c", _WAIT]}
        if claim.block:
            container["volumeDevices"] = [{"name": "data", "devicePath": DEVICE}]
        else:
            container["volumeMounts"] = [{"name": "data", "mountPath": DATA, "readOnly": readonly}]
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim.name}}
        wanted = {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [volume],
            **({"nodeSelector": {HOSTNAME_LABEL: node}} if node else {}),
            **spec,
        }
        made = RunningPod(self, self.make("v1", "Pod", "pod", spec=wanted).name)
        if wait:
            made.wait()
        return made

    def make(self, api_version: str, kind: str, prefix: str, **fields: Any) -> Any:
        """Create any object; it is deleted after the test. Its name is the prefix and a number."""
        name = f"{prefix}-{next(self._numbers)}"
        meta = {"name": name, "namespace": NAMESPACE}
        obj = parse_object({"apiVersion": api_version, "kind": kind, "metadata": meta, **fields})
        self._made.append((type(obj), name))
        return self.run(self.client.create(obj))

    # --- waiting

    def until(
        self, kind: type[R], holds: Callable[[], object], what: str, timeout: float = WAIT_TIMEOUT
    ) -> None:
        """Watch until `holds()`. Raises WaitTimeout with the cluster's warnings."""
        try:
            self.run(until(self.client, kind, holds), timeout)
        except TimeoutError:
            raise WaitTimeout(f"{what}: not within {timeout:g} s\n{self.diagnostics()}") from None

    def find(self, kind: type[R], name: str, namespace: str = NAMESPACE) -> R | None:
        async def get_object() -> R | None:
            return await self.client.find(kind, name, namespace)

        return self.run(get_object())

    def diagnostics(self) -> str:
        """The cluster's warnings, and the last calls to the driver."""
        events = self.run(self.client.list(Event, NAMESPACE))
        words = [
            f"  {e.involved_object.name}: {e.reason}: {e.message}" for e in events if e.type == "Warning"
        ]
        calls = [f"  {c.method} {c.code} {c.message} {c.note}".rstrip() for c in self.calls[-10:]]
        return "\n".join(["warnings:", *words[-10:], "last calls to the driver:", *calls])

    def _run_on_loop(self, work: Callable[[], T]) -> T:
        async def within() -> T:
            return work()

        return self.run(within())

    # --- between tests

    def begin_test(self) -> None:
        self._before = set(self.leftovers())
        self._first_call = self.tap.calls[-1].number if self.tap.calls else 0

    def clean(self) -> list[str]:
        """Delete the objects of the test; returns what is left."""
        self._run_on_loop(self.tap.remove_rules)
        for member in self.cluster.members:
            if member.name not in self.cluster.nodes:
                self.revive(member.name)
        first: list[type[Resource]] = [Pod, VolumeSnapshot, PersistentVolumeClaim]
        made = {kind for kind, _ in self._made}
        for kind in (*first, *(made - set(first))):
            self.remove(kind, *(name for known, name in self._made if known is kind))
        self._made.clear()
        gone: list[type[Resource]] = [PersistentVolume, VolumeAttachment]
        if VolumeSnapshot in made:
            gone.append(VolumeSnapshotContent)
        try:
            for kind in gone:
                self._await_none(kind)
        except WaitTimeout as late:
            return [str(late)]
        return self.run(self._leftovers.find_new(self._before))

    def _await_none(self, kind: type[Resource]) -> None:
        cache = self.client.cache(kind)
        self.until(kind, lambda: not _without_retained(cache.all()), f"every {kind.__name__} is gone")

    def remove(self, kind: type[Resource], *names: str) -> None:
        """Delete the objects, and wait until they are gone."""
        if not names:
            return
        for name in names:
            self.run(self.client.delete(kind, name, NAMESPACE, missing_ok=True))
        cache = self.client.cache(kind)
        what = f"{kind.__name__} {', '.join(names)} is gone"
        self.until(kind, lambda: not any(cache.get(name, NAMESPACE) for name in names), what)

    def leftovers(self) -> list[str]:
        """Mounts and devices of volumes, and what the driver lists without an object in the cluster."""
        return self.run(self._leftovers.find())


class InjectedFault:
    """A disturbance of calls; `wait_for_call` waits until a call is affected."""

    def __init__(self, handle: SyncCluster, rule: CallRule) -> None:
        self._handle, self._rule = handle, rule

    def wait_for_call(self, timeout: float = WAIT_TIMEOUT) -> RecordedCall:
        try:
            return RecordedCall(self._handle.run(self._rule.wait_for_call(), timeout))
        except TimeoutError:
            diagnostics = self._handle.diagnostics()
            raise WaitTimeout(
                f"{self._rule.method} was not called within {timeout:g} s\n{diagnostics}"
            ) from None

    @property
    def calls(self) -> list[RecordedCall]:
        return [RecordedCall(call) for call in self._rule.met]

    @property
    def answers(self) -> list[tuple[Any, Any]]:
        """Both answers of each call that was sent twice."""
        return list(self._rule.answers) if isinstance(self._rule, SendTwice) else []


class HeldCall(InjectedFault):
    def release(self) -> None:
        self._handle._run_on_loop(lambda: self._handle.tap.remove_rule(self._rule))


def _without_retained(objects: Iterable[Resource]) -> list[Resource]:
    """The objects without volumes that are retained when their claims are deleted."""

    def is_retained(obj: Resource) -> bool:
        return isinstance(obj, PersistentVolume) and obj.spec.persistent_volume_reclaim_policy == "Retain"

    return [obj for obj in objects if not is_retained(obj)]


def resolve_driver(driver: object, directory: Path) -> ExternalDriver | None:
    """The driver of the fixture `csi_driver`. Raises InvalidDriver."""
    match driver:
        case None:
            return None
        case ExternalDriver():
            return driver
        case Path():
            return external_driver.read_driver_file(driver)
        case str():
            return external_driver.from_command(driver, directory)
    raise TypeError(f"csi_driver must be a command, a Path, an ExternalDriver or None, not {driver!r}")


def _run_thread(
    cls: type[SyncCluster],
    driver: object,
    settings: Mapping[str, Any],
    directory: Path,
    started: Future[SyncCluster],
) -> None:
    place = Path(tempfile.mkdtemp(prefix="vpx-"))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_cluster(cls, driver, settings, directory, place, started))
    except BaseException as error:
        if not started.done():
            started.set_exception(error)
    finally:
        _remove_directory(place)


def _remove_directory(place: Path) -> None:
    """Unmount what a test has left there; a directory with a mount is never removed."""
    for entry in reversed(list(read_table().under(str(place)))):
        unmount(entry.target, detach=True)
    if not read_table().under(str(place)):
        shutil.rmtree(place, ignore_errors=True)


async def _run_cluster(
    cls: type[SyncCluster],
    driver: object,
    settings: Mapping[str, Any],
    directory: Path,
    place: Path,
    started: Future[SyncCluster],
) -> None:
    found = resolve_driver(driver, directory)
    user_drivers = UserDrivers(drivers=(found,), builtin=False) if found else UserDrivers()
    host = Host()
    tap = CallInterceptor()
    try:
        async with Cluster(
            ClusterOptions(data_dir=str(place / "c"), **{"ui": "off", **settings}),
            user_drivers,
            interceptor=tap,
        ) as cluster:
            await cluster.wait_ready()
            for kind in (Pod, PersistentVolumeClaim, PersistentVolume, VolumeAttachment, StorageClass):
                await cluster.client.cache(kind).wait_synced()
            handle = cls(cluster, tap)
            started.set_result(handle)
            await handle.wait_for_stop()
    finally:
        tap.remove_rules()
        await release_devices(host, place, tap.calls)
        await host.close()
