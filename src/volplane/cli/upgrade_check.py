"""`volplane upgrade-check`: can this version start a cluster that another version has used?"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import msgspec

from volplane.cli.cluster_directory import OUTPUT, describe_choice, directory_options, require_cluster
from volplane.cli.driver_options import load_user_drivers
from volplane.cli.error import CommandError
from volplane.cli.progress import ProgressLine
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart, UnusableDataDirectory
from volplane.cluster.fsck import Severity
from volplane.cluster.lifecycle import load_start_options
from volplane.cluster.saved_options import load_options
from volplane.cluster.upgrade import UpgradeReport, check_upgrade

FOUND = 3  # exit code


@click.command()
@OUTPUT
@directory_options
def command(output: str, layout: DataDirectory) -> None:
    """Check whether this version of Volplane can start a cluster that another version has used.

    Reads all objects, and the options of the last start. Changes nothing; the cluster may run. Exit code 0:
    it can; 3: something is in the way; 1: it could not be checked.
    """
    require_cluster(layout)
    try:
        with ProgressLine() as progress:
            report = check_upgrade(layout, lambda: _check_options(layout), progress.update)
    except UnusableDataDirectory as error:
        raise CommandError(str(error)) from error
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        _print(report, layout)
    sys.exit(FOUND if any(each.severity is Severity.ERROR for each in report.findings) else 0)


def _check_options(layout: DataDirectory) -> Iterator[str]:
    """What is wrong with the options of the last start, for this version."""
    from volplane.cli.up import command as up

    try:
        up.make_context("up", list(load_start_options(layout).arguments))
    except click.ClickException as error:
        yield f"an option of the last start is not accepted: {error.format_message()}"
    try:
        load_user_drivers(load_options(layout))
    except CannotStart as error:
        yield str(error)


def _print(report: UpgradeReport, layout: DataDirectory) -> None:
    last = f"Volplane {report.last_program}" if report.last_program else "an older version"
    click.echo(f"{report.data_dir}: last used by {last}, files of version {report.last_data_version}")
    click.echo(f"this is Volplane {report.program}, files of version {report.data_version}")
    for finding in report.findings:
        click.echo(f"{finding.severity.value}: {finding.about} {finding.message}")
    if not any(each.severity is Severity.ERROR for each in report.findings):
        click.echo(f"{report.objects} objects can be read; it can start")
    for text in report.migrations:
        click.echo(f"  the next start changes: {text}")
    if report.migrations:
        click.echo(f"  make a backup first: volplane backup FILE --disks{describe_choice(layout)}")
