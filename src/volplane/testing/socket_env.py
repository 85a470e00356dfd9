"""The world of bare calls: the driver's sockets, and a machine that is searched for what it leaves.

Every volume is remembered with where it is attached, staged and published, so that a case that breaks off can
be cleaned up by the same calls that a cluster would make. `around` puts something in the way of one method:
the cases that call twice, at once, too briefly or into a dying driver are all made of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf.message import Message

from volplane.cluster.external_driver.model import ExternalDriver
from volplane.csi import convert, v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.outcome import CallError, Code
from volplane.csi.services import METHODS
from volplane.host import Host, copies
from volplane.host.mounts import read_table, unmount
from volplane.testing import capabilities
from volplane.testing.case import CaseFailure, NotSupported, require
from volplane.testing.driver_process import DriverProcess, DriverStartError
from volplane.testing.volume import VolumeUnderTest

MIB, GIB = 1 << 20, 1 << 30
CALL = 60.0  # seconds for one call, unless the case's own time is shorter
SETTLE = 30.0  # seconds until a call that was disturbed must have come to its end
Mode = v1.VolumeCapability.AccessMode
WRITER = convert.capability(Mode.SINGLE_NODE_WRITER)
BLOCK = convert.capability(Mode.SINGLE_NODE_WRITER, block=True)
SHARED = convert.capability(Mode.MULTI_NODE_MULTI_WRITER)
_UNSETTLED = (Code.ABORTED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED)

CallWrapper = Callable[["DriverSocket", str, Message], Awaitable[Any]]


class DriverSocket:
    """One of the driver's sockets, with what may stand in its way."""

    def __init__(self, instance: DriverProcess, bench: SocketEnv) -> None:
        self.instance, self._bench = instance, bench
        self.id, self.topology, self.most = "", dict[str, str](), 0  # of a node: its own answer

    async def call_once(self, method: str, request: Message, *, timeout: float = CALL) -> Any:
        """The answer; of a streaming call all answers."""
        if METHODS[method].streams:
            return await self._stream(method, request, timeout)
        return await self.instance.channel.call(method, request, timeout=timeout)

    async def _stream(self, method: str, request: Message, timeout: float) -> list[Any]:
        replies: list[Any] = []

        async def send() -> Message:
            """What is recorded: all of it in one message."""
            whole = METHODS[method].reply()
            async for reply in self.instance.channel.stream(method, request, timeout=timeout):
                replies.append(reply)
                whole.MergeFrom(reply)
            return whole

        channel = self.instance.channel
        await self._bench.tap.intercept(method, channel.component, channel.where, request, send)
        return replies

    async def call(self, method: str, request: Message) -> Any:
        """As a cluster calls: whoever is told ABORTED comes again, because something else was under way."""
        around = self._bench.around.pop(method, None)
        if around is not None:
            return await around(self, method, request)
        return await self.call_until_settled(method, request, unsettled=(Code.ABORTED,))

    async def call_until_settled(
        self, method: str, request: Message, unsettled: tuple[Code, ...] = _UNSETTLED
    ) -> Any:
        """Repeated, as a caller does who does not know how the last one ended, until it is answered."""
        if method == "ControllerUnpublishVolume":
            # A disk may be held for a moment by a mount namespace that others have just copied. The section's
            # errors leave FAILED_PRECONDITION open here, and every cluster tries a detach again.
            unsettled += (Code.FAILED_PRECONDITION,)
        end, pause = time.monotonic() + SETTLE, 0.01
        while True:
            try:
                return await self.call_once(method, request)
            except CallError as error:
                if error.code not in unsettled or time.monotonic() > end:
                    raise
            self._bench.repeated += 1
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    @property
    def root(self) -> Path:
        return self.instance.root


