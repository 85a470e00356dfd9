"""What the verbs about clusters on this machine have in common: --name and --data-dir."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from volplane.cli.error import CommandError
from volplane.client.kubeconfig import BadKubeconfig, update
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.data_version import check_version
from volplane.cluster.errors import UnusableDataDirectory
from volplane.cluster.lifecycle import DEFAULT_DIRECTORY, name_directory

Command = TypeVar("Command", bound=Callable[..., Any])
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

NAME = click.option(
    "--name", default="", metavar="NAME", help=f"cluster of this name, in {DEFAULT_DIRECTORY}-NAME"
)
OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="output format"
)


def directory_options(command: Command) -> Command:
    """Add --name and --data-dir. The verb gets them as `layout`."""

    def run(*, name: str, data_dir: str, **values: Any) -> Any:
        return command(layout=DataDirectory(choose_directory(name, data_dir)), **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    data_dir = click.option(
        "--data-dir", default="", metavar=DEFAULT_DIRECTORY, help="directory of the cluster"
    )
    return cast("Command", NAME(data_dir(run)))


def choose_directory(name: str, data_dir: str) -> str:
    if name and data_dir:
        raise click.UsageError("--name and --data-dir exclude each other: a name stands for a directory")
    if name and not _NAME.fullmatch(name):
        raise click.UsageError(f"--name {name!r}: use lower-case letters, digits and hyphens, at most 63")
    return data_dir or name_directory(name)


def require_cluster(layout: DataDirectory) -> None:
    """Raises CommandError if there is no cluster in the directory."""
    if not layout.lock.exists():
        raise CommandError(f"no cluster in {layout.directory}: start one with {describe_up(layout)}")


def require_known_version(layout: DataDirectory) -> None:
    """Raises CommandError if a newer version has written the directory."""
    try:
        check_version(layout)
    except UnusableDataDirectory as error:
        raise CommandError(str(error)) from error


def describe_up(layout: DataDirectory) -> str:
    return f"volplane up{describe_choice(layout)}"


def describe_choice(layout: DataDirectory) -> str:
    """The option that chooses this cluster: " --name dev", or nothing for the default one."""
    first = Path(DEFAULT_DIRECTORY).expanduser().resolve()
    if layout.directory == first:
        return ""
    name = layout.directory.name.removeprefix(f"{first.name}-")
    if layout.directory.parent == first.parent and layout.directory.name == f"{first.name}-{name}":
        return f" --name {name}"
    return f" --data-dir {layout.directory}"


def context_name(layout: DataDirectory) -> str:
    """The name of a cluster's context in the user's kubeconfig: volplane, or volplane-dev."""
    name = layout.directory.name.lstrip(".")
    return name if name.startswith("volplane") else f"volplane-{name}"


def update_kubeconfig(layout: DataDirectory) -> None:
    """Make the cluster the current context of the user's kubeconfig. Raises CommandError."""
    target, name = update.find_target(), context_name(layout)
    try:
        update.add_context(target, layout.kubeconfig, name)
    except BadKubeconfig as error:
        raise CommandError(f"cannot change the kubeconfig: {error}") from error
    click.echo(f"{target}: the current context is now {name}")
