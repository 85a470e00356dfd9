"""The file system a container sees: the machine's own root below a layer of its own, and its volumes in it.

Two rules keep other people's volumes free. The container's mount namespace is a copy of an almost empty one,
made once when the launcher starts, so it never holds a mount of another container, not even for a moment. And
the volumes come in as copies taken in the machine's namespace: a copy stays a peer of its source, so that a
driver's mounts below a `rshared` directory appear on the machine.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from . import kernel

Spec = dict[str, Any]

WORK = "/proc"  # exists in every root, and nothing is mounted on it in the empty namespace
# Parts of the system that some machines keep on file systems of their own. Only these: any other mount may be
# a volume of somebody's, and holding it here would keep its disk busy.
SYSTEM = (
    "/bin", "/sbin", "/lib", "/lib64", "/usr", "/usr/local", "/opt", "/etc", "/etc/hosts", "/etc/resolv.conf",
    "/home", "/root", "/var", "/nix", "/nix/store",
)  # fmt: skip
_EMPTY_IN_CONTAINER = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/run": 0o755}

_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_SAFE = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_READONLY_PROC = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_HIDDEN_PROC = ("/proc/kcore", "/proc/keys", "/proc/timer_list")


class Layout:
    """What `prepare` found: the namespace to copy, and which parts of the system are mounts of their own."""

    def __init__(self, namespace: int, system: list[str]) -> None:
        self.namespace = namespace
        self.system = system


def prepare() -> Layout:
    """Make the almost empty namespace, and come back to the machine's."""
    me = os.open("/proc/self", os.O_PATH | os.O_CLOEXEC)  # /proc is out of reach in between
    home = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=me)
    system = [path for path in SYSTEM if os.path.ismount(path)]
    trees = {path: kernel.copy_tree(path, recursive=False) for path in ["/", *system]}
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        for path, tree in trees.items():
            kernel.change_mount("", tree=tree, propagation=kernel.MS_PRIVATE)
            kernel.attach_tree(tree, WORK + path)
        _enter(WORK)
        return Layout(os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=me), system)
    finally:
        kernel.setns(home, kernel.CLONE_NEWNS)
        for descriptor in (me, home, *trees.values()):
            os.close(descriptor)


def copy_sources(spec: Spec) -> list[int]:
    """Copies of all that will be mounted, in the order of `_mounts`; taken in the machine's namespace."""
    return [_copy(mount) for mount in _mounts(spec)]


def _mounts(spec: Spec) -> list[Spec]:
    """Outer ones first."""
    devices = [{**device, "device": True} for device in spec["devices"]]
    own = [{"source": "/dev", "target": "/dev", "propagation": "rslave"}] if spec["privileged"] else []
    return own + sorted([*devices, *spec["mounts"]], key=lambda mount: str(mount["target"]))


def _copy(mount: Spec) -> int:
    try:
        return kernel.copy_tree(mount["source"], recursive="device" not in mount)
    except OSError as error:
        text = f"cannot mount {mount['source']} at {mount['target']}: {error.strerror}"
        raise OSError(error.errno, text) from error


def build(layout: Layout, cover: list[str]) -> None:
    """Go from the empty namespace's copy into a root of our own: nothing of the old one remains."""
    kernel.mount("tmpfs", WORK, "tmpfs", data="mode=755")
    layers = {path: f"{WORK}/{number}" for number, path in enumerate(["/", *layout.system])}
    for base in layers.values():
        for part in ("upper", "work"):
            os.makedirs(f"{base}/{part}")
    for path, mode in _outermost({**dict.fromkeys(cover, 0o755), **_EMPTY_IN_CONTAINER}):
        _hide(layers, path, mode)
    root = f"{WORK}/root"
    os.mkdir(root)
    for path, base in layers.items():
        _overlay(path, base, root)
    _enter(root)


def _overlay(path: str, base: str, root: str) -> None:
    if os.path.isdir(path):
        data = f"lowerdir={path},upperdir={base}/upper,workdir={base}/work"
        kernel.mount("overlay", root + path, "overlay", data=data)
    else:
        tree = kernel.copy_tree(path, recursive=False)
        kernel.change_mount("", tree=tree, readonly=True)
        kernel.attach_tree(tree, root + path)
        os.close(tree)


def _outermost(paths: dict[str, int]) -> list[tuple[str, int]]:
    """Without those that lie inside another one."""
    chosen: list[tuple[str, int]] = []
    for path in sorted(paths):
        if not any(path == other or path.startswith(other + "/") for other, _ in chosen):
            chosen.append((path, paths[path]))
    return chosen


