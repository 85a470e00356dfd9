"""`volplane fsck`: check a data directory, and repair it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
import msgspec
from msgspec import Struct

from volplane.cli.cluster_directory import (
    OUTPUT,
    describe_choice,
    directory_options,
    require_cluster,
    require_known_version,
)
from volplane.cli.error import CommandError
from volplane.cli.progress import ProgressLine
from volplane.cli.serve import enter_namespace
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import UnusableDataDirectory
from volplane.cluster.fsck import CheckFinding, check_directory, repair_findings
from volplane.store import StoreInUse

FOUND = 3  # exit code


class FsckResult(Struct, frozen=True, rename="camel"):
    data_dir: str
    findings: Sequence[CheckFinding]
    repaired: Sequence[CheckFinding] = ()


@click.command()
@click.option("--repair", is_flag=True, help="repair what can be repaired; the cluster must be stopped")
@click.option("--yes", is_flag=True, help="do not ask")
@OUTPUT
@directory_options
def command(repair: bool, yes: bool, output: str, layout: DataDirectory) -> None:
    """Check whether objects, disks, mounts and certificates of a cluster agree. The cluster may run.

    Changes nothing without --repair, which asks first. It never deletes data: a disk without a record is
    renamed. Exit code 0: nothing was found, or everything is repaired; 3: something was found; 1: it could
    not be checked.
    """
    require_cluster(layout)
    enter_namespace(layout)
    require_known_version(layout)
    with ProgressLine() as progress:
        found = check_directory(layout, progress.update)
    possible = [finding for finding in found if finding.repair is not None]
    if output == "text":
        _print(layout, found, hint=bool(possible) and not repair)
    left = found
    if repair and possible:
        _repair(layout, possible, ask=not yes)
        with ProgressLine() as progress:
            left = check_directory(layout, progress.update)
        click.echo(f"repaired {len(found) - len(left)}, {len(left)} left", err=output == "json")
    if output == "json":
        repaired = [finding for finding in found if finding not in left]
        result = FsckResult(str(layout.directory), left, repaired)
        click.echo(msgspec.json.format(msgspec.json.encode(result), indent=2))
    sys.exit(FOUND if left else 0)


def _print(layout: DataDirectory, found: Sequence[CheckFinding], *, hint: bool) -> None:
    for finding in found:
        click.echo(f"{finding.severity.value}: {finding.about} {finding.message}")
    if not found:
        click.echo(f"{layout.directory}: everything agrees")
    elif hint:
        click.echo(f"repair with: volplane fsck --repair{describe_choice(layout)}")


def _repair(layout: DataDirectory, findings: Sequence[CheckFinding], *, ask: bool) -> None:
    try:
        lock = layout.acquire_lock()  # from now on it cannot start
    except (StoreInUse, UnusableDataDirectory) as error:
        raise CommandError(
            f"{error}: stop the cluster first, with volplane stop{describe_choice(layout)}"
        ) from error
    try:
        if ask:
            for finding in findings:
                click.echo(f"  {finding.repair}", err=True)
            click.confirm(f"Repair {len(findings)} findings?", abort=True, err=True)
        with ProgressLine() as progress:
            failed = repair_findings(layout, findings, progress.update)
    finally:
        os.close(lock)
    for line in failed:
        click.echo(f"volplane: {line}", err=True)
