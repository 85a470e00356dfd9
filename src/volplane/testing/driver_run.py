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
from volplane.cluster.external_driver.model import DiscoveredDriver, ExternalDriver
from volplane.host.mounts import read_table
from volplane.testing import runner, sanity
from volplane.testing.capabilities import DriverCapabilities
from volplane.testing.case import Case
from volplane.testing.cluster_env import ClusterEnv
from volplane.testing.given_volumes import GivenVolumes
from volplane.testing.known_failures import KnownFailures
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
    known_failures: KnownFailures | None = None,
    given_volumes: GivenVolumes | None = None,
    api_server: bool = False,
    runtime: str = "",
    on_start: Callable[[DriverTestRun], None] = lambda run: None,
    on_case_start: OnCaseStart = lambda name: None,
) -> DriverTestRun:
    """Run the cases. Raises CannotStart, or CallError if the driver does not report its name.

    `runtime`: the endpoint of the container runtime, for a driver in its own image. `on_start` gets the run
    before the first case, so that the caller has the results if it is interrupted.
    """
    began = time.monotonic()
    run = DriverTestRun("", "", [], settings.seed, list(command), started=clock.stamp())
    run.known_failures = known_failures or KnownFailures()

    def record_result(result: CaseResult) -> None:
        if result.verdict is CaseVerdict.FAILED and (entry := run.known_failures.find(result.name)):
            result.known = str(entry)
        run.results.append(result)
        run.seconds = time.monotonic() - began
        on_result(result)

    given: dict[str, Any] = {
        "secrets": {**secret_values(external), **(secrets or {})},
        "parameters": {**class_parameters(external), **(parameters or {})},
        "mutable": {**mutable_parameters(external), **(mutable or {})},
        "given": given_volumes,
        "runtime": runtime,
    }
    cluster_cases = [case for case in cases if case.needs_cluster]
    async with working_directory(directory) as directory:
        async with SocketEnv(
            external, directory, seed=settings.seed, nodes=nodes, api_server=api_server, **given
        ) as env:
            # A driver that needs more than its command cannot be started alone, to be asked again.
            needs_more = env.has_api_server or env.has_instances or external.runs_images
            facts = [_describe_driver(env)] if needs_more else []
            _record_driver_info(run, env)
            if env.given.ids and env.reported.has("create"):
                raise CannotStart("--volume-id is for drivers that do not create volumes, and this one does")
            on_start(run)
            await _run_socket_cases(env, cases, settings, record_result, on_case_start)
            capabilities = env.reported
            capabilities.probed = set(env.capabilities.probed)
            if env.given.inline:
                capabilities.probed.discard("given")  # a claim has no inline volume
            if cluster_cases and capabilities.has("create"):
                capabilities.probed |= {
                    need for need, capability in _PROBED_BY_CREATE.items() if await env.supports(capability)
                }
        if cluster_cases and _supports_inline_volumes(external, capabilities, given_volumes):
            capabilities.probed.add("inline")
        for kind, name, needs_processes in ((ClusterEnv, "w", False), (ProcessEnv, "a", True)):
            if selected := [case for case in cluster_cases if case.needs_processes is needs_processes]:
                cluster_env = kind(external, directory / name, capabilities, facts=facts, **given)
                await _run_cluster_cases(cluster_env, selected, settings, record_result, on_case_start)
    run.seconds, run.complete = time.monotonic() - began, True
    return run


def _record_driver_info(run: DriverTestRun, env: SocketEnv) -> None:
    """Copy the driver's name, version and capabilities into the run."""
    capabilities = env.reported
    run.driver, run.version = capabilities.name, capabilities.version
    named = {f"node {name}" for name in capabilities.node} | {f"group {name}" for name in capabilities.group}
    run.capabilities = sorted(capabilities.plugin | capabilities.controller | named)
    run.nodes = [node.id for node in env.nodes]


def _describe_driver(env: SocketEnv) -> DiscoveredDriver:
    """The answers of the driver, as a cluster needs them to deploy it."""
    known, first = env.reported, env.nodes[0]
    return DiscoveredDriver(
        name=known.name,
        version=known.version,
        plugin=frozenset(known.plugin),
        expansion=frozenset({known.expansion} if known.expansion else ()),
        controller=frozenset(known.controller),
        node=frozenset(known.node),
        node_id=first.id,
        topology=first.topology,
        asked_as=first.instance.name,
        max_volumes=first.most,
    )


async def _run_socket_cases(
    env: SocketEnv,
    cases: Sequence[Case],
    settings: CaseSettings,
    on_result: OnResult,
    on_case_start: OnCaseStart,
) -> None:
    own_cases = [case for case in cases if not case.needs_cluster and case.name != sanity.CASE]
    for number in range(1, settings.repeat + 1):
        await runner.run(env, own_cases, settings, on_result, number, on_case_start=on_case_start)
    if any(case.name == sanity.CASE for case in cases):
        on_case_start(sanity.CASE)
        for result in await sanity.run(env, env.directory / "sanity"):
            on_result(runner.redact_secrets(result, env.secrets.values()))


async def _run_cluster_cases(
    cluster_env: ClusterEnv,
    cases: Sequence[Case],
    settings: CaseSettings,
    on_result: OnResult,
    on_case_start: OnCaseStart,
) -> None:
    on_case_start(cases[0].name)
    try:
        env = await cluster_env.__aenter__()
    except CannotStart as error:
        for result in start_failure_results(cases, str(error)):
            on_result(result)
        return
    try:
        for number in range(1, settings.repeat + 1):
            await runner.run(env, cases, settings, on_result, number, on_case_start=on_case_start)
    finally:
        await env.__aexit__()


def start_failure_results(cases: Sequence[Case], why: str) -> Iterator[CaseResult]:
    """The results if the cluster does not start: one failure, all other cases skipped."""
    reason, verdict = f"the cluster did not start: {why}", CaseVerdict.FAILED
    for case in cases:
        yield CaseResult(case.name, case.section, case.requirement, verdict, reason, needs=case.needs)
        reason, verdict = f"the cluster did not start, see {cases[0].name}", CaseVerdict.SKIPPED


def _supports_inline_volumes(
    external: ExternalDriver, capabilities: DriverCapabilities, given: GivenVolumes | None
) -> bool:
    """As on the command line, in the given CSIDriver, or in the one that is derived from the capabilities."""
    if given is not None and given.inline:
        return True
    if external.driver is None:
        return "CONTROLLER_SERVICE" not in capabilities.plugin and not given
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
