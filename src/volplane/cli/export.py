"""`volplane export`: the objects of a cluster, or everything that is needed to find out what happened."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from volplane.base.files import atomic_write
from volplane.cli.cluster_directory import OUTPUT, directory_options, require_cluster
from volplane.cli.cluster_reader import ClusterChoice, cluster_flags, run_with
from volplane.cli.error import CommandError
from volplane.cli.progress import ProgressLine
from volplane.cli.serve import enter_namespace
from volplane.cluster.data_directory import DataDirectory


@click.group()
def command() -> None:
    """Export what belongs to a cluster."""


@command.command("objects")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@cluster_flags
def export_to_file(file: Path, cluster: ClusterChoice) -> None:
    """Write the objects of any Kubernetes cluster to FILE, for `volplane import`.

    What a cluster makes by itself is left out: nodes, events, leases, pods of workloads, and whatever else
    has a controller. FILE is a List that kubectl can read, too; it contains Secrets and has mode 0600. It
    must not exist.
    """
    from volplane.cluster.objects.export import export_objects

    with _new_file(file) as write:
        with ProgressLine() as progress:
            found = run_with(
                cluster, "volplane-export", lambda transport: export_objects(transport, progress.update)
            )
        document = {"apiVersion": "v1", "kind": "List", "items": found.items}
        write(msgspec.json.format(msgspec.json.encode(document), indent=2))
    click.echo(f"{file}: {len(found.items)} objects")
    for volume in found.left_out:
        click.echo(f"volplane: left out: {volume}", err=True)
    for problem in found.problems:
        click.echo(f"volplane: not exported: {problem}", err=True)
    if found.problems:
        sys.exit(1)


@contextmanager
def _new_file(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Create the file before the work, which may take long; remove it if the work fails."""

    def write(data: bytes) -> None:
        try:
            atomic_write(str(path.absolute()), data, durable=True)
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}") from error

    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield write
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@command.command("logs")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), required=False)
@OUTPUT
@directory_options
def export_logs(directory: Path | None, output: str, layout: DataDirectory) -> None:
    """Write logs, objects and the state of the machine to DIRECTORY, and print its name.

    For bug reports: logs of the cluster, its roles and all containers, all objects, and what `volplane fsck`
    finds. Keys, tokens and the values of Secrets are left out; what your programs have written to their logs
    is not. DIRECTORY must not exist, or be empty; without it, a directory in /tmp is created. The cluster may
    run. Its log is missing if it ran in the foreground.
    """
    from volplane.cluster.fsck import check_directory
    from volplane.cluster.log_export import export_logs

    require_cluster(layout)
    enter_namespace(layout)
    target = _create(directory)
    try:
        with ProgressLine() as progress:
            findings = check_directory(layout, progress.update)
            summary = export_logs(layout, target, findings, progress.update)
    except OSError as error:
        shutil.rmtree(target)
        raise CommandError(f"cannot write to {target}: {error.filename}: {error.strerror}") from error
    except BaseException:
        shutil.rmtree(target)
        raise
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(summary), indent=2))
        return
    click.echo(target)
    for problem in summary.problems:
        click.echo(f"volplane: not exported: {problem}", err=True)


def _create(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="volplane-logs-"))
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise CommandError(f"{directory} is not empty: choose a directory that does not exist yet")
    except OSError as error:
        raise CommandError(f"cannot create {directory}: {error.strerror}") from error
    return directory.absolute()
