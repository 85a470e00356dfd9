"""Discover a driver: start it once in a temporary directory and query its capabilities.

It runs in a container like later ones, so that it sees the same paths and leaves nothing on the machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct, structs

from volplane.api.names import is_subdomain
from volplane.base.tasks import background
from volplane.cluster.external_driver import host_paths
from volplane.cluster.external_driver.command import FIELDS, MODE, PATHS, SHARED, STATE, fill_variables
from volplane.cluster.external_driver.model import Command, DiscoveredDriver, ExternalDriver, InvalidDriver
from volplane.csi import v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import BadReply, CallError, Code
from volplane.csi.replies import known_names
from volplane.host import Host
from volplane.node.containers.base import ContainerError, ContainerRunState, ContainerSpec, Mount
from volplane.node.containers.process import ProcessRuntime

WAIT_TIMEOUT = 20.0  # seconds until the driver must listen
CALL_TIMEOUT = 30.0  # seconds per call
GRACE = 2.0
FIRST_LINES, LAST_LINES = 3, 8  # lines of the log to show: the reason is often first, the usage last
LONGEST_NAME = 63
PROBE_NODE = "probe"  # name of the node during discovery
KUBELET = "/var/lib/kubelet"


class ProbeSurroundings(Struct, frozen=True):
    """What a driver finds around it besides its own command."""

    env: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()


async def discover_driver(
    external: ExternalDriver,
    *,
    host: Host | None = None,
    patience: float = WAIT_TIMEOUT,
    surroundings: ProbeSurroundings | None = None,
) -> DiscoveredDriver:
    """Start the driver, query it, stop it. Raises InvalidDriver, with an excerpt of its log if it fails."""
    mine, around = host or Host(), surroundings or ProbeSurroundings()
    around = structs.replace(around, env={**around.env, **external.environment})
    try:
        return await _probe(external, mine, patience, around)
    finally:
        if host is None:
            await mine.close()


async def _probe(
    external: ExternalDriver, host: Host, patience: float, around: ProbeSurroundings
) -> DiscoveredDriver:
    directory = tempfile.mkdtemp(prefix="vpp-")
    runtime = ProcessRuntime(f"{directory}/c", host, cover=(directory,))
    try:
        answers = [
            await _discover(command, runtime, f"{directory}/{mode}", mode, host, patience, around)
            for mode, command in _instances(external).items()
        ]
    finally:
        await runtime.close()
        await host.call(shutil.rmtree, directory, True)
    return _merge_answers(external, answers)


def _instances(external: ExternalDriver) -> dict[str, Command]:
    """The commands to start, by mode: all, or controller and node."""
    if external.is_single_program:
        assert external.node is not None
        return {"all": external.node}
    sides = {"controller": external.controller, "node": external.node}
    return {mode: command for mode, command in sides.items() if command is not None}


def _merge_answers(external: ExternalDriver, answers: list[DiscoveredDriver]) -> DiscoveredDriver:
    names = list(dict.fromkeys(answer.name for answer in answers))
    if len(names) > 1:
        raise InvalidDriver(f"the controller has the name {names[0]}, the node service {names[1]}")
    if external.name and external.name != names[0]:
        raise InvalidDriver(f"the driver is described as {external.name}, but its name is {names[0]}")
    first, last = answers[0], answers[-1]
    return structs.replace(
        last,
        plugin=first.plugin | last.plugin,
        expansion=first.expansion | last.expansion,
        controller=first.controller,
    )


async def _discover(
    command: Command,
    runtime: ProcessRuntime,
    directory: str,
    mode: str,
    host: Host,
    patience: float,
    around: ProbeSurroundings,
) -> DiscoveredDriver:
    spec = await host.call(_spec, command, directory, mode, around)
    try:
        await runtime.start(spec)
    except ContainerError as error:
        raise InvalidDriver(f"`{_format_command(command)}` cannot be started: {error}") from error
    try:
        async with (
            _fail_if_driver_ends(runtime, spec, command) as guard,
            CsiChannel(f"{directory}/csi/csi.sock", component="probe") as channel,
        ):
            await guard(_wait_until_listening(channel, spec, command, patience))
            facts: DiscoveredDriver = await guard(_facts(channel, mode, spec, command))
            return facts
    finally:
        await runtime.stop(spec.id, GRACE)
        await runtime.remove(spec.id)


@asynccontextmanager
async def _fail_if_driver_ends(
    runtime: ProcessRuntime, spec: ContainerSpec, command: Command
) -> AsyncIterator[Any]:
    """Raise InvalidDriver if the driver ends while the block waits for it."""
    async with background(runtime.wait(spec.id)) as (ended,):

        async def guard(work: Coroutine[Any, Any, Any]) -> Any:
            async with background(work) as (working,):
                await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done() or (working.exception() and ended.done()):
                    raise InvalidDriver(_describe_exit(ended.result(), spec, command))
                return working.result()

        yield guard


async def _wait_until_listening(
    channel: CsiChannel, spec: ContainerSpec, command: Command, patience: float
) -> None:
    try:
        await channel.ready(patience)
    except TimeoutError:
        where = f"$CSI_ENDPOINT ({PATHS['CSI_ENDPOINT']})"
        why = f"`{_format_command(command)}` runs, but does not listen at {where} after {patience:g} s"
        raise InvalidDriver(f"{why}{_log_excerpt(spec)}") from None


async def _facts(channel: CsiChannel, mode: str, spec: ContainerSpec, command: Command) -> DiscoveredDriver:
    async def ask(method: str, request: Message) -> Any:
        try:
            return await channel.call(method, request, timeout=CALL_TIMEOUT)
        except BadReply as error:
            raise InvalidDriver(
                f"`{_format_command(command)}` does not follow CSI: {error.message}"
            ) from error
        except CallError as error:
            message = f"`{_format_command(command)}` does not answer {method}: {error}"
            if error.code in (Code.UNAVAILABLE, Code.INTERNAL) and method == "GetPluginInfo":
                message = f"`{_format_command(command)}` listens, but does not implement CSI: {error.message}"
            raise InvalidDriver(f"{message}{_log_excerpt(spec)}") from error

    info = await ask("GetPluginInfo", v1.GetPluginInfoRequest())
    name = _check_name(info.name)
    answer = await ask("GetPluginCapabilities", v1.GetPluginCapabilitiesRequest())
    services, growth = v1.PluginCapability.Service.Type, v1.PluginCapability.VolumeExpansion.Type
    plugin = known_names(services, (c.service.type for c in answer.capabilities if c.HasField("service")))
    grows = [c.volume_expansion.type for c in answer.capabilities if c.HasField("volume_expansion")]
    controller: frozenset[str] = frozenset()
    if "CONTROLLER_SERVICE" in plugin and mode != "node":
        answer = await ask("ControllerGetCapabilities", v1.ControllerGetCapabilitiesRequest())
        calls = v1.ControllerServiceCapability.RPC.Type
        controller = known_names(calls, (c.rpc.type for c in answer.capabilities if c.HasField("rpc")))
    facts = DiscoveredDriver(
        name=name,
        version=info.vendor_version,
        plugin=plugin,
        expansion=known_names(growth, grows),
        controller=controller,
    )
    return facts if mode == "controller" else await _add_node_answers(facts, ask)


async def _add_node_answers(facts: DiscoveredDriver, ask: Any) -> DiscoveredDriver:
    answer = await ask("NodeGetCapabilities", v1.NodeGetCapabilitiesRequest())
    calls = v1.NodeServiceCapability.RPC.Type
    info = await ask("NodeGetInfo", v1.NodeGetInfoRequest())
    return structs.replace(
        facts,
        node=known_names(calls, (c.rpc.type for c in answer.capabilities if c.HasField("rpc"))),
        node_id=info.node_id,
        topology=dict(info.accessible_topology.segments),
        asked_as=PROBE_NODE,
        max_volumes=info.max_volumes_per_node,
    )


def _check_name(name: str) -> str:
    if len(name) > LONGEST_NAME or not is_subdomain(name.lower()):
        raise InvalidDriver(
            f'the driver\'s name "{name}" is invalid: at most {LONGEST_NAME} letters, digits, "-" and ".",'
            " as in my.driver.example.com"
        )
    return name


# --- the container


def _spec(command: Command, directory: str, mode: str, around: ProbeSurroundings) -> ContainerSpec:
    inside = {f"{directory}/csi": "/csi", f"{directory}/state": STATE, f"{directory}/shared": SHARED}
    inside[f"{directory}/kubelet"] = KUBELET
    for source in inside:
        os.makedirs(source)
    variables = {
        **dict.fromkeys(FIELDS, PROBE_NODE),
        **PATHS,
        MODE: mode,
        "NODE_IP": "127.0.0.1",
        "POD_IP": "127.0.0.1",
    }
    own = {name: fill_variables(value, variables) for name, value in command.env.items()}
    hidden = [Mount(path, path) for path in host_paths.hidden_paths(command)]
    return ContainerSpec(
        id=os.path.basename(directory),
        name="driver",
        command=tuple(fill_variables(word, variables) for word in command.argv),
        env={**around.env, **variables, **own},
        workdir=command.directory,
        mounts=(*hidden, *around.mounts, *(Mount(source, target) for source, target in inside.items())),
        privileged=True,
        log_path=f"{directory}/log",
    )


# --- messages


def _format_command(command: Command) -> str:
    if command.argv[:2] == ("/bin/sh", "-c"):
        return command.argv[2].replace("$$", "$")
    return " ".join(command.argv)


def _describe_exit(state: ContainerRunState, spec: ContainerSpec, command: Command) -> str:
    words = _log_excerpt(spec)
    how = (
        f"with code {state.exit_code}"
        if not state.message
        else f"with code {state.exit_code}: {state.message}"
    )
    return f"`{_format_command(command)}` ended {how} before it was queried{words}"


def _log_excerpt(spec: ContainerSpec) -> str:
    """The first and last lines of the driver's output, indented; log lines are `time stream F text`."""
    text = ""
    with suppress(OSError), open(spec.log_path, errors="replace") as file:
        text = file.read()
    lines = [line.split(" ", 3)[3] for line in text.splitlines() if line.count(" ") >= 3]
    if not lines:
        return "; it has logged nothing"
    if len(lines) > FIRST_LINES + LAST_LINES:
        lines = [*lines[:FIRST_LINES], "…", *lines[-LAST_LINES:]]
    return "; its log:" + "".join(f"\n    {line}" for line in lines)
