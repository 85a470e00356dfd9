"""`volplane delete`: stop a cluster and delete its data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from volplane.cli.cluster_directory import context_name, describe_choice, directory_options, require_cluster
from volplane.cli.error import CommandError
from volplane.cli.progress import ProgressLine
from volplane.cli.serve import enter_namespace
from volplane.cli.stop import stop_cluster
from volplane.client.kubeconfig import BadKubeconfig, update
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import UnusableDataDirectory
from volplane.cluster.service import choose_unit
from volplane.store import StoreInUse


@click.command()
@click.option("--yes", is_flag=True, help="do not ask")
@directory_options
def command(yes: bool, layout: DataDirectory) -> None:
    """Stop a cluster and delete its data directory, with all objects and disks. Asks first."""
    require_cluster(layout)
    enter_namespace(layout)
    for unit in (choose_unit(layout), choose_unit(layout, user=True)):
        if unit.exists:
            user = " --user" if unit.user else ""
            raise CommandError(
                f"the cluster is a service: remove it first, with volplane service uninstall{user}"
                f"{describe_choice(layout)}"
            )
    if not yes:
        click.confirm(f"Delete {layout.directory} with all objects and disks?", abort=True, err=True)
    stop_cluster(layout)
    with ProgressLine() as progress:
        _delete_directory(layout, progress)
    click.echo(f"deleted {layout.directory}")
    try:
        if update.remove_context(target := update.find_target(), name := context_name(layout)):
            click.echo(f"{target}: removed the context {name}")
    except BadKubeconfig as error:
        raise CommandError(f"cannot change the kubeconfig: {error}") from error


def _delete_directory(layout: DataDirectory, progress: ProgressLine) -> None:
    """Delete the lock last, and hold it: nothing starts meanwhile, and an interrupted deletion can be
    repeated. Raises CommandError.
    """
    try:
        lock = layout.acquire_lock()
    except (StoreInUse, UnusableDataDirectory) as error:
        raise CommandError(f"{error}: it was started again, and is not deleted") from error
    try:
        for path in layout.directory.iterdir():
            if path != layout.lock:
                progress.update(f"deleting {path}")
                _remove(path)
        layout.lock.unlink()
        layout.directory.rmdir()
    except OSError as error:
        raise CommandError(f"cannot delete {error.filename}: {error.strerror}") from error
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
