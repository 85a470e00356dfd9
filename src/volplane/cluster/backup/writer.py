"""Write an archive: a tar file that GNU tar can read, sparse files included.

The file gets its name when it is complete and on disk. Until then it has no name at all, or, where the file
system cannot do that, a hidden one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.cluster.backup.errors import BackupError
from volplane.cluster.backup.members import (
    MEMBERS,
    XATTR,
    ArchiveMember,
    MemberList,
    describe_member,
    encode_map,
)
from volplane.host.copies import extents

CHUNK = 1 << 20
_UNNAMED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})
BytesWritten = Callable[[int], None]


class ChangedWhileRead(Exception):
    """The file became shorter while it was read."""


class ArchiveWriter:
    def __init__(self, descriptor: int, report: BytesWritten) -> None:
        """`report` is called with the number of bytes of each write."""
        self._file, self._report = descriptor, report
        self._members: list[ArchiveMember] = []

    def add_bytes(self, name: str, data: bytes, mode: int = 0o600) -> None:
        self._write(_header(name, len(data), mode=mode))
        self._write(data)
        self._end(name, len(data), hashlib.sha256(data))

    def add_file(self, name: str, source: int, *, is_unchanged: Callable[[], bool] = lambda: True) -> bool:
        """Add a regular file with its owner, mode and times; holes stay holes.

        If the file became shorter meanwhile, or `is_unchanged` is false at the end, nothing is added.
        """
        start, before = os.lseek(self._file, 0, os.SEEK_CUR), len(self._members)
        try:
            self._add_file(name, source, os.fstat(source))
            if is_unchanged():
                return True
        except ChangedWhileRead:
            pass
        self._report(start - os.lseek(self._file, 0, os.SEEK_CUR))
        os.lseek(self._file, start, os.SEEK_SET)
        os.ftruncate(self._file, start)
        del self._members[before:]
        return False

    def add_entry(
        self, name: str, attributes: os.stat_result, *, target: str = "", source: int | None = None
    ) -> None:
        """Add a directory, a link or a device: something without content. `target`: of a link; `source`: a
        descriptor of a directory, which may have extended attributes.
        """
        info = tarfile.TarInfo(name)
        info.type = _TYPES[stat.S_IFMT(attributes.st_mode)]
        info.linkname = target
        if info.type in (tarfile.CHRTYPE, tarfile.BLKTYPE):
            info.devmajor, info.devminor = os.major(attributes.st_rdev), os.minor(attributes.st_rdev)
        self._write(_encode(info, attributes, {} if source is None else _attributes(source)))
        self._members.append(describe_member(name))

    def add_directory(self, name: str, *, mode: int, owner: int, group: int) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, owner, group
        info.mtime = int(time.time())
        self._write(info.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape"))
        self._members.append(describe_member(name))

    def add_hard_link(self, name: str, first: str, attributes: os.stat_result) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.LNKTYPE, first
        self._write(_encode(info, attributes))
        self._members.append(describe_member(name))

    def finish(self) -> None:
        members = msgspec.json.encode(MemberList(tuple(self._members)))
        self._write(_header(MEMBERS, len(members)))
        self._write(members)
        self._write(bytes(-len(members) % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))

    def _add_file(self, name: str, source: int, found: os.stat_result) -> None:
        size = found.st_size
        segments = list(_find_segments(source, size)) if found.st_blocks * 512 < size else [(0, size)]
        is_sparse = segments != [(0, size)]
        stored = sum(length for _, length in segments)
        digest = hashlib.sha256()
        if is_sparse:
            table = encode_map(segments)
            digest.update(table)
            sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
            sparse |= {"GNU.sparse.name": name, "GNU.sparse.realsize": str(size)}
            info = tarfile.TarInfo(f"GNUSparseFile.0/{name}")
            info.size = len(table) + stored
            self._write(_encode(info, found, _attributes(source) | sparse))
            self._write(table)
        else:
            info = tarfile.TarInfo(name)
            info.size = size
            self._write(_encode(info, found, _attributes(source)))
        for offset, length in segments:
            for data in _read(source, offset, length):
                digest.update(data)
                self._write(data)
        self._end(name, stored, digest, size)

    def _end(self, name: str, stored: int, digest: hashlib._Hash, size: int = -1) -> None:
        self._write(bytes(-stored % tarfile.BLOCKSIZE))
        self._members.append(describe_member(name, stored if size < 0 else size, digest.hexdigest()))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:  # a disk that fills up takes a part first, and fails only at the next write
            left = left[os.write(self._file, left) :]
        self._report(len(data))


_TYPES = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


def is_archivable(mode: int) -> bool:
    """Whether a file of this type can be stored; a socket cannot."""
    return stat.S_ISREG(mode) or stat.S_IFMT(mode) in _TYPES


def _header(name: str, size: int, mode: int = 0o600) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, mode, int(time.time())
    return info.tobuf(tarfile.PAX_FORMAT)


def _encode(info: tarfile.TarInfo, found: os.stat_result, more: dict[str, str] | None = None) -> bytes:
    info.mode, info.uid, info.gid = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
    whole, rest = divmod(found.st_mtime_ns, 10**9)
    info.pax_headers = {"mtime": f"{whole}.{rest:09}", **(more or {})}
    return info.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")


def _attributes(source: int) -> dict[str, str]:
    """Extended attributes, access control lists among them, as GNU tar stores them."""
    found = {}
    with suppress(OSError):  # the file system has none
        for name in os.listxattr(source):
            value = os.getxattr(source, name)
            found[f"{XATTR}{name}"] = value.decode("utf-8", "surrogateescape")
    return found


def _find_segments(source: int, size: int) -> Iterator[tuple[int, int]]:
    for start, end in extents(source):
        if start >= size:
            return
        yield start, min(end, size) - start
    # A map that does not reach the end would lose the size, for programs that read only the map.
    yield size, 0


def _read(source: int, offset: int, length: int) -> Iterator[bytes]:
    while length:
        data = os.pread(source, min(CHUNK, length), offset)
        if not data:
            raise ChangedWhileRead
        offset, length = offset + len(data), length - len(data)
        yield data


class UnfinishedArchive(Struct):
    """The file of an archive that is being written."""

    descriptor: int
    partial: Path | None  # its hidden name, if it has one


@contextmanager
def create_archive(target: Path, report: BytesWritten) -> Iterator[ArchiveWriter]:
    """An archive that appears as `target` at the end of the block. Raises BackupError if that exists."""
    if target.exists():
        raise BackupError(f"{target} exists already: choose another name, or remove it first")
    unfinished = _open_unfinished(target)
    try:
        writer = ArchiveWriter(unfinished.descriptor, report)
        yield writer
        writer.finish()
        os.fsync(unfinished.descriptor)
        _publish(unfinished, target)
    finally:
        if unfinished.partial is not None:
            unfinished.partial.unlink(missing_ok=True)
        os.close(unfinished.descriptor)


def _open_unfinished(target: Path) -> UnfinishedArchive:
    try:
        return UnfinishedArchive(os.open(target.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), None)
    except OSError as error:
        if error.errno not in _UNNAMED or not target.parent.is_dir():
            raise BackupError(f"cannot write to {target.parent}: {error.strerror}") from error
    partial = target.with_name(f".{target.name}.partial")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BackupError(f"another backup is being written to {target}") from None
    os.ftruncate(descriptor, 0)  # of a backup that was killed
    return UnfinishedArchive(descriptor, partial)


def _publish(unfinished: UnfinishedArchive, target: Path) -> None:
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Not a rename: it would replace a file that was created meanwhile.
        source = unfinished.partial or f"/proc/self/fd/{unfinished.descriptor}"
        os.link(source, target.name, src_dir_fd=directory, dst_dir_fd=directory)  # follows the link in /proc
        os.fsync(directory)
    except FileExistsError:
        raise BackupError(f"{target} was created by another program meanwhile") from None
    finally:
        os.close(directory)
