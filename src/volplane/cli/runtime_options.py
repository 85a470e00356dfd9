"""The container runtime that `up` uses: of the command line, or of the last start on the data directory."""

from __future__ import annotations

import click
from click.core import ParameterSource
from msgspec import structs

from volplane.cli.error import CommandError
from volplane.cluster.container_runtime import CRI, PROCESS, choose_endpoint
from volplane.cluster.data_directory import DataDirectory, node_name
from volplane.cluster.errors import CannotStart
from volplane.cluster.saved_options import SavedOptions, SavedRuntime, load_options
from volplane.cluster.single_process import ClusterOptions


def resolve_runtime(settings: ClusterOptions, context: click.Context) -> tuple[ClusterOptions, SavedRuntime]:
    """The settings with what was not given, and what that is. Raises CommandError.

    An endpoint that was given as "" means processes.
    """

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is not ParameterSource.DEFAULT

    nothing = SavedRuntime()
    if is_given("container_runtime_endpoint"):
        return settings, nothing
    saved = load_saved(DataDirectory(settings.data_dir)).runtime
    if not saved.endpoint:
        return settings, nothing
    used = SavedRuntime(
        saved.endpoint,
        "" if is_given("image_service_endpoint") else saved.image_endpoint,
        {} if is_given("node") else choose_kinds(saved, settings.nodes),
    )
    return (
        structs.replace(
            settings,
            container_runtime_endpoint=used.endpoint,
            image_service_endpoint=used.image_endpoint or settings.image_service_endpoint,
            node=used.nodes or settings.node,
        ),
        used,
    )


def choose_kinds(saved: SavedRuntime, nodes: int) -> dict[str, str]:
    """--node for the nodes that there are now; {} if all of them use the runtime."""
    names = [node_name(index) for index in range(1, nodes + 1)]
    endpoints = {name: choose_endpoint(name, saved.nodes, saved.endpoint) for name in names}
    return {} if all(endpoints.values()) else {n: CRI if e else PROCESS for n, e in endpoints.items()}


def load_saved(layout: DataDirectory) -> SavedOptions:
    """Raises CommandError."""
    try:
        return load_options(layout)
    except CannotStart as error:
        raise CommandError(str(error)) from error
