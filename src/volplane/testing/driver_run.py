"""A whole run: the driver is started, asked, put through the chosen cases, and all of it is removed."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from volplane.api.core import Secret
from volplane.api.storage import VolumeAttributesClass
from volplane.base import clock
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver.model import ExternalDriver
from volplane.host.mounts import read_table
from volplane.testing import runner, sanity
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import Case
from volplane.testing.cluster_env import ClusterEnv
from volplane.testing.process_env import ProcessEnv
from volplane.testing.report import DriverTestRun
from volplane.testing.runner import CaseResult, CaseSettings, CaseVerdict
from volplane.testing.socket_env import BLOCK, SHARED, SocketEnv

log = logging.getLogger(__name__)

OnResult = Callable[[CaseResult], None]
OnCaseStart = Callable[[str], None]
_PROBED_BY_CREATE = {"block": BLOCK, "shared": SHARED}  # which only a CreateVolume tells


async def run_driver_tests(
    guest: ExternalDriver,
    cases: Sequence[Case],
    settings: CaseSettings,
    on_result: OnResult,
    *,
    command: Sequence[str] = (),
    secrets: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
    mutable: Mapping[str, str] | None = None,
    nodes: int = 2,
    directory: Path | None = None,
    on_start: Callable[[DriverTestRun], None] = lambda run: None,
    on_case_start: OnCaseStart = lambda name: None,
) -> DriverTestRun:
    """Raises CannotStart, or CallError of a driver that does not say what it is.

    Whoever is told that it has started has the run: with what was found by then, if it breaks off.
    """
    began = time.monotonic()
    run = DriverTestRun("", "", [], settings.seed, list(command), started=clock.stamp())

    def record_result(result: CaseResult) -> None:
        run.results.append(result)
        run.seconds = time.monotonic() - began
        on_result(result)

    given: dict[str, Any] = {
        "secrets": {**secret_values(guest), **(secrets or {})},
        "parameters": {**class_parameters(guest), **(parameters or {})},
        "mutable": {**mutable_parameters(guest), **(mutable or {})},
    }
    whole = [case for case in cases if case.needs_cluster]
    async with working_directory(directory) as directory:
        async with SocketEnv(guest, directory, seed=settings.seed, nodes=nodes, **given) as bench:
            _record_driver_info(run, bench)
            on_start(run)
            await _run_socket_cases(bench, cases, settings, record_result, on_case_start)
            promises = bench.capabilities
            if whole and promises.has("create"):
                promises.probed |= {
                    need for need, wish in _PROBED_BY_CREATE.items() if await bench.supports(wish)
                }
        if whole and _supports_inline_volumes(guest, promises):
            promises.probed.add("inline")
        for kind, name, apart in ((ClusterEnv, "w", False), (ProcessEnv, "a", True)):
            if mine := [case for case in whole if case.needs_processes is apart]:
                composed = kind(guest, directory / name, promises, **given)
                await _run_cluster_cases(composed, mine, settings, record_result, on_case_start)
    run.seconds, run.complete = time.monotonic() - began, True
    return run


def _record_driver_info(run: DriverTestRun, bench: SocketEnv) -> None:
    """With what the driver has said of itself."""
    promises = bench.capabilities
    run.driver, run.version = promises.name, promises.version
    named = {f"node {name}" for name in promises.node} | {f"group {name}" for name in promises.group}
    run.capabilities = sorted(promises.plugin | promises.controller | named)
    run.nodes = [node.id for node in bench.nodes]


async def _run_socket_cases(
    bench: SocketEnv, cases: Sequence[Case], settings: CaseSettings, tell: OnResult, begins: OnCaseStart
) -> None:
    bare = [case for case in cases if not case.needs_cluster and case.name != sanity.CASE]
    for number in range(1, settings.repeat + 1):
        await runner.run(bench, bare, settings, tell, number, on_case_start=begins)
    if any(case.name == sanity.CASE for case in cases):
        begins(sanity.CASE)
        for result in await sanity.run(bench, bench.directory / "sanity"):
            tell(result)


async def _run_cluster_cases(
    composed: ClusterEnv, cases: Sequence[Case], settings: CaseSettings, tell: OnResult, begins: OnCaseStart
) -> None:
    begins(cases[0].name)
    try:
        world = await composed.__aenter__()
    except CannotStart as error:
        for result in start_failure_results(cases, str(error)):
            tell(result)
        return
    try:
        for number in range(1, settings.repeat + 1):
            await runner.run(world, cases, settings, tell, number, on_case_start=begins)
    finally:
        await world.__aexit__()


def start_failure_results(cases: Sequence[Case], why: str) -> Iterator[CaseResult]:
    """Of a cluster that does not start with this driver: one failure, not one for each case."""
    reason, verdict = f"a cluster does not start with it: {why}", CaseVerdict.FAILED
    for case in cases:
        yield CaseResult(case.name, case.section, case.requirement, verdict, reason)
        reason, verdict = f"the cluster did not start, see {cases[0].name}", CaseVerdict.SKIPPED


def _supports_inline_volumes(guest: ExternalDriver, promises: DriverCapabilities) -> bool:
    """As its CSIDriver says, or as the one that is made for it."""
    if guest.driver is None:
        return "CONTROLLER_SERVICE" not in promises.plugin
    return "Ephemeral" in guest.driver.spec.volume_lifecycle_modes


@asynccontextmanager
async def working_directory(given: Path | None = None) -> AsyncIterator[Path]:
    """A directory for the run: short, because sockets' paths are, and never removed with a mount in it."""
    directory = given or Path(tempfile.mkdtemp(prefix="vtd-"))
    try:
        yield directory
    finally:
        await asyncio.to_thread(_remove_directory, directory)


def _remove_directory(directory: Path) -> None:
    if left := [entry.target for entry in read_table().under(str(directory))]:
        log.error("%s is not removed: still mounted there: %s", directory, ", ".join(left))
    else:
        shutil.rmtree(directory, ignore_errors=True)


def class_parameters(guest: ExternalDriver) -> dict[str, str]:
    """Of the file's first class, without what is meant for sidecars."""
    if not guest.classes:
        return {}
    return {k: v for k, v in guest.classes[0].parameters.items() if not k.startswith("csi.storage.k8s.io/")}


def mutable_parameters(guest: ExternalDriver) -> dict[str, str]:
    """Of the file's first VolumeAttributesClass."""
    classes = (o for o in guest.objects if isinstance(o, VolumeAttributesClass))
    return dict(next((one.parameters for one in classes), {}))


def secret_values(guest: ExternalDriver) -> dict[str, str]:
    """All that the file brings: which call wants which is said in its class, and more does not hurt."""
    return {key: value for secret in guest.secrets for key, value in _decode_secret(secret).items()}


def _decode_secret(secret: Secret) -> dict[str, str]:
    data = {k: v if isinstance(v, bytes) else b64decode(v) for k, v in (secret.data or {}).items()}
    return {**{k: v.decode(errors="replace") for k, v in data.items()}, **(secret.string_data or {})}
