"""The environment of cases without a cluster: calls to the driver's sockets.

It tracks where every volume is attached, staged and published, so that an aborted case can be cleaned up with
the calls that a cluster would make. `around` wraps the calls of one method: cases that repeat a call, call
concurrently, with a short deadline, or into a dying driver use it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf.message import Message

from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.cluster.external_driver.model import Command, ExternalDriver
from volplane.csi import convert, v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.outcome import CallError, Code
from volplane.csi.services import METHODS
from volplane.host import Host, copies
from volplane.host.mounts import bind, make_shared, read_table, unmount
from volplane.testing import capabilities
from volplane.testing.bare_api_server import BareApiServer, asks_for_api_server
from volplane.testing.bare_instances import BareInstances, asks_for_instance
from volplane.testing.case import CaseFailure, NotSupported
from volplane.testing.driver_container import DriverContainer, DriverContainers
from volplane.testing.driver_process import SECRETS, DriverProcess, DriverStartError
from volplane.testing.error_messages import without_names
from volplane.testing.given_volumes import GivenVolumes, take_volume
from volplane.testing.volume import VolumeUnderTest

MIB, GIB = 1 << 20, 1 << 30
CALL_TIMEOUT = 60.0  # timeout of one call in seconds, unless the case's is shorter
SETTLE_TIMEOUT = 30.0  # seconds until a disturbed call must have a final outcome
INTERRUPTED_TIMEOUT = 15.0  # seconds to remove the volumes of a case that was interrupted
SETTLE_AGAIN = 2.0  # the same after an answer that did not change within SETTLE_TIMEOUT before
Mode = v1.VolumeCapability.AccessMode
WRITER = convert.capability(Mode.SINGLE_NODE_WRITER)
BLOCK = convert.capability(Mode.SINGLE_NODE_WRITER, block=True)
SHARED = convert.capability(Mode.MULTI_NODE_MULTI_WRITER)
_UNSETTLED = (Code.ABORTED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED)

_CREATE_AND_DELETE = ("CreateVolume", "DeleteVolume")

log = logging.getLogger(__name__)

CallWrapper = Callable[["DriverSocket", str, Message], Awaitable[Any]]


class DriverSocket:
    """One of the driver's sockets; its calls can be wrapped."""

    def __init__(self, instance: DriverProcess, env: SocketEnv) -> None:
        self.instance, self._env = instance, env
        self.id, self.topology, self.most = "", dict[str, str](), 0  # for a node: the answer to NodeGetInfo

    async def call_once(self, method: str, request: Message, *, timeout: float = CALL_TIMEOUT) -> Any:
        """The answer; for a streaming call all answers. Raises NotSupported if volumes are given."""
        if method in _CREATE_AND_DELETE and self._env.capabilities.has("given"):
            raise NotSupported(capabilities.CAPABILITY_NAMES["provision"])
        if METHODS[method].streams:
            return await self._stream(method, request, timeout)
        return await self.instance.channel.call(method, request, timeout=timeout)

    async def _stream(self, method: str, request: Message, timeout: float) -> list[Any]:
        replies: list[Any] = []

        async def send() -> Message:
            """Send, and join all messages into one for the record."""
            whole = METHODS[method].reply()
            async for reply in self.instance.channel.stream(method, request, timeout=timeout):
                replies.append(reply)
                whole.MergeFrom(reply)
            return whole

        channel = self.instance.channel
        await self._env.tap.intercept(method, channel.component, channel.where, request, send)
        return replies

    async def call(self, method: str, request: Message) -> Any:
        """Call as a cluster does: repeat after ABORTED, because another call is in progress."""
        around = self._env.around.pop(method, None)
        if around is not None:
            return await around(self, method, request)
        return await self.call_until_settled(method, request, unsettled=(Code.ABORTED,))

    async def call_until_settled(
        self, method: str, request: Message, unsettled: tuple[Code, ...] = _UNSETTLED
    ) -> Any:
        """Repeat the call until it has a final outcome, like a caller that does not know the last one's."""
        if method == "ControllerUnpublishVolume":
            # A mount namespace that was just copied may keep a disk busy for a moment. The specification
            # allows FAILED_PRECONDITION here, and every cluster retries a detach.
            unsettled += (Code.FAILED_PRECONDITION,)
        start, seen = time.monotonic(), set[tuple[str, str]]()

        def report(error: Exception) -> None:
            answer = method, without_names(str(error))
            seen.add(answer)
            timeout = SETTLE_AGAIN if answer in self._env.never_settled else SETTLE_TIMEOUT
            if isinstance(error, CallError) and error.code not in unsettled:
                raise error
            if time.monotonic() > start + timeout:
                self._env.never_settled.add(answer)
                raise error
            self._env.repeated += 1

        reply = await retry(
            lambda: self.call_once(method, request), on=CallError, backoff=Backoff(0.01, 1.0), report=report
        )
        self._env.never_settled -= seen  # they do mean "in progress"
        return reply

    @property
    def root(self) -> Path:
        return self.instance.root

    def seen_by_driver(self, path: str) -> str:
        """A path to what is mounted for the driver, whose mount namespace may be another one."""
        return self.instance.seen_by_driver(path)


