"""Restored volumes and clones have the same files as their source, with everything but the data.

A driver that copies files loses modes, owners, links, extended attributes, holes or empty directories unless
it copies them on purpose. What the source's own file system does not keep is not compared.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from msgspec import Struct

from volplane.csi import v1
from volplane.testing.case import CaseBody, CaseTable, require
from volplane.testing.cases.snapshots_clones import snapshot, snapshot_source
from volplane.testing.socket_env import SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

TREE = "tree"  # the directory below the volume's root
SPARSE_SIZE = 32 << 20
NO_ID = 0xFFFFFFFF
OWNER, GROUP = 1234, 4321
MODIFIED = 1_000_000_000  # seconds since 1970
# A user, 1234, may read: entries of (tag, permissions, id) after the version.
_ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, permissions, id)
    for tag, permissions, id in ((1, 6, NO_ID), (2, 4, OWNER), (4, 4, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID))
)
_ATTRIBUTES = ("user.", "security.capability", "system.posix_acl_")
MOST_DIFFERENCES = 6  # shown in a reason


class FileAttributes(Struct, frozen=True):
    kind: str
    mode: str
    owner: str
    size: int
    target: str = ""  # of a symbolic link
    modified: int = 0  # seconds; of files only
    links: tuple[str, ...] = ()  # other names of the file
    xattrs: tuple[tuple[str, str], ...] = ()
    allocated: int = 0  # bytes


def write_tree(root: str) -> None:
    """Write one file of each sort; what the file system refuses is left out."""
    top = os.path.join(root, TREE)
    os.makedirs(os.path.join(top, "empty", "in empty"))
    for name in ("plain", "owned", "program", "shared", "name with spaces, ünïcode and\ttab"):
        with open(os.path.join(top, name), "wb") as file:
            file.write(name.encode() * 100)
    os.mkdir(os.path.join(top, "sticky"))
    with suppress(OSError):
        os.chown(os.path.join(top, "owned"), OWNER, GROUP)
    for name, mode in (("plain", 0o640), ("program", 0o4755), ("sticky", 0o1777)):
        with suppress(OSError):
            os.chmod(os.path.join(top, name), mode)
    with suppress(OSError):
        os.symlink("plain", os.path.join(top, "link"))
        os.symlink("nowhere/at all", os.path.join(top, "broken link"))
    with suppress(OSError):
        os.link(os.path.join(top, "plain"), os.path.join(top, "second name"))
    for name in ("plain", "sticky"):
        with suppress(OSError):
            os.setxattr(os.path.join(top, name), "user.volplane", b"kept")
    with suppress(OSError):
        os.setxattr(os.path.join(top, "shared"), "system.posix_acl_access", _ACL)
    with suppress(OSError):
        os.mkfifo(os.path.join(top, "pipe"))
    with open(os.path.join(top, "sparse"), "wb") as file:
        file.truncate(SPARSE_SIZE)
        os.pwrite(file.fileno(), b"data in the middle", SPARSE_SIZE // 2)
        os.fsync(file.fileno())
    for name in ("plain", "program", "sparse"):
        os.utime(os.path.join(top, name), (MODIFIED, MODIFIED))


def read_tree(root: str) -> dict[str, FileAttributes]:
    """The attributes of all files of the tree, by path."""
    top = os.path.join(root, TREE)
    found, names = dict[str, os.stat_result](), dict[int, list[str]]()
    for directory, directories, files in os.walk(top):
        for name in (*directories, *files):
            path = os.path.relpath(os.path.join(directory, name), top)
            found[path] = os.lstat(os.path.join(directory, name))
            names.setdefault(found[path].st_ino, []).append(path)
    return {
        path: read_attributes(os.path.join(top, path), sorted({*names[facts.st_ino]} - {path}))
        for path, facts in found.items()
    }


def read_attributes(path: str, links: Iterable[str] = ()) -> FileAttributes:
    facts = os.lstat(path)
    is_link = stat.S_ISLNK(facts.st_mode)
    xattrs: list[tuple[str, str]] = []
    with suppress(OSError):
        names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith(_ATTRIBUTES)]
        xattrs = [(name, repr(os.getxattr(path, name, follow_symlinks=False))) for name in sorted(names)]
    return FileAttributes(
        kind=stat.filemode(facts.st_mode)[0],
        mode="" if is_link else f"{stat.S_IMODE(facts.st_mode):04o}",
        owner=f"{facts.st_uid}:{facts.st_gid}",
        size=facts.st_size if stat.S_ISREG(facts.st_mode) else 0,
        target=os.readlink(path) if is_link else "",
        modified=int(facts.st_mtime) if stat.S_ISREG(facts.st_mode) else 0,
        links=tuple(links),
        xattrs=tuple(xattrs),
        allocated=facts.st_blocks * 512,
    )


def describe_differences(source: dict[str, FileAttributes], copy: dict[str, FileAttributes]) -> str:
    """What the copy has lost or changed; "" if nothing."""
    wrong = differences(source, copy)
    more = f" and {len(wrong) - MOST_DIFFERENCES} more" if len(wrong) > MOST_DIFFERENCES else ""
    return f"{'; '.join(wrong[:MOST_DIFFERENCES])}{more}"


def differences(source: dict[str, FileAttributes], copy: dict[str, FileAttributes]) -> list[str]:
    changes = []
    for path, was in sorted(source.items()):
        now = copy.get(path)
        if now is None:
            changes.append(f"{'directory ' if was.kind == 'd' else ''}{path!r} is missing")
            continue
        for field in ("kind", "mode", "owner", "size", "target", "modified", "links", "xattrs"):
            before, after = getattr(was, field), getattr(now, field)
            if before != after:
                changes.append(f"{path!r} has {field} {after or 'none'}, was {before or 'none'}")
        # Small files may be stored without a block, whatever is in them.
        was_sparse = was.size >= SPARSE_SIZE and was.allocated < was.size // 4
        if was_sparse and now.allocated > was.size * 3 // 4:
            changes.append(
                f"{path!r} is not sparse: {now.allocated} bytes are allocated, were {was.allocated}"
            )
    return changes + [f"{path!r} is new" for path in sorted(copy.keys() - source.keys())]


async def _source_of_snapshot(env: SocketEnv, volume: VolumeUnderTest) -> v1.VolumeContentSource:
    return snapshot_source(await snapshot(env, volume))


async def _source_of_clone(env: SocketEnv, volume: VolumeUnderTest) -> v1.VolumeContentSource:
    return v1.VolumeContentSource(volume={"volume_id": volume.id})


def _same_files(
    make_source: Callable[[SocketEnv, VolumeUnderTest], Awaitable[v1.VolumeContentSource]], where: str
) -> CaseBody:
    async def body(env: SocketEnv) -> None:
        env.require_writable()
        volume, node = await env.create_and_publish(), env.nodes[0]
        await env.host.call(write_tree, volume.target(node))
        source = await env.host.call(read_tree, volume.target(node))
        await volume.unpublish_unstage_detach(node)  # everything is written
        copy = await env.create_and_publish(source=await make_source(env, volume))
        wrong = describe_differences(source, await env.host.call(read_tree, copy.target(node)))
        require(not wrong, f"in {where}: {wrong}")

    return body


case.add(
    "snapshot/files and their attributes",
    "CreateVolume",
    "A restored volume has all files of the snapshot: names, modes, owners, times, links, extended"
    " attributes, holes, pipes and empty directories.",
    _same_files(_source_of_snapshot, "a volume restored from a snapshot"),
    "snapshot",
    "create",
)
case.add(
    "clone/files and their attributes",
    "CreateVolume",
    "A clone has all files of its source: names, modes, owners, times, links, extended attributes, holes,"
    " pipes and empty directories.",
    _same_files(_source_of_clone, "a clone"),
    "clone",
    "create",
)
