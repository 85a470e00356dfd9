"""Atomic updates of a set of files: readers see the old set or the new one, never a mixture.

The files are in a directory of their own, `..data` is a symlink to it, and every visible name is a symlink
through `..data`. One rename of that symlink switches all files. Programs in containers watch `..data` with
inotify, so these names are part of the contract. Blocking: plugins call it in a thread.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from volplane.base import clock
from volplane.host.ownership import change_owner

DATA_LINK = "..data"
TEMPORARY_LINK = "..data_tmp"


class VolumeFile(Struct, frozen=True):
    data: bytes
    mode: int = 0o644
    owner: int | None = None  # user id; None leaves it to root


class InvalidVolumePath(ValueError):
    """A path that leaves the volume, or collides with the writer's own names."""


def validate_path(path: str) -> str:
    parts = path.split("/")
    if not path or len(path) > 4096 or path.startswith("/") or any(len(p) > 255 for p in parts):
        raise InvalidVolumePath(f"invalid path: {path!r}")
    if ".." in parts or path.startswith(".."):
        raise InvalidVolumePath(f"invalid path: must not contain or start with '..': {path!r}")
    return os.path.normpath(path)


def write_files(directory: str, files: Mapping[str, VolumeFile], *, group: int | None = None) -> bool:
    """Make `directory` show exactly `files`; False if it did already."""
    wanted = {validate_path(path): file for path, file in files.items()}
    current = _current(directory)
    if current is not None and _same(current, wanted, group):
        _link_names(directory, wanted, group)  # a crash may have come between the rename and the links
        return False
    fresh = _fresh_directory(directory)
    for path, file in wanted.items():
        _write_file(os.path.join(fresh, path), file, group)
    _own(fresh, group)
    _switch(directory, os.path.basename(fresh), group)
    _link_names(directory, wanted, group)
    _drop_names(directory, wanted)
    _drop_generations(directory, keep=os.path.basename(fresh))
    return True


def _current(directory: str) -> str | None:
    with suppress(OSError):
        return os.path.join(directory, os.readlink(os.path.join(directory, DATA_LINK)))
    return None


def _same(current: str, wanted: Mapping[str, VolumeFile], group: int | None) -> bool:
    if set(_walk(current)) != set(wanted):
        return False
    return all(_matches(os.path.join(current, path), file, group) for path, file in wanted.items())


def _walk(root: str) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        yield from (os.path.relpath(os.path.join(directory, name), root) for name in names)


def _matches(path: str, file: VolumeFile, group: int | None) -> bool:
    try:
        found = os.stat(path)
        with open(path, "rb") as opened:
            data = opened.read()
    except OSError:
        return False
    owned = file.owner in (None, found.st_uid) and group in (None, found.st_gid)
    return owned and data == file.data and found.st_mode & 0o7777 == _mode(file, group)


def _fresh_directory(directory: str) -> str:
    moment = clock.wall().strftime("%Y_%m_%d_%H_%M_%S")
    fresh = os.path.join(directory, f"..{moment}.{secrets.randbelow(10**9):09d}")
    os.mkdir(fresh)
    os.chmod(fresh, 0o755)  # independent of the umask
    return fresh


def make_directories(path: str) -> None:
    """Like os.makedirs, with modes that do not depend on the umask."""
    if not os.path.isdir(path):
        make_directories(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, 0o755)


def _write_file(path: str, file: VolumeFile, group: int | None) -> None:
    make_directories(os.path.dirname(path))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(file.data)
        if file.owner is not None or group is not None:
            change_owner(descriptor, -1 if file.owner is None else file.owner, -1 if group is None else group)
        os.fchmod(descriptor, _mode(file, group))


def _mode(file: VolumeFile, group: int | None) -> int:
    # A volume with an fsGroup is readable by that group, whatever mode the manifest has.
    return file.mode | (0o440 if group is not None else 0)


def _own(fresh: str, group: int | None) -> None:
    if group is None:
        return
    for directory, _, _ in os.walk(fresh):
        change_owner(directory, -1, group)
        os.chmod(directory, 0o755 | stat.S_ISGID)


def _switch(directory: str, fresh: str, group: int | None) -> None:
    temporary = os.path.join(directory, TEMPORARY_LINK)
    with suppress(FileNotFoundError):
        os.unlink(temporary)  # of before a crash
    _link(fresh, temporary, group)
    os.rename(temporary, os.path.join(directory, DATA_LINK))


def _tops(wanted: Mapping[str, VolumeFile]) -> set[str]:
    return {path.split("/", 1)[0] for path in wanted}


def _link_names(directory: str, wanted: Mapping[str, VolumeFile], group: int | None) -> None:
    for name in _tops(wanted):
        with suppress(FileExistsError):
            _link(os.path.join(DATA_LINK, name), os.path.join(directory, name), group)


def _link(target: str, path: str, group: int | None) -> None:
    os.symlink(target, path)
    if group is not None:
        change_owner(path, -1, group, follow_symlinks=False)


def _drop_names(directory: str, wanted: Mapping[str, VolumeFile]) -> None:
    tops = _tops(wanted)
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith("..") and entry.name not in tops and entry.is_symlink():
                os.unlink(entry.path)


_GENERATION = re.compile(r"\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+")


def _drop_generations(directory: str, *, keep: str) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name != keep and _GENERATION.fullmatch(entry.name):
                shutil.rmtree(entry.path, ignore_errors=True)
