"""Back up a cluster, running or not.

The databases are copied as of one moment, at which nothing is written to either of them: a restored cluster
starts as after a power cut at that moment. Disks are opened at that moment, so that a deletion cannot take
them away; each is copied as of one later moment.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.base import clock, descriptors, failpoint
from volplane.base.version import package_version
from volplane.cluster.backup.disks import OpenImage, add_disk, clone_images, open_images
from volplane.cluster.backup.errors import BackupError
from volplane.cluster.backup.members import (
    CLOUD_STATE,
    DISKS,
    DRIVER_SHARES,
    FILES,
    FORMAT,
    HEADER,
    POINTS,
    SHARED,
    SNAPSHOTS,
    STATE,
    BackupHeader,
)
from volplane.cluster.backup.trees import TreeBackup
from volplane.cluster.backup.writer import ArchiveWriter, create_archive
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.data_version import read_version
from volplane.drivers.efs.access_points import AccessPoint
from volplane.store import StoreFailed
from volplane.store.sqlite.backup import view_at_one_moment

BackupProgress = Callable[[str, int, int], None]  # what is done; bytes that are done; bytes in total, about


class BackupSummary(Struct, frozen=True, rename="camel"):
    file: str
    size: int  # bytes
    disks: int
    snapshots: int
    files: int  # in shared directories
    unsteady: tuple[str, ...] = ()  # files that were written while they were read
    deleted: tuple[str, ...] = ()  # shared directories that were deleted meanwhile; empty in the backup


class _Moment:
    """What is read while nothing is written to the databases."""

    def __init__(self, directory: Path, stack: ExitStack, *, disks: bool) -> None:
        self._directory, self._stack, self._disks = directory, stack, disks
        self.images: list[OpenImage] = []
        self.files: dict[str, bytes] = {}

    def read(self) -> None:
        failpoint.hit("backup:moment")
        for name in FILES:
            self._read(self._directory / name)
        for path in (*self._directory.glob("pki/*"), *self._directory.glob(f"{POINTS}/*.json")):
            self._read(path)
        if self._disks:
            self.images += open_images(self._directory / DISKS, DISKS, self._stack, is_fixed=False)
            self.images += open_images(self._directory / SNAPSHOTS, SNAPSHOTS, self._stack, is_fixed=True)

    def _read(self, path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            self.files[str(path.relative_to(self._directory))] = path.read_bytes()


def create_backup(
    layout: DataDirectory, target: Path, *, disks: bool, report: BackupProgress
) -> BackupSummary:
    """Write a backup. If it fails, or this process is killed, there is no file `target`. Raises BackupError.

    `disks`: include the content of volumes and snapshots.
    """
    _require_state(layout)
    descriptors.raise_limit()  # every disk is open until it is copied
    done, total, what = 0, 0, "reading the state"

    def count(size: int) -> None:
        nonlocal done
        done += size
        report(what, done, max(done, total))

    directory = layout.directory
    databases = [path for path in (directory / STATE, directory / CLOUD_STATE) if path.exists()]
    try:
        with ExitStack() as stack:
            archive = stack.enter_context(create_archive(target, count))
            moment = _Moment(directory, stack, disks=disks)
            # The views end before the disks are copied: while one is open, the log of its database grows.
            with view_at_one_moment(databases, moment.read) as views:
                failpoint.hit("backup:viewed")
                total = sum(view.size for view in views) + sum(
                    image.allocated_bytes for image in moment.images
                )
                archive.add_bytes(HEADER, msgspec.json.encode(_describe(layout, disks=disks)))
                for name, content in moment.files.items():
                    archive.add_bytes(name, content)
                for view in views:
                    what = str(view.path.relative_to(directory))
                    with view.copy_into(target.parent) as copy:
                        archive.add_file(what, copy)
                    failpoint.hit("backup:database")
            clone_images(moment.images, stack)
            for image in moment.images:
                what = image.name
                add_disk(archive, image)
                failpoint.hit("backup:disk")
            what = "shared directories"
            tree = TreeBackup(archive)
            deleted = _add_shared(archive, tree, layout, moment) if disks else ()
            what = "writing to disk"
            report(what, done, max(done, total))
            failpoint.hit("backup:complete")
    except StoreFailed as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        raise BackupError(f"cannot back up {directory}: {_describe_error(error, target)}") from error
    failpoint.hit("backup:published")
    kinds = [image.name.startswith(f"{DISKS}/") for image in moment.images]
    return BackupSummary(
        file=str(target),
        size=target.stat().st_size,
        disks=sum(kinds),
        snapshots=len(kinds) - sum(kinds),
        files=tree.count,
        unsteady=tuple(tree.unsteady),
        deleted=tuple(deleted),
    )


def _require_state(layout: DataDirectory) -> None:
    if layout.state.exists():
        return
    if (layout.directory / "pki").exists():
        raise BackupError(
            f"{layout.directory} has no {STATE}: the API server keeps its objects in etcd. Back them up with"
            f" `etcdctl snapshot save FILE`, and copy {layout.directory}/pki"
        )
    raise BackupError(f"no cluster in {layout.directory}")


def _describe(layout: DataDirectory, *, disks: bool) -> BackupHeader:
    return BackupHeader(
        format=FORMAT,
        program=package_version(),
        created=clock.stamp(),
        directory=str(layout.directory),
        disks=disks,
        data_version=read_version(layout).version,
    )


def _add_shared(
    archive: ArchiveWriter, tree: TreeBackup, layout: DataDirectory, moment: _Moment
) -> list[str]:
    """Add the shared directories. Returns those that were deleted since the moment."""
    tree.add(str(layout.shared), SHARED, without=(".points", ".removed"))
    tree.add(str(layout.driver_shares), DRIVER_SHARES)
    deleted = []
    for name, content in moment.files.items():
        if not name.startswith(f"{POINTS}/"):
            continue
        try:
            point = msgspec.json.decode(content, type=AccessPoint)
        except ValueError:
            continue  # as damaged as the original
        path = f"{SHARED}/{point.file_system}/{point.path}"
        if path not in tree.directories:
            archive.add_directory(path, mode=point.mode, owner=point.uid, group=point.gid)
            deleted.append(path)
    return deleted


def _describe_error(error: OSError, target: Path) -> str:
    return f"{error.filename or target}: {error.strerror or error}"
