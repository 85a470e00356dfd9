"""What a user brings to a cluster, as it was said: kept in the data directory for the starts to come.

Files are kept by their paths and read anew each time. A command is kept with all that was filled in where it
was typed: the next start may come from another place, with another environment.
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
    text: str  # as it was typed
    command: Command


class SavedOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    drivers: tuple[str, ...] = ()  # files
    commands: tuple[CommandLine, ...] = ()
    manifests: tuple[str, ...] = ()  # files and directories
    images: Mapping[str, CommandLine] = {}
    ours: bool | None = None

    def __bool__(self) -> bool:
        return self != SavedOptions()

    def command_words(self) -> Iterator[str]:
        """The options that say the same."""
        for option, values in (
            ("--driver", self.drivers),
            ("--driver-command", [line.text for line in self.commands]),
            ("--manifest", self.manifests),
            ("--image", [f"{image}={line.text}" for image, line in self.images.items()]),
        ):
            for value in values:
                yield f"{option} {shlex.quote(value)}"
        if self.ours is not None:
            yield "--builtin-drivers" if self.ours else "--no-builtin-drivers"


def load_options(layout: DataDirectory) -> SavedOptions:
    """What the last start on the directory was told. Raises Unusable."""
    try:
        return msgspec.json.decode(layout.brought.read_bytes(), type=SavedOptions)
    except (FileNotFoundError, NotADirectoryError):
        return SavedOptions()
    except (OSError, ValueError) as error:
        raise UnusableDataDirectory(
            f"what was brought at the last start cannot be read, {layout.brought}: {error}; "
            "restore it, or remove it and bring everything again"
        ) from error


@contextmanager
def save_options(layout: DataDirectory, said: SavedOptions) -> Iterator[None]:
    """Written down before anything comes of it; if it is refused, what was kept before counts again."""
    before = load_options(layout)
    if said != before:
        layout.write(layout.brought, said)
    try:
        yield
    except CannotStart:
        layout.write(layout.brought, before)
        raise
