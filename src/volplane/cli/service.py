"""`volplane service`: run a cluster as a service of systemd."""

from __future__ import annotations

import os
import sys

import click

from volplane.cli.cluster_directory import (
    describe_choice,
    directory_options,
    require_cluster,
    require_known_version,
)
from volplane.cli.error import CommandError
from volplane.cli.options import DURATION
from volplane.cli.progress import ProgressLine
from volplane.cli.serve import require_root
from volplane.cluster import lifecycle
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart
from volplane.cluster.service import (
    SYSTEM_UNITS,
    ServiceError,
    ServiceUnit,
    build_unit,
    choose_unit,
    remove_unit,
    write_unit,
)

READY_TIMEOUT = 120.0  # seconds

_UNIT_DIR = click.option("--unit-dir", default="", metavar=SYSTEM_UNITS, help="directory of the unit")
_USER = click.option("--user", is_flag=True, help="a service of this user, who need not be root")


@click.group()
def command() -> None:
    """Run a cluster as a service of systemd: it starts with the machine, and again if it ends."""


@command.command("install", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTION_OF_UP...]")
@click.option("--print", "print_only", is_flag=True, help="print the unit, and change nothing")
@click.option("--no-start", is_flag=True, help="start it with the machine only, not now")
@click.option("--wait", type=DURATION, default=READY_TIMEOUT, metavar="2m", help="time to become ready")
@_UNIT_DIR
@_USER
@directory_options
def install(
    arguments: tuple[str, ...],
    print_only: bool,
    no_start: bool,
    wait: float,
    unit_dir: str,
    user: bool,
    layout: DataDirectory,
) -> None:
    """Write the unit of a cluster, enable it and start it.

    The options of `volplane up` come after `--`; without any, those of the last start in the background are
    used. The log is in the data directory, rotated at 10 MB; `volplane logs` prints it. An existing unit is
    replaced.
    """
    unit = choose_unit(layout, unit_dir, user=user)
    chosen = _choose_arguments(arguments, layout)
    text = build_unit(
        layout,
        [sys.executable, "-m", "volplane"],
        chosen,
        environment={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        working_directory=os.getcwd() if arguments else "",
        user=user,
    )
    if print_only:
        click.echo(text, nl=False)
        return
    if not user:
        require_root()
    require_known_version(layout)
    if not unit.exists and lifecycle.find_processes(layout).phase is not lifecycle.ClusterPhase.STOPPED:
        raise CommandError(
            f"the cluster runs already, not as a service: volplane stop{describe_choice(layout)} stops it"
        )
    try:
        layout.create()
        layout.lock.touch(0o600)
        write_unit(unit, text)
        _start(unit, layout, wait=wait, no_start=no_start)
    except CannotStart as error:
        raise CommandError(str(error)) from error


def _choose_arguments(arguments: tuple[str, ...], layout: DataDirectory) -> tuple[str, ...]:
    from volplane.cli.up import command as up

    chosen = arguments or lifecycle.load_start_options(layout).arguments
    try:
        context = up.make_context("up", list(chosen))
    except click.UsageError as error:
        raise click.UsageError(f"options of up: {error.format_message()}") from error
    for name in ("detach", "name"):
        if context.params.get(name):
            raise click.UsageError(f"options of up: --{name} is not for a service")
    return chosen


def _start(unit: ServiceUnit, layout: DataDirectory, *, wait: float, no_start: bool) -> None:
    click.echo(f"wrote {unit.path}")
    if not unit.is_controlled:
        click.echo(f"  for systemd: systemctl daemon-reload && systemctl enable --now {unit.name}")
        return
    unit.control("daemon-reload")
    unit.control("enable", unit.name)
    if no_start:
        click.echo(f"{unit.name} starts with the machine")
        return
    unit.control("restart", unit.name)
    with ProgressLine() as progress:
        reason = lifecycle.wait_ready(layout, None, wait, lambda: progress.update("starting"))
    if reason:
        raise ServiceError(f"{unit.name} is {reason}; see volplane logs{describe_choice(layout)}")
    click.echo(f"ready: {unit.name} runs; see volplane status{describe_choice(layout)}")


@command.command("uninstall")
@_UNIT_DIR
@_USER
@directory_options
def uninstall(unit_dir: str, user: bool, layout: DataDirectory) -> None:
    """Stop the service of a cluster, and remove its unit. The data is kept."""
    require_cluster(layout)
    unit = choose_unit(layout, unit_dir, user=user)
    if not unit.exists:
        raise CommandError(f"the cluster in {layout.directory} is not a service: {unit.path} does not exist")
    try:
        if unit.is_controlled:
            unit.control("disable", "--now", unit.name)
        remove_unit(unit)
        if unit.is_controlled:
            unit.control("daemon-reload")
    except CannotStart as error:
        raise CommandError(str(error)) from error
    click.echo(f"removed {unit.path}; the data in {layout.directory} is kept")
