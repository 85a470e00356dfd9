"""After a lifecycle nothing is left: no mount, device, file, process, volume or snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterator

from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases import snapshots_clones
from volplane.testing.cases.controller import list_all_volumes
from volplane.testing.cases.faults import run_lifecycle
from volplane.testing.socket_env import BLOCK, SocketEnv, mounts_below

case = CaseTable()


async def _run_lifecycles(env: SocketEnv) -> None:
    await run_lifecycle(env, "CreateSnapshot" if env.capabilities.has("snapshot") else "")
    try:
        volume = await env.create_and_publish(capability=BLOCK)
    except NotSupported:
        return
    await volume.take_down_and_delete(env.nodes[0])


@case("leaks/mounts", "NodeUnstageVolume", "Mounts of a volume are removed with it.", "create")
async def mounts(env: SocketEnv) -> None:
    before = {t for node in env.nodes for t in mounts_below(str(node.root))}
    await _run_lifecycles(env)
    left = sorted({t for node in env.nodes for t in mounts_below(str(node.root))} - before)
    require(not left, f"still mounted after the volume is gone: {', '.join(left)}")


@case(
    "leaks/loop devices",
    "NodeUnpublishVolume",
    "Loop devices of a volume are released with it.",
    "create",
)
async def loops(env: SocketEnv) -> None:
    place = str(env.directory)
    before = {device for device, file in (await env.host.loops()).items() if file.startswith(place)}
    await _run_lifecycles(env)
    now = {device: file for device, file in (await env.host.loops()).items() if file.startswith(place)}
    left = sorted(f"{device} ({file})" for device, file in now.items() if device not in before)
    require(not left, f"still bound after the volume is gone: {', '.join(left)}")


@case(
    "leaks/files",
    "NodeUnpublishVolume",
    "The driver removes its targets, and leaves the staging directory empty.",
    "create",
)
async def files(env: SocketEnv) -> None:
    before = set(_list_files(env))
    await _run_lifecycles(env)
    left = sorted(set(_list_files(env)) - before)
    require(not left, f"still there after the volume is gone: {', '.join(left[:5])}")


def _list_files(env: SocketEnv) -> Iterator[str]:
    """Files below the caller's directories, without the driver's own state."""
    for node in env.nodes:
        for part in ("pods", "plugins"):
            for directory, _, names in os.walk(node.root / part):
                yield from (os.path.join(directory, name) for name in names)
                if os.path.basename(directory) in ("mount", "dev"):
                    yield directory


@case(
    "leaks/processes",
    "Supervised Lifecycle Management",
    "A driver ends the processes that it has started for a volume.",
    "create",
)
async def processes(env: SocketEnv) -> None:
    before = {instance.name: instance.children() for instance in env.instances}
    await _run_lifecycles(env)
    for instance in env.instances:
        now = instance.children()
        require(
            now <= before[instance.name],
            f"{instance.name} has {now} processes, {before[instance.name]} before",
        )


@case("leaks/volumes", "DeleteVolume", "A deleted volume is not listed.", "create", "list")
async def volumes(env: SocketEnv) -> None:
    before = set(await list_all_volumes(env))
    await _run_lifecycles(env)
    left = sorted(set(await list_all_volumes(env)) - before)
    require(not left, f"still listed: {', '.join(left)}")


@case(
    "leaks/snapshots",
    "DeleteSnapshot",
    "A deleted snapshot is not listed.",
    "create",
    "snapshot",
    "list-snapshots",
)
async def snapshots(env: SocketEnv) -> None:
    before = set(await snapshots_clones.list_all_snapshots(env))
    await _run_lifecycles(env)
    left = sorted(set(await snapshots_clones.list_all_snapshots(env)) - before)
    require(not left, f"still listed: {', '.join(left)}")