class SocketEnv:
    """`async with Bench(…) as bench`: the driver runs inside."""

    def __init__(
        self,
        guest: ExternalDriver,
        directory: Path,
        *,
        seed: int = 0,
        nodes: int = 2,
        parameters: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        mutable: Mapping[str, str] | None = None,
        size: int = GIB,
    ) -> None:
        self.directory, self.tap, self.size = directory, CallInterceptor(), size
        self.parameters, self.secrets = dict(parameters or {}), dict(secrets or {})
        self.mutable = dict(mutable or {})
        self.random = Random(seed)
        self.host = Host()
        self.around: dict[str, CallWrapper] = {}
        self.repeated = 0  # calls that were made again, as a cluster does, because the answer asked for it
        self.volumes: list[VolumeUnderTest] = []
        self.snapshots: list[str] = []
        self.groups: list[v1.VolumeGroupSnapshot] = []
        self.capabilities = capabilities.DriverCapabilities()
        assert guest.node is not None
        mode = "all" if guest.is_single_program else "node"
        made = [
            DriverProcess(f"node-{i}", guest.node, directory, self.host, mode=mode, interceptor=self.tap)
            for i in range(1, nodes + 1)
        ]
        self.nodes = [DriverSocket(instance, self) for instance in made]
        self.controller = self.nodes[0]
        if guest.controller is not None and not guest.is_single_program:
            own = DriverProcess(
                "controller", guest.controller, directory, self.host, mode="controller", interceptor=self.tap
            )
            self.controller = DriverSocket(own, self)

    @property
    def instances(self) -> list[DriverProcess]:
        own = [] if self.controller in self.nodes else [self.controller.instance]
        return own + [node.instance for node in self.nodes]

    async def __aenter__(self) -> SocketEnv:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            await asyncio.gather(*(instance.start() for instance in self.instances))
            await self.query_driver()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for instance in self.instances:
            await instance.stop()
        await self.force_unmount()
        # A driver that leaks devices is told so by its case; the machine is given back all the same.
        for device, file in (await self.host.loops()).items():
            if file.startswith(f"{self.directory}/"):
                with suppress(OSError):
                    await self.host.loop_detach(device)
        await self.host.close()

    async def query_driver(self) -> None:
        """What the driver promises, and who its nodes are."""
        self.capabilities = await capabilities.query_driver(
            self.controller.instance.channel, self.nodes[0].instance.channel, timeout=CALL
        )
        for node in self.nodes:
            info = await node.call_once("NodeGetInfo", v1.NodeGetInfoRequest())
            node.id, node.most = info.node_id, info.max_volumes_per_node
            node.topology = dict(info.accessible_topology.segments)
        self.capabilities.probed = {
            need
            for need, holds in (
                ("secrets", self.secrets),
                ("mutable", self.mutable),
                ("nodes", len(self.nodes) > 1),
            )
            if holds
        }

    async def supports(self, capability: v1.VolumeCapability) -> bool:
        """Whether volumes can be made with it; shared ones, so that two nodes reach them."""
        volume = VolumeUnderTest(
            self, self.create_request(self.new_name(), capability=capability), capability
        )
        try:
            await volume.create()
            if capability is SHARED:
                self.require_second_node(volume)
        except (CallError, NotSupported):
            return False
        finally:
            await volume.remove()
        return True

    # --- words

    def new_name(self, prefix: str = "pvc") -> str:
        """A name as Kubernetes gives it."""
        return f"{prefix}-{self.random.getrandbits(128):032x}"

    def path(self, node: DriverSocket, *parts: str) -> Path:
        made = node.root.joinpath(*parts)
        made.parent.mkdir(parents=True, exist_ok=True)
        return made

    # --- calls that build a volume's life

    def create_request(
        self,
        name: str,
        *,
        capability: v1.VolumeCapability = WRITER,
        size: int = 0,
        source: v1.VolumeContentSource | None = None,
        node: DriverSocket | None = None,
    ) -> v1.CreateVolumeRequest:
        request = v1.CreateVolumeRequest(
            name=name,
            volume_capabilities=[capability],
            capacity_range={"required_bytes": size or self.size},
            parameters=self.parameters,
            secrets=self.secrets,
        )
        if source is not None:
            request.volume_content_source.CopyFrom(source)
        if self.capabilities.has("topology") and (node or self.nodes[0]).topology:
            own = convert.topology((node or self.nodes[0]).topology)
            request.accessibility_requirements.CopyFrom(
                v1.TopologyRequirement(requisite=[own], preferred=[own])
            )
        return request

    async def create(self, **more: Any) -> VolumeUnderTest:
        """A new volume. Raises NotPromised if the driver refuses the capability for good."""
        capability = more.get("capability", WRITER)
        request = self.create_request(self.new_name(), **more)
        volume = VolumeUnderTest(self, request, capability)
        self.volumes.append(volume)
        try:
            await volume.create()
        except CallError as error:
            if error.code is Code.INVALID_ARGUMENT and capability is not WRITER:
                self.volumes.remove(volume)
                raise NotSupported(
                    f"CreateVolume refuses {describe_capability(capability)}: {error.message}"
                ) from None
            raise
        return volume

    async def create_and_publish(self, node: DriverSocket | None = None, **more: Any) -> VolumeUnderTest:
        """A new volume, all the way to a target on the node."""
        at = node or self.nodes[0]
        volume = await self.create(node=at, **more)
        await volume.attach_stage_publish(at)
        return volume

    async def create_with_data(self, of: int = MIB, **more: Any) -> tuple[VolumeUnderTest, bytes]:
        """One with data on it, in use at the first node; and the data."""
        volume, data = await self.create_and_publish(**more), self.random_data(of)
        await volume.write(volume.target(self.nodes[0]), data)
        return volume, data

    def require_second_node(self, volume: VolumeUnderTest) -> DriverSocket:
        """The second node, if the volume can be reached from there."""
        if len(self.nodes) < 2:
            raise NotSupported("it runs on one node only")
        second = self.nodes[1]
        places = [dict(t.segments) for t in volume.made.accessible_topology]
        if places and not any(place.items() <= second.topology.items() for place in places):
            raise NotSupported(f"its volumes stay in {places[0]}, and {second.id} is not there")
        return second

    async def expect_error(
        self, codes: tuple[Code, ...], remote: DriverSocket, method: str, request: Message, when: str
    ) -> None:
        """The call is refused with one of the codes, or the driver is wrong."""
        names = " or ".join(code.name for code in codes)
        try:
            await remote.call_once(method, request)
        except CallError as error:
            if error.code not in codes:
                raise CaseFailure(
                    f"{method} {when}: {error.code.name} ({error.message}), demanded is {names}"
                ) from None
        else:
            raise CaseFailure(f"{method} {when}: OK, demanded is {names}")

    # --- the end of a case

    async def clean(self) -> list[str]:
        """Undo what a case left, by the calls that a cluster makes; what could not be undone, in words."""
        self.around.clear()
        problems: list[str] = []
        for instance in self.instances:
            if not instance.running:
                await instance.start()
        for volume in reversed(self.volumes):
            problems += await volume.remove()
        for method, request in self._snapshot_deletions():
            try:
                await self.controller.call_until_settled(method, request)
            except CallError as error:
                problems.append(f"{method}: {error}")
        self.volumes.clear()
        self.snapshots.clear()
        self.groups.clear()
        await self.force_unmount()
        return problems

    def _snapshot_deletions(self) -> Iterator[tuple[str, Message]]:
        """How the snapshots that a case has made are removed."""
        for snapshot in self.snapshots:
            yield "DeleteSnapshot", v1.DeleteSnapshotRequest(snapshot_id=snapshot, secrets=self.secrets)
        for group in self.groups:
            yield (
                "DeleteVolumeGroupSnapshot",
                v1.DeleteVolumeGroupSnapshotRequest(
                    group_snapshot_id=group.group_snapshot_id,
                    snapshot_ids=[one.snapshot_id for one in group.snapshots],
                    secrets=self.secrets,
                ),
            )

    async def recover(self) -> None:
        """After a driver that does not answer, or does not start: from the beginning."""
        self.around.clear()
        for instance in self.instances:
            await instance.kill()
            await self.host.call(Path(instance.socket).unlink, missing_ok=True)
            try:
                await instance.start()
            except DriverStartError:  # on what it has kept; without it, the other cases can still be run
                await instance.delete_state()
                await instance.start()

    async def describe_wait(self) -> str:
        return ""  # for the driver, whose open calls are known

    def log_positions(self) -> dict[str, int]:
        return {instance.name: instance.log_size() for instance in self.instances}

    def logs(self, since: dict[str, int]) -> dict[str, str]:
        return {i.name: i.log_tail(since=since.get(i.name, 0)) for i in self.instances}

    async def force_unmount(self) -> list[str]:
        """By force, what is still mounted below the nodes' directories; the driver's own data is its own."""
        return [t for node in self.nodes for t in await self.host.call(force_unmount_below, str(node.root))]

    def random_data(self, size: int = MIB) -> bytes:
        return self.random.randbytes(size)

    async def expect_data(
        self, volume: VolumeUnderTest, path: str, data: bytes, when: str, *, section: str = ""
    ) -> None:
        """What was written is what is read."""
        found = await volume.read(path, len(data))
        require(
            checksum(found) == checksum(data),
            f"the data is not what was written, {when}: {len(found)} bytes, sha256 {checksum(found)[:16]};"
            f" written were {len(data)}, sha256 {checksum(data)[:16]}",
            section=section,
        )


def describe_capability(capability: v1.VolumeCapability) -> str:
    kind = "block" if capability.HasField("block") else "mount"
    return f"{Mode.Mode.Name(capability.access_mode.mode)} {kind}"


def mounts_below(directory: str) -> list[str]:
    return [entry.target for entry in read_table().under(directory)]


def force_unmount_below(directory: str) -> list[str]:
    """What was still mounted, and is not any more."""
    found = mounts_below(directory)
    for target in reversed(found):
        with suppress(OSError):
            copies.thaw(target)  # one that was killed may have frozen it, and nobody could reach it any more
        with suppress(OSError):
            unmount(target, detach=True)
    return found


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
