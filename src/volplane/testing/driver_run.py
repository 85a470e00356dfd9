"""A test run: start the driver, read its capabilities, run the selected cases, clean up."""

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
_PROBED_BY_CREATE = {"block": BLOCK, "shared": SHARED}  # found out by CreateVolume


async def run_driver_tests(
    external: ExternalDriver,
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
    """Run the cases. Raises CannotStart, or CallError if the driver does not report its name.

    `on_start` gets the run before the first case, so that the caller has the results if it is interrupted.
    """
    began = time.monotonic()
    run = DriverTestRun("", "", [], settings.seed, list(command), started=clock.stamp())

    def record_result(result: CaseResult) -> None:
        run.results.append(result)
        run.seconds = time.monotonic() - began
        on_result(result)

    given: dict[str, Any] = {
        "secrets": {**secret_values(external), **(secrets or {})},
        "parameters": {**class_parameters(external), **(parameters or {})},
        "mutable": {**mutable_parameters(external), **(mutable or {})},
    }
    whole = [case for case in cases if case.needs_cluster]
    async with working_directory(directory) as directory:
        async with SocketEnv(external, directory, seed=settings.seed, nodes=nodes, **given) as env:
            _record_driver_info(run, env)
            on_start(run)
            await _run_socket_cases(env, cases, settings, record_result, on_case_start)
            promises = env.capabilities
            if whole and promises.has("create"):
                promises.probed |= {
                    need for need, capability in _PROBED_BY_CREATE.items() if await env.supports(capability)
                }
        if whole and _supports_inline_volumes(external, promises):
            promises.probed.add("inline")
        for kind, name, apart in ((ClusterEnv, "w", False), (ProcessEnv, "a", True)):
            if mine := [case for case in whole if case.needs_processes is apart]:
                composed = kind(external, directory / name, promises, **given)
                await _run_cluster_cases(composed, mine, settings, record_result, on_case_start)
    run.seconds, run.complete = time.monotonic() - began, True
    return run


def _record_driver_info(run: DriverTestRun, env: SocketEnv) -> None:
    """Copy the driver's name, version and capabilities into the run."""
    promises = env.capabilities
    run.driver, run.version = promises.name, promises.version
    named = {f"node {name}" for name in promises.node} | {f"group {name}" for name in promises.group}
    run.capabilities = sorted(promises.plugin | promises.controller | named)
    run.nodes = [node.id for node in env.nodes]


async def _run_socket_cases(
    env: SocketEnv, cases: Sequence[Case], settings: CaseSettings, tell: OnResult, begins: OnCaseStart
) -> None:
    bare = [case for case in cases if not case.needs_cluster and case.name != sanity.CASE]
    for number in range(1, settings.repeat + 1):
        await runner.run(env, bare, settings, tell, number, on_case_start=begins)
    if any(case.name == sanity.CASE for case in cases):
        begins(sanity.CASE)
        for result in await sanity.run(env, env.directory / "sanity"):
            tell(result)


async def _run_cluster_cases(
    composed: ClusterEnv, cases: Sequence[Case], settings: CaseSettings, tell: OnResult, begins: OnCaseStart
) -> None:
    begins(cases[0].name)
    try:
        env = await composed.__aenter__()
    except CannotStart as error:
        for result in start_failure_results(cases, str(error)):
            tell(result)
        return
    try:
        for number in range(1, settings.repeat + 1):
            await runner.run(env, cases, settings, tell, number, on_case_start=begins)
    finally:
        await env.__aexit__()


def start_failure_results(cases: Sequence[Case], why: str) -> Iterator[CaseResult]:
    """The results if the cluster does not start: one failure, all other cases skipped."""
    reason, verdict = f"the cluster did not start: {why}", CaseVerdict.FAILED
    for case in cases:
        yield CaseResult(case.name, case.section, case.requirement, verdict, reason)
        reason, verdict = f"the cluster did not start, see {cases[0].name}", CaseVerdict.SKIPPED


def _supports_inline_volumes(external: ExternalDriver, promises: DriverCapabilities) -> bool:
    """As in the given CSIDriver, or in the one that is derived from the capabilities."""
    if external.driver is None:
        return "CONTROLLER_SERVICE" not in promises.plugin
    return "Ephemeral" in external.driver.spec.volume_lifecycle_modes


@asynccontextmanager
async def working_directory(given: Path | None = None) -> AsyncIterator[Path]:
    """A directory with a short path, because socket paths are limited; not removed while it has mounts."""
    directory = given or Path(tempfile.mkdtemp(prefix="vtd-"))
    try:
        yield directory
    finally:
        await asyncio.to_thread(_remove_directory, directory)


def _remove_directory(directory: Path) -> None:
    if left := [entry.target for entry in read_table().under(str(directory))]:
        log.error("%s was not removed: still mounted: %s", directory, ", ".join(left))
    else:
        shutil.rmtree(directory, ignore_errors=True)


def class_parameters(external: ExternalDriver) -> dict[str, str]:
    """The parameters of the first StorageClass, without those for sidecars."""
    if not external.classes:
        return {}
    return {
        k: v for k, v in external.classes[0].parameters.items() if not k.startswith("csi.storage.k8s.io/")
    }


def mutable_parameters(external: ExternalDriver) -> dict[str, str]:
    """The parameters of the first VolumeAttributesClass."""
    classes = (o for o in external.objects if isinstance(o, VolumeAttributesClass))
    return dict(next((one.parameters for one in classes), {}))


def secret_values(external: ExternalDriver) -> dict[str, str]:
    """All secrets of the file: every call gets all of them."""
    return {key: value for secret in external.secrets for key, value in _decode_secret(secret).items()}


def _decode_secret(secret: Secret) -> dict[str, str]:
    data = {k: v if isinstance(v, bytes) else b64decode(v) for k, v in (secret.data or {}).items()}
    return {**{k: v.decode(errors="replace") for k, v in data.items()}, **(secret.string_data or {})}