def _hide(layers: dict[str, str], path: str, mode: int) -> None:
    """Let an empty directory of our layer take the place of the machine's."""
    if os.path.realpath(path) != path or not os.path.isdir(path):
        return  # not there, or only a link to somewhere else
    layer = max((p for p in layers if p == "/" or path.startswith(p + "/")), key=len)
    lower, upper = layer.rstrip("/"), f"{layers[layer]}/upper"
    for name in path[len(lower) + 1 :].split("/"):
        lower, upper = f"{lower}/{name}", f"{upper}/{name}"
        if not os.path.isdir(upper):
            os.mkdir(upper)
            info = os.stat(lower)
            os.chown(upper, info.st_uid, info.st_gid)
            os.chmod(upper, stat.S_IMODE(info.st_mode))
    os.chmod(upper, mode)
    os.setxattr(upper, "trusted.overlay.opaque", b"y")


def _enter(root: str) -> None:
    os.chdir(root)
    kernel.pivot_root(".", ".")  # the old root now lies on top of the new one
    kernel.umount(".")
    os.chdir("/")


def furnish(*, privileged: bool) -> None:
    """What every container has. The caller is inside the container's pid namespace."""
    kernel.mount("proc", "/proc", "proc", _SAFE)
    kernel.mount("sysfs", "/sys", "sysfs", _SAFE | (0 if privileged else kernel.MS_RDONLY))
    if not privileged:  # those get the machine's /dev as a volume
        _make_dev()
        _guard_proc()


def renew_sys() -> None:
    """It shows the interfaces of the network in which it was mounted."""
    kernel.umount("/sys")
    kernel.mount("sysfs", "/sys", "sysfs", _SAFE | kernel.MS_RDONLY)


def place_volumes(spec: Spec, trees: list[int]) -> None:
    for mount, tree in zip(_mounts(spec), trees, strict=True):
        _place(mount, tree)
        os.close(tree)


def _make_dev() -> None:
    kernel.mount("tmpfs", "/dev", "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=755,size=64k")
    for name, (major, minor) in _NODES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)  # for every user of the container, whatever our umask
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts")
    os.mkdir("/dev/shm")
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    kernel.mount("shm", "/dev/shm", "tmpfs", _SAFE, "mode=1777,size=64m")


def _guard_proc() -> None:
    """Settings of the whole machine are not a container's to change."""
    for path in _READONLY_PROC:
        _bind(path, path, readonly=True)
    for path in _HIDDEN_PROC:
        _bind("/dev/null", path)


def _bind(source: str, target: str, *, readonly: bool = False) -> None:
    if not os.path.exists(target):
        return
    tree = kernel.copy_tree(source, recursive=False)
    if readonly:
        kernel.change_mount("", tree=tree, readonly=True)
    kernel.attach_tree(tree, target)
    os.close(tree)


def _place(mount: Spec, tree: int) -> None:
    target, propagation = mount["target"], mount.get("propagation", "private")
    if mount.get("readonly"):
        kernel.change_mount("", tree=tree, readonly=True, recursive=bool(mount.get("recursive")))
    if propagation != "rshared":
        kernel.change_mount("", tree=tree, propagation=kernel.MS_SLAVE, recursive=True)
    _make_target(target, directory=stat.S_ISDIR(os.fstat(tree).st_mode))
    kernel.attach_tree(tree, target)
    below = _mounts_at(target)
    if propagation == "rshared" and "shared:" not in below[0]:
        raise OSError(f"{mount['source']} is not on a shared mount, so mounts cannot propagate from {target}")
    # A tree that brought other mounts along stays a follower of the machine's: were it private, it would keep
    # a volume mounted, and its disk busy, after the machine has unmounted it.
    if propagation == "private" and len(below) == 1:
        kernel.change_mount(target, propagation=kernel.MS_PRIVATE)


def _make_target(target: str, *, directory: bool) -> None:
    if os.path.lexists(target):
        return
    os.makedirs(target if directory else os.path.dirname(target), mode=0o755, exist_ok=True)
    if not directory:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _mounts_at(target: str) -> list[str]:
    """The lines of our own mount table for the newest mount at `target`, and for those below it."""
    path = os.path.realpath(target)
    for letter in "\\ \t\n":
        path = path.replace(letter, f"\\{ord(letter):03o}")
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        lines = [(line.split(" ", 5)[4], line) for line in file]
    at = [line for place, line in lines if place == path][-1:]
    return at + [line for place, line in lines if place.startswith(path.rstrip("/") + "/")]
