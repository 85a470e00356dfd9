"""`volplane rotate-certificates`: new keys for a stopped cluster."""

from __future__ import annotations

import asyncio
import os

import click

from volplane.cli.cluster_directory import (
    describe_choice,
    directory_options,
    require_cluster,
    require_known_version,
)
from volplane.cli.error import CommandError
from volplane.cli.serve import enter_namespace
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import UnusableDataDirectory
from volplane.cluster.key_rotation import discard_keys
from volplane.cluster.leftovers import find_leftovers
from volplane.store import StoreInUse


@click.command()
@click.option("--yes", is_flag=True, help="do not ask")
@directory_options
def command(yes: bool, layout: DataDirectory) -> None:
    """Replace the CA of a stopped cluster, all its certificates and tokens, and its AWS keys.

    Certificates are valid for ten years, and a start renews those that expire within 30 days. This verb is
    for keys that others may know, as those of a restored backup. Copied kubeconfigs and tokens no longer
    work. Asks first.
    """
    require_cluster(layout)
    enter_namespace(layout)
    require_known_version(layout)
    stop = f"stop the cluster first: volplane stop{describe_choice(layout)}"
    try:
        lock = layout.acquire_lock()
    except (StoreInUse, UnusableDataDirectory) as error:
        raise CommandError(f"{error}; {stop}") from error
    try:
        if asyncio.run(find_leftovers(layout.directory, {})):
            raise CommandError(
                "the cluster was not stopped in order, and its pods have the old tokens: start and stop it"
            )
        if not yes:
            click.confirm(
                f"Replace all keys of {layout.directory}? Copied kubeconfigs will not work",
                abort=True,
                err=True,
            )
        discard_keys(layout)
    except UnusableDataDirectory as error:
        raise CommandError(str(error)) from error
    finally:
        os.close(lock)
    click.echo("the old keys are removed; the next start creates new ones")
