"""The version of the files in a data directory: migration forward, refusal backward.

`version.json` names the version and the program that wrote it. A directory without it is of version 0. A
start migrates step by step; each step may be repeated, because a kill may come before it is recorded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from volplane.base import failpoint
from volplane.base.version import package_version
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import UnusableDataDirectory

log = logging.getLogger(__name__)


class DataVersion(Struct, frozen=True):
    version: int = 0
    program: str = ""  # version of Volplane that used it last; "": before versions were recorded


class Migration(Struct, frozen=True):
    """A change of files from the version before."""

    version: int  # afterwards
    about: str  # what changes, for people: a noun phrase
    migrate: Callable[[DataDirectory], None]  # may be called again after a kill


def _nothing(layout: DataDirectory) -> None:
    """For versions that only add files: programs that do not know them leave them alone."""


MIGRATIONS: tuple[Migration, ...] = (Migration(1, "the version is recorded in version.json", _nothing),)
NEWEST = MIGRATIONS[-1].version


def read_version(layout: DataDirectory) -> DataVersion:
    """Raises UnusableDataDirectory if the file cannot be read."""
    try:
        return msgspec.json.decode(layout.version.read_bytes(), type=DataVersion)
    except (FileNotFoundError, NotADirectoryError):
        return DataVersion()
    except PermissionError as error:
        raise UnusableDataDirectory(
            f"cannot use {layout.directory} as data directory: {error.strerror}"
        ) from error
    except (OSError, ValueError) as error:
        raise UnusableDataDirectory(
            f"{layout.version} cannot be read: {error}; restore it, or remove it if no newer version was used"
        ) from error


def check_version(layout: DataDirectory, newest: int = NEWEST) -> DataVersion:
    """Raises UnusableDataDirectory if a newer version has written the directory."""
    found = read_version(layout)
    if found.version > newest:
        raise UnusableDataDirectory(
            f"{layout.directory} has files of version {found.version}, written by Volplane {found.program};"
            f" this is Volplane {package_version()}, which knows {newest}. Nothing was changed: use the newer"
            " version, or restore a backup from before the upgrade"
        )
    return found


def find_migrations(version: int, migrations: Sequence[Migration] = MIGRATIONS) -> Sequence[Migration]:
    """What a start on a directory of that version changes."""
    return [migration for migration in migrations if migration.version > version]


def migrate(layout: DataDirectory, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the files to the newest version. The directory is locked. Raises UnusableDataDirectory."""
    newest = migrations[-1].version
    found = check_version(layout, newest)
    try:
        if layout.is_used:
            for each in find_migrations(found.version, migrations):
                log.info("%s: version %d: %s", layout.directory, each.version, each.about)
                each.migrate(layout)
                failpoint.hit("migration:half")
                _write(layout, each.version)
                failpoint.hit("migration:done")
        if found != DataVersion(newest, package_version()):
            _write(layout, newest)
    except OSError as error:
        raise UnusableDataDirectory(f"cannot migrate {layout.directory}: {error}") from error


def _write(layout: DataDirectory, version: int) -> None:
    layout.write(layout.version, DataVersion(version, package_version()))


def open_directory(layout: DataDirectory) -> int:
    """Lock a directory and bring its files to this version. Returns the descriptor that holds the lock.

    Raises StoreInUse, UnusableDataDirectory.
    """
    descriptor = layout.acquire_lock()
    try:
        check_version(layout)
        layout.claim_directory()
        layout.check_state()
        migrate(layout)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