class SocketEnv:
    """`async with SocketEnv(…) as env`: the driver runs inside."""

    def __init__(
        self,
        external: ExternalDriver,
        directory: Path,
        *,
        seed: int = 0,
        nodes: int = 2,
        first_node: int = 1,
        parameters: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        mutable: Mapping[str, str] | None = None,
        size: int = GIB,
        given: GivenVolumes | None = None,
        api_server: bool = False,
        file_lock: asyncio.Lock | None = None,
        runtime: str = "",
    ) -> None:
        """`runtime`: the endpoint of the container runtime, for a driver in its own image; `file_lock`:
        shared by environments of this process, whose drivers run at the same time.
        """
        self.file_lock = file_lock or asyncio.Lock()
        self.directory, self.tap, self.size = directory, CallInterceptor(), size
        self.parameters, self.secrets = dict(parameters or {}), dict(secrets or {})
        self.mutable = dict(mutable or {})
        self.given = given or GivenVolumes()
        self.random = Random(seed)
        self.host = Host()
        self.around: dict[str, CallWrapper] = {}
        self.case_timeout = math.inf  # seconds; set for each case
        self.repeated = 0  # calls that were repeated because of the answer, as a cluster does
        # Answers that mean "still in progress", and did not change: (method, message without names).
        self.never_settled: set[tuple[str, str]] = set()
        self.volumes: list[VolumeUnderTest] = []
        self.not_removed: list[VolumeUnderTest] = []  # of earlier cases; tried once more at the end
        self.snapshots: list[str] = []
        self.groups: list[v1.VolumeGroupSnapshot] = []
        self.capabilities = self.reported = capabilities.DriverCapabilities()
        self._containers = DriverContainers(runtime, directory) if external.runs_images else None
        assert external.node is not None
        mode = "all" if external.is_single_program else "node"
        made = [
            self._make_instance(f"node-{i}", external.node, mode)
            for i in range(first_node, first_node + nodes)
        ]
        self.nodes = [DriverSocket(instance, self) for instance in made]
        self.controller = self.nodes[0]
        if external.controller is not None and not external.is_single_program:
            own = self._make_instance("controller", external.controller, "controller")
            self.controller = DriverSocket(own, self)
        for instance in self.instances:
            instance.file_lock = self.file_lock
        self._stack = AsyncExitStack()
        self._external, self._wants_api_server = external, api_server or external.has_account
        self.has_api_server = self.has_instances = self._is_shared = False

    def _make_instance(self, name: str, command: Command, mode: str) -> DriverProcess:
        if command.container is None or self._containers is None:
            return DriverProcess(name, command, self.directory, self.host, mode=mode, interceptor=self.tap)
        return DriverContainer(
            name,
            command,
            self.directory,
            self.host,
            mode=mode,
            interceptor=self.tap,
            containers=self._containers,
        )

    @property
    def instances(self) -> list[DriverProcess]:
        own = [] if self.controller in self.nodes else [self.controller.instance]
        return own + [node.instance for node in self.nodes]

    async def __aenter__(self) -> SocketEnv:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if self._containers is not None:
                await self._containers.check()
                self._stack.push_async_callback(self._containers.close)
                await self._share_directory_once()
            if self._wants_api_server:
                await self._start_api_server()
            await self._start_drivers()
            await self.query_driver()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start_drivers(self) -> None:
        """Start all instances; if they end because something of a cluster is missing, add it."""
        while True:
            # All to their end: one that still starts would start once more.
            starts = (instance.start() for instance in self.instances)
            errors = [e for e in await asyncio.gather(*starts, return_exceptions=True) if e is not None]
            if not errors:
                return
            for instance in self.instances:
                await instance.kill()
            if not await self._add_what_is_missing("\n".join(map(str, errors))):
                raise errors[0]

    async def _add_what_is_missing(self, log: str) -> bool:
        """Add the surroundings that the end of a driver's log names; False if it names none."""
        is_added = False
        if not self.has_api_server and asks_for_api_server(log):
            await self._start_api_server()
            is_added = True
        if not self.has_instances and asks_for_instance(log):
            await self._start_instances()
            is_added = True
        return is_added

    async def _start_instances(self) -> None:
        names = [instance.name for instance in self.instances]
        instances = BareInstances(self.directory / "ec2", names)
        await self._stack.enter_async_context(instances)
        await self._share_directory_once()
        for instance in self.instances:
            instance.environment |= instances.environment(instance.name)
            instance.binds |= instances.binds(instance.name)
        self.has_instances = True

    async def _start_api_server(self) -> None:
        names = [instance.name for instance in self.instances]
        server = BareApiServer(self._external, self.directory / "api", names)
        await self._stack.enter_async_context(server)
        await self.host.call(self._make_secrets_directory)
        await self._share_directory_once()
        for instance in self.instances:
            instance.environment |= server.environment
            instance.binds[SECRETS] = str(server.secrets)
        self.has_api_server = True

    async def _share_directory_once(self) -> None:
        if not self._is_shared:
            self._is_shared = True
            await self.host.call(self._share_directory)

    def _share_directory(self) -> None:
        """Let this namespace see the mounts of drivers that have mount namespaces of their own."""
        place = str(self.directory)
        bind(place, place, readonly=False, recursive=False)
        self._stack.callback(unmount, place, detach=True)
        make_shared(place)

    def _make_secrets_directory(self) -> None:
        if not os.path.exists(SECRETS):
            os.mkdir(SECRETS)
            self._stack.callback(_remove_if_empty, SECRETS)

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._remove_volumes()
            await self._stop_drivers()
        finally:
            await self._stack.aclose()
            await self._release_machine()

    async def _remove_volumes(self) -> None:
        """Remove what an interrupted case has left: an attached volume stays so when the driver has ended."""
        self.volumes, self.not_removed = [*self.not_removed, *self.volumes], []
        if not (self.volumes or self.snapshots or self.groups):
            return
        problems: list[str] = []
        try:
            async with asyncio.timeout(INTERRUPTED_TIMEOUT):
                problems = await self.clean()
        except TimeoutError:
            problems = [f"not within {INTERRUPTED_TIMEOUT:g} s"]
        except (CallError, DriverStartError, OSError) as error:
            problems = [str(error)]
        if left := [*self._describe_left(), *problems]:
            # As an error, because a test run shows nothing else of its log.
            log.error("the driver's volumes are not all removed: %s", "; ".join(left))

    def _describe_left(self) -> list[str]:
        """The volumes and snapshots that could not be removed, by their ids."""
        volumes = [volume for volume in (*self.not_removed, *self.volumes) if not volume.deleted]
        return [
            *(f"volume {volume.id or volume.request.name}" for volume in volumes),
            *(f"snapshot {id}" for id in self.snapshots),
            *(f"group snapshot {group.group_snapshot_id}" for group in self.groups),
        ]

    async def _stop_drivers(self) -> None:
        for instance in self.instances:
            await instance.stop()
        await self.force_unmount()

    async def _release_machine(self) -> None:
        # A case reports leaked devices; release them here anyway.
        for device, file in (await self.host.loops()).items():
            if file.startswith(f"{self.directory}/"):
                with suppress(OSError):
                    await self.host.loop_detach(device)
        await self.host.close()

    async def query_driver(self) -> None:
        """Read the driver's capabilities and the ids of its nodes."""
        self.reported = await capabilities.query_driver(
            self.controller.instance.channel, self.nodes[0].instance.channel, timeout=CALL_TIMEOUT
        )
        # Only NodePublishVolume and NodeUnpublishVolume are called for inline volumes.
        inline = self.given.inline and not self.reported.has("create")
        self.capabilities = self.reported.without_staging() if inline else self.reported
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
                ("given", self.given and not self.reported.has("create")),
            )
            if holds
        }

    async def supports(self, capability: v1.VolumeCapability) -> bool:
        """Whether volumes with this capability can be created; shared ones must be usable on two nodes."""
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

    # --- names and paths

    def new_name(self, prefix: str = "pvc") -> str:
        """A name like those of Kubernetes."""
        return f"{prefix}-{self.random.getrandbits(128):032x}"

    def path(self, node: DriverSocket, *parts: str) -> Path:
        made = node.root.joinpath(*parts)
        made.parent.mkdir(parents=True, exist_ok=True)
        return made

    # --- create volumes

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
        """Create a volume. Raises NotSupported if the driver rejects the capability."""
        capability = more.get("capability", WRITER)
        request = self.create_request(self.new_name(), **more)
        given = self.capabilities.has("given")
        make = take_volume if given else VolumeUnderTest
        volume = make(self, request, capability)
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
        """Create a volume, and attach, stage and publish it on the node."""
        at = node or self.nodes[0]
        volume = await self.create(node=at, **more)
        await volume.attach_stage_publish(at)
        return volume

    async def create_with_data(self, of: int = MIB, **more: Any) -> tuple[VolumeUnderTest, bytes]:
        """Create a volume with data, published on the first node; returns it with the data."""
        volume, data = await self.create_and_publish(**more), self.random_data(of)
        await volume.write(volume.target(self.nodes[0]), data)
        return volume, data

    def require_second_node(self, volume: VolumeUnderTest) -> DriverSocket:
        """The second node, if the volume can be used there. Raises NotSupported."""
        if len(self.nodes) < 2:
            raise NotSupported("it runs on one node only")
        second = self.nodes[1]
        places = [dict(t.segments) for t in volume.made.accessible_topology]
        if places and not any(place.items() <= second.topology.items() for place in places):
            raise NotSupported(f"its volumes stay in {places[0]}, and {second.id} is not there")
        return second

    @property
    def is_read_only(self) -> bool:
        """Whether the volumes are given, and must not be written."""
        return self.capabilities.has("given") and self.given.read_only

    def require_writable(self) -> None:
        """Raise NotSupported if the case must not write to its volumes."""
        if self.is_read_only:
            raise NotSupported("the given volume is read-only")

    async def expect_error(
        self, codes: tuple[Code, ...], remote: DriverSocket, method: str, request: Message, when: str
    ) -> None:
        """Raise CaseFailure unless the call fails with one of the codes."""
        names = " or ".join(code.name for code in codes)
        try:
            await remote.call_once(method, request)
        except CallError as error:
            if error.code not in codes:
                raise CaseFailure(
                    f"{method} {when}: {error.code.name} ({error.message}), expected {names}"
                ) from None
        else:
            raise CaseFailure(f"{method} {when}: OK, expected {names}")

    # --- clean up

    async def clean(self) -> list[str]:
        """Undo what a case left, with the calls that a cluster makes; returns what failed."""
        self.around.clear()
        problems: list[str] = []
        for instance in self.instances:
            if not instance.running:
                await instance.start()
        while self.volumes:
            volume = self.volumes.pop()
            # Until it is: a call that hangs is not made again after each case.
            self.not_removed.append(volume)
            if found := await volume.remove():
                problems += found
            else:
                self.not_removed.remove(volume)
        for method, request in self._snapshot_deletions():
            try:
                await self.controller.call_until_settled(method, request)
            except CallError as error:
                problems.append(f"{method}: {error}")
        self.snapshots.clear()
        self.groups.clear()
        await self.force_unmount()
        return problems

    def _snapshot_deletions(self) -> Iterator[tuple[str, Message]]:
        """The calls that delete the snapshots of a case."""
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
        """Kill and restart a driver that does not respond."""
        self.around.clear()
        self.never_settled.clear()
        for instance in self.instances:
            await instance.kill()
            await self.host.call(Path(instance.socket).unlink, missing_ok=True)
            try:
                await instance.start()
            except DriverStartError:
                # It does not start on its own state: delete that, so that the other cases can run.
                await instance.delete_state()
                await instance.start()

    async def describe_wait(self) -> str:
        return ""  # the driver's calls in flight are reported anyway

    def log_positions(self) -> dict[str, int]:
        return {instance.name: instance.log_size() for instance in self.instances}

    def logs(self, since: dict[str, int]) -> dict[str, str]:
        return {i.name: i.log_tail(since=since.get(i.name, 0)) for i in self.instances}

    async def force_unmount(self) -> list[str]:
        """Unmount everything below the nodes' directories, but not the driver's own data."""
        return [t for node in self.nodes for t in await self.host.call(force_unmount_below, str(node.root))]

    def random_data(self, size: int = MIB) -> bytes:
        return self.random.randbytes(size)

    async def expect_data(
        self, volume: VolumeUnderTest, path: str, data: bytes, when: str, *, section: str = ""
    ) -> None:
        """Raise CaseFailure unless the volume has the data."""
        await volume.expect_data(path, data, when, section=section)


def _remove_if_empty(directory: str) -> None:
    with suppress(OSError):  # another run uses it
        os.rmdir(directory)


def describe_capability(capability: v1.VolumeCapability) -> str:
    kind = "block" if capability.HasField("block") else "mount"
    return f"{Mode.Mode.Name(capability.access_mode.mode)} {kind}"


def mounts_below(directory: str) -> list[str]:
    return [entry.target for entry in read_table().under(directory)]


def force_unmount_below(directory: str) -> list[str]:
    """Unmount by force; returns what was mounted."""
    found = mounts_below(directory)
    for target in reversed(found):
        with suppress(OSError):
            copies.thaw(target)  # a killed driver may have left the file system frozen
        with suppress(OSError):
            unmount(target, detach=True)
    return found
