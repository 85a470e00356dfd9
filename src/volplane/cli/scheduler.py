"""`volplane scheduler`: the scheduler, with any API server."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

import click
import yaml
from click.core import ParameterSource
from msgspec import structs

from volplane import scheduler
from volplane.base.tasks import run_until
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.serve import connect, serve
from volplane.loops.leader_elect import ComponentLeaderElection
from volplane.loops.wait_reports import WaitRegistry
from volplane.scheduler.configuration import BadConfiguration, SchedulerConfiguration, read_configuration
from volplane.scheduler.profile import BIND_TIMEOUT, DEFAULT, SchedulerProfile

log = logging.getLogger(__name__)

OF_PROFILES = ("scheduler_name", "bind_timeout_seconds")  # options that a configuration replaces


@click.command()
@options(ComponentLeaderElection, argument="election")
@click.option("--kubeconfig", default="", metavar="FILE", help="API server and credentials")
@click.option(
    "--config",
    "file",
    default="",
    metavar="FILE",
    help="KubeSchedulerConfiguration: profiles, plugins, leader election; flags override it",
)
@click.option(
    "--scheduler-name",
    default=DEFAULT,
    metavar=DEFAULT,
    help="schedulerName of the pods to schedule",
)
@click.option(
    "--bind-timeout-seconds",
    default=int(BIND_TIMEOUT),
    metavar=f"{BIND_TIMEOUT:g}",
    type=click.IntRange(min=0),
    help="time a pod waits for its volumes to bind before it is scheduled again",
)
@click.pass_context
def command(
    context: click.Context,
    election: ComponentLeaderElection,
    kubeconfig: str,
    file: str,
    scheduler_name: str,
    bind_timeout_seconds: int,
) -> None:
    """Assign pods to nodes until stopped."""
    if file:
        for name in filter(partial(_is_given, context), OF_PROFILES):
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} cannot be used with --config: set it in the file's profiles")
        chosen = _read(file)
        election = _merge(context, election, chosen)
        kubeconfig = kubeconfig or chosen.kubeconfig
    else:
        profile = SchedulerProfile(scheduler_name, bind_timeout=bind_timeout_seconds)
        chosen = SchedulerConfiguration((profile,), {})
    registry = WaitRegistry()
    serve(partial(_serve, election, kubeconfig, chosen, registry), wait_registry=registry)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _read(file: str) -> SchedulerConfiguration:
    try:
        return read_configuration(yaml.safe_load(Path(file).read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--config {file}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise CommandError(f"--config {file} is not YAML: {error}") from error
    except BadConfiguration as error:
        raise CommandError(f"--config {file}: {error}") from error


def _merge(
    context: click.Context, election: ComponentLeaderElection, chosen: SchedulerConfiguration
) -> ComponentLeaderElection:
    """The election of the file, with the flags that were typed."""
    given = {field: value for field, value in chosen.election.items() if not _is_given(context, field)}
    try:
        return structs.replace(election, **given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


async def _serve(
    election: ComponentLeaderElection,
    kubeconfig: str,
    chosen: SchedulerConfiguration,
    registry: WaitRegistry,
    stop: asyncio.Event,
) -> None:
    if chosen.ignored:
        log.info("not used by this scheduler: %s", ", ".join(chosen.ignored))
    client = connect(kubeconfig, scheduler.COMPONENT)
    try:
        work = scheduler.run(
            client,
            profiles=chosen.profiles,
            backoff=chosen.backoff,
            wait_registry=registry,
            election=election,
        )
        await run_until(stop, work)
    finally:
        await client.close()
        await client.transport.close()
