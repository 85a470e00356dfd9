"""Restore a backup into a directory that does not exist yet.

Everything is written beside it, compared with the list of members, synced and then renamed: the directory
appears complete, or not at all. The archive may be damaged or forged: no name in it leads out of the
directory, and no link is followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from volplane.base import failpoint
from volplane.base.files import sync_directory
from volplane.cluster.backup.errors import BackupError
from volplane.cluster.backup.members import DISKS, BackupHeader
from volplane.cluster.backup.reader import Extraction
from volplane.cluster.data_directory import DataDirectory
from volplane.host import PathEscapesVolume, copies


class RestoreSummary(Struct, frozen=True, rename="camel"):
    directory: str
    backup: BackupHeader
    disks: int
    files: int


def restore_backup(source: Path, target: Path, report: Callable[[int, int], None]) -> RestoreSummary:
    """Restore into `target`. `report` gets the bytes done and in total. Raises BackupError."""
    _refuse_used(target)
    try:
        with open(source, "rb") as archive, _create_beside(target) as directory:
            extraction = Extraction(archive.fileno(), directory, report)
            header = extraction.run()
            DataDirectory(directory).lock.touch(0o600)  # says that the directory is a cluster's
            failpoint.hit("restore:complete")
            copies.sync(str(directory))
            failpoint.hit("restore:synced")
            _rename(directory, target)
            failpoint.hit("restore:renamed")
    except tarfile.TarError as error:
        raise BackupError(f"{source} is not a complete backup: {error}. Nothing was restored") from error
    except PathEscapesVolume as error:
        raise BackupError(f"{source} is not a backup: {error.args[0]}. Nothing was restored") from error
    except OSError as error:
        raise BackupError(f"cannot restore: {error.filename or source}: {error.strerror}") from error
    names = [member.name for member in extraction.members]
    return RestoreSummary(
        directory=str(target),
        backup=header,
        disks=sum(name.startswith(f"{DISKS}/") for name in names),
        files=len(names),
    )


def _refuse_used(target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        if os.path.ismount(target):
            raise BackupError(f"{target} is a mount point: restore into a new directory in it")
        if any(target.iterdir()):
            raise BackupError(
                f"{target} is not empty: choose a directory that does not exist yet, or delete the cluster"
                " there first"
            )
    elif os.path.lexists(target):
        raise BackupError(f"{target} is not a directory")


def _rename(directory: Path, target: Path) -> None:
    try:
        os.rename(directory, target)  # replaces a directory only if it is empty
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise BackupError(f"{target} is used by another program since the restore began") from error
        raise
    sync_directory(str(target.parent))


@contextmanager
def _create_beside(target: Path) -> Iterator[Path]:
    """A directory beside the target, locked; removed at the end if it still exists."""
    directory = target.with_name(f".{target.name}.restore")
    directory.mkdir(0o700, parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another restore into {target} runs") from None
        _clear(directory)  # what a restore that was killed has left
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)  # after the rename there is none
    finally:
        os.close(lock)


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
