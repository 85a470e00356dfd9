"""A whole run: the driver is started, asked, put through the chosen cases, and all of it is removed."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from volplane.api.core import Secret
from volplane.api.storage import VolumeAttributesClass
from volplane.cluster.guest.model import Guest
from volplane.csi import tap
from volplane.host.mounts import read_table
from volplane.testing import runner, sanity
from volplane.testing.apart import Apart
from volplane.testing.bench import BLOCK, Bench
from volplane.testing.case import Case
from volplane.testing.promises import Promises
from volplane.testing.report import Run
from volplane.testing.runner import Result, Settings
from volplane.testing.whole import Whole

log = logging.getLogger(__name__)

Told = Callable[[Result], None]


async def drive(
    guest: Guest,
    cases: Sequence[Case],
    settings: Settings,
    told: Told,
    *,
    command: Sequence[str] = (),
    secrets: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
    mutable: Mapping[str, str] | None = None,
    nodes: int = 2,
    directory: Path | None = None,
    started: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Raises CannotStart, or CallError of a driver that does not say what it is."""
    began = time.monotonic()
    run = Run("", "", [], settings.seed, list(command))
    secrets = {**own_secrets(guest), **(secrets or {})}
    parameters = {**own_parameters(guest), **(parameters or {})}
    mutable = {**own_mutable(guest), **(mutable or {})}
    async with place(directory) as directory:
        with tap.tapped() as recorder:
            bare = [case for case in cases if not case.whole and case.name != sanity.CASE]
            bench = Bench(
                guest,
                directory,
                tap=recorder,
                seed=settings.seed,
                nodes=nodes,
                secrets=secrets,
                parameters=parameters,
                mutable=mutable,
            )
            async with bench:
                promises = bench.promises
                run.driver, run.version = promises.name, promises.version
                run.promises = sorted(
                    promises.plugin
                    | promises.controller
                    | {f"node {n}" for n in promises.node}
                    | {f"group {n}" for n in promises.group}
                )
                run.nodes = [node.id for node in bench.nodes]
                started(run)
                for number in range(1, settings.repeat + 1):
                    run.results += await runner.run(bench, bare, settings, told, number)
                if any(case.name == sanity.CASE for case in cases):
                    for result in await sanity.run(bench, directory / "sanity"):
                        told(result)
                        run.results.append(result)
                whole = [case for case in cases if case.whole]
                if whole and promises.has("create") and await bench.takes(BLOCK):
                    promises.more.add("block")
            if whole:
                if _lives_with_pods(guest, promises):
                    promises.more.add("inline")
                given: dict[str, Any] = {"tap": recorder, "secrets": secrets, "parameters": parameters}
                for kind, name, apart in ((Whole, "w", False), (Apart, "a", True)):
                    if mine := [case for case in whole if case.apart is apart]:
                        async with kind(guest, directory / name, promises, **given) as world:
                            for number in range(1, settings.repeat + 1):
                                run.results += await runner.run(world, mine, settings, told, number)
    run.seconds = time.monotonic() - began
    return run


def _lives_with_pods(guest: Guest, promises: Promises) -> bool:
    """As its CSIDriver says, or as the one that is made for it."""
    if guest.driver is None:
        return "CONTROLLER_SERVICE" not in promises.plugin
    return "Ephemeral" in guest.driver.spec.volume_lifecycle_modes


@asynccontextmanager
async def place(given: Path | None = None) -> AsyncIterator[Path]:
    """A directory for the run: short, because sockets' paths are, and never removed with a mount in it."""
    directory = given or Path(tempfile.mkdtemp(prefix="vtd-"))
    try:
        yield directory
    finally:
        await asyncio.to_thread(_remove, directory)


def _remove(directory: Path) -> None:
    if left := [entry.target for entry in read_table().under(str(directory))]:
        log.error("%s is not removed: still mounted there: %s", directory, ", ".join(left))
    else:
        shutil.rmtree(directory, ignore_errors=True)


def own_parameters(guest: Guest) -> dict[str, str]:
    """Of the file's first class, without what is meant for sidecars."""
    if not guest.classes:
        return {}
    return {k: v for k, v in guest.classes[0].parameters.items() if not k.startswith("csi.storage.k8s.io/")}


def own_mutable(guest: Guest) -> dict[str, str]:
    """Of the file's first VolumeAttributesClass."""
    classes = (o for o in guest.objects if isinstance(o, VolumeAttributesClass))
    return dict(next((one.parameters for one in classes), {}))


def own_secrets(guest: Guest) -> dict[str, str]:
    """All that the file brings: which call wants which is said in its class, and more does not hurt."""
    return {key: value for secret in guest.secrets for key, value in _plain(secret).items()}


def _plain(secret: Secret) -> dict[str, str]:
    data = {k: v if isinstance(v, bytes) else b64decode(v) for k, v in (secret.data or {}).items()}
    return {**{k: v.decode(errors="replace") for k, v in data.items()}, **(secret.string_data or {})}
