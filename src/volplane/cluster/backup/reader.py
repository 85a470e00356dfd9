"""Extract an archive into a new directory, and compare every member with the archive's list.

The archive may be damaged or forged. Each directory is opened from its parent, links are not followed, and
files are created, never opened.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from volplane.base import failpoint
from volplane.base.user_namespace import is_user_namespace
from volplane.cluster.backup.errors import BackupError
from volplane.cluster.backup.members import (
    DRIVER_SHARES,
    FORMAT,
    HEADER,
    MEMBERS,
    SHARED,
    XATTR,
    ArchiveMember,
    BackupHeader,
    MemberList,
    describe_member,
    encode_map,
    is_known_name,
)
from volplane.cluster.data_version import NEWEST
from volplane.host import files

CHUNK = 1 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TREES = (f"{SHARED}/", f"{DRIVER_SHARES}/")  # the only places with other members than regular files

T = TypeVar("T", bound=Struct)


class Extraction:
    def __init__(self, archive: int, directory: Path, report: Callable[[int, int], None]) -> None:
        """`report` gets the bytes done and in total."""
        self._archive, self._directory, self._report = archive, directory, report
        self._size = os.fstat(archive).st_size
        self._inner: list[tarfile.TarInfo] = []  # directories, which get their attributes at the end
        self.members: list[ArchiveMember] = []

    def run(self) -> BackupHeader:
        """Raises BackupError, tarfile.TarError, PathEscapesVolume, OSError."""
        listed: MemberList | None = None
        with open(self._archive, "rb", closefd=False) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            header = self._read_header(tar.next())
            while (member := tar.next()) is not None:
                if listed is not None:
                    raise tarfile.ReadError(f"it goes on after its end, with {member.name}")
                if member.name == MEMBERS:
                    listed = self._decode(member, MemberList)
                else:
                    self._extract(member)
                    failpoint.hit("restore:member")
                self._report(member.offset_data, self._size)
                tar.members = []  # type: ignore[attr-defined]  # it keeps every member
        if listed is None:
            raise tarfile.ReadError("its end is missing")
        self._compare(listed)
        for member in reversed(self._inner):
            with files.open_directory(str(self._directory), member.name) as directory:
                _apply_attributes(directory, member)
        return header

    def _read_header(self, member: tarfile.TarInfo | None) -> BackupHeader:
        if member is None or member.name != HEADER:
            raise tarfile.ReadError(f"it does not begin with {HEADER}")
        header = self._decode(member, BackupHeader)
        if header.format > FORMAT or header.data_version > NEWEST:
            raise BackupError(
                f"the backup was written by a newer version, Volplane {header.program} (format"
                f" {header.format}, files of version {header.data_version}; this one knows {FORMAT} and"
                f" {NEWEST}): restore it with that version"
            )
        return header

    def _decode(self, member: tarfile.TarInfo, kind: type[T]) -> T:
        data = b"".join(self._read(member.offset_data, member.size))
        if member.name == HEADER:
            self.members.append(describe_member(HEADER, len(data), hashlib.sha256(data).hexdigest()))
        try:
            return msgspec.json.decode(data, type=kind)
        except ValueError as error:
            raise tarfile.ReadError(f"{member.name} cannot be read: {error}") from error

    def _read(self, offset: int, length: int) -> Iterator[bytes]:
        while length > 0:
            data = os.pread(self._archive, min(CHUNK, length), offset)
            if not data:
                raise tarfile.ReadError("it is cut off")
            offset, length = offset + len(data), length - len(data)
            yield data

    # --- members

    def _extract(self, member: tarfile.TarInfo) -> None:
        name = member.name
        if not is_known_name(name) or not (member.isreg() or name.startswith(_TREES)):
            raise tarfile.ReadError(f"it contains {name!r}, which no backup has")
        with self._open_parent(name) as (parent, last):
            if member.isreg():
                self._extract_file(member, parent, last)
                return
            self.members.append(describe_member(name))
            if member.isdir():
                os.mkdir(last, 0o700, dir_fd=parent)
                self._inner.append(member)
            elif member.islnk():
                self._link(member, parent, last)
            else:
                _create_special(member, parent, last)

    @contextmanager
    def _open_parent(self, name: str) -> Iterator[tuple[int, str]]:
        parent, _, last = name.rpartition("/")
        top = parent.partition("/")[0]
        with suppress(FileExistsError):
            (self._directory / top).mkdir(0o700)
        with files.open_directory(str(self._directory), parent, make=True) as directory:
            yield directory, last

    def _extract_file(self, member: tarfile.TarInfo, parent: int, name: str) -> None:
        sparse: list[tuple[int, int]] | None = getattr(member, "sparse", None)
        digest = hashlib.sha256(encode_map(sparse) if sparse is not None else b"")
        source = member.offset_data
        target = os.open(name, _CREATE, 0o600, dir_fd=parent)
        try:
            os.ftruncate(target, member.size)
            for offset, length in sparse if sparse is not None else [(0, member.size)]:
                if offset < 0 or length < 0 or offset + length > member.size:
                    raise tarfile.ReadError(f"the map of {member.name} is damaged")
                for data in self._read(source, length):
                    digest.update(data)
                    _write(target, data, offset)
                    source, offset = source + len(data), offset + len(data)
                    self._report(source, self._size)
            _apply_attributes(target, member)
        finally:
            os.close(target)
        self.members.append(describe_member(member.name, member.size, digest.hexdigest()))

    def _link(self, member: tarfile.TarInfo, parent: int, name: str) -> None:
        if not is_known_name(member.linkname):
            raise tarfile.ReadError(f"{member.name} is a link out of it, to {member.linkname!r}")
        with self._open_parent(member.linkname) as (source, first):
            os.link(first, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)

    def _compare(self, listed: MemberList) -> None:
        if self.members == list(listed.members):
            return
        wanted = {member.name: member for member in listed.members}
        found = {member.name: member for member in self.members}
        name = next(
            (n for n in (*wanted, *found) if wanted.get(n) != found.get(n)), "the order of its members"
        )
        what = "is missing" if name not in found else "differs from its checksum"
        raise BackupError(f"the backup is damaged: {name} {what}. Nothing was restored")


def _write(descriptor: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        offset, left = offset + written, left[written:]


def _create_special(member: tarfile.TarInfo, parent: int, name: str) -> None:
    if member.issym():
        os.symlink(member.linkname, name, dir_fd=parent)
    elif member.isfifo() or member.ischr() or member.isblk():
        kind = stat.S_IFIFO if member.isfifo() else stat.S_IFCHR if member.ischr() else stat.S_IFBLK
        os.mknod(name, kind | 0o600, os.makedev(member.devmajor, member.devminor), dir_fd=parent)
        os.chmod(name, member.mode, dir_fd=parent)
    else:
        raise tarfile.ReadError(f"{member.name} is of an unknown type")
    with _tolerate_missing_ids():
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
    modified = _read_modification_time(member)
    os.utime(name, ns=(modified, modified), dir_fd=parent, follow_symlinks=False)


@contextmanager
def _tolerate_missing_ids() -> Iterator[None]:
    """A cluster without root may have fewer users than the original; its root owns the files of others."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL or not is_user_namespace():
            raise


def _apply_attributes(descriptor: int, member: tarfile.TarInfo) -> None:
    found = os.fstat(descriptor)
    if (found.st_uid, found.st_gid) != (member.uid, member.gid):
        with _tolerate_missing_ids():
            os.fchown(descriptor, member.uid, member.gid)
    os.fchmod(descriptor, member.mode)  # after the owner, whose change clears set-user-ID
    for key, value in member.pax_headers.items():
        if key.startswith(XATTR):
            os.setxattr(descriptor, key.removeprefix(XATTR), value.encode("utf-8", "surrogateescape"))
    modified = _read_modification_time(member)
    os.utime(descriptor, ns=(modified, modified))


def _read_modification_time(member: tarfile.TarInfo) -> int:
    """The time of the last change in nanoseconds; tarfile has it as a float, which loses some."""
    whole, _, rest = member.pax_headers.get("mtime", str(int(member.mtime))).partition(".")
    return int(whole) * 10**9 + int(rest.ljust(9, "0")[:9])
