"""The driver, manifest, image and runtime options of `up`, saved in the data directory for later starts.

Files are saved as paths and read at each start. A command is saved with all variables and paths resolved,
because the next start may have another working directory and environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart, UnusableDataDirectory
from volplane.cluster.external_driver.model import Command


class CommandLine(Struct, frozen=True):
    text: str  # as typed; "" for the image itself
    command: Command


class SavedRuntime(Struct, frozen=True, omit_defaults=True):
    """How nodes run containers. Without an endpoint they are processes."""

    endpoint: str = ""
    image_endpoint: str = ""
    nodes: Mapping[str, str] = {}  # --node

    def command_words(self) -> Iterator[str]:
        if self.endpoint:
            yield f"--container-runtime-endpoint {shlex.quote(self.endpoint)}"
        if self.image_endpoint:
            yield f"--image-service-endpoint {shlex.quote(self.image_endpoint)}"
        for name, kind in self.nodes.items():
            yield f"--node {name}={kind}"


class SavedOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    drivers: tuple[str, ...] = ()  # files
    commands: tuple[CommandLine, ...] = ()
    manifests: tuple[str, ...] = ()  # files and directories
    images: Mapping[str, CommandLine] = {}
    ours: bool | None = None
    runtime: SavedRuntime = SavedRuntime()

    def __bool__(self) -> bool:
        return self != SavedOptions()

    def command_words(self) -> Iterator[str]:
        """The same options as words of a command line."""
        for option, values in (
            ("--driver", self.drivers),
            ("--driver-command", [line.text for line in self.commands]),
            ("--manifest", self.manifests),
            (
                "--image",
                [f"{image}={line.text}" if line.text else image for image, line in self.images.items()],
            ),
        ):
            for value in values:
                yield f"{option} {shlex.quote(value)}"
        if self.ours is not None:
            yield "--builtin-drivers" if self.ours else "--no-builtin-drivers"
        yield from self.runtime.command_words()


def load_options(layout: DataDirectory) -> SavedOptions:
    """The options of the last start. Raises UnusableDataDirectory."""
    try:
        return msgspec.json.decode(layout.saved_options.read_bytes(), type=SavedOptions)
    except (FileNotFoundError, NotADirectoryError):
        return SavedOptions()
    except (OSError, ValueError) as error:
        raise UnusableDataDirectory(
            f"the options of the last start cannot be read from {layout.saved_options}: {error}; "
            "restore the file, or remove it and give all options again"
        ) from error


@contextmanager
def save_options(layout: DataDirectory, options: SavedOptions) -> Iterator[None]:
    """Save options for the block; if it raises CannotStart, restore the earlier ones."""
    before = load_options(layout)
    if options != before:
        layout.write(layout.saved_options, options)
    try:
        yield
    except CannotStart:
        layout.write(layout.saved_options, before)
        raise
