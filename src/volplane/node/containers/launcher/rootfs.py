"""The root file system of a container: an overlay over the machine's root, with the container's volumes.

Two rules keep volumes of other pods free. The container's mount namespace is a copy of an almost empty one,
made once when the launcher starts, so it never holds a mount of another container, not even for a moment.
And volumes are copies of mounts taken in the machine's namespace: a copy stays in the peer group of its
source, so that a driver's mounts below a `rshared` directory appear on the machine.

Between the machine's root and the container's writable layer is a third layer, also made once: the cover,
which hides the data directory, temporary files, and the machine's secrets.

Not every machine has a device cgroup, so mount flags keep a container from the machine's disks: its root and
its volumes are `nodev`. Only /dev has devices, and it is read-only for a container with CAP_MKNOD. Mounts
that propagate into a volume later have the machine's flags, which allow devices; so a container with
CAP_MKNOD gets no volume with mount propagation.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from . import kernel, paths
from .accounts import GROUP, PASSWD, make_account_files
from .failures import (
    MOUNT,
    NOT_NAMESPACED,
    NOT_PRIVATE,
    NOT_SHARED,
    ON_PROC,
    SYSCTL,
    SetupFailure,
    SetupProgress,
)
from .spec import Spec, mounts_of

# Directories of the empty namespace to mount on: both exist in every root, and nothing is mounted on them
# there.
WORK, COVER = "/proc", "/sys"
# System directories that may be mounts of their own. Only these are taken over: any other mount may be a
# volume, and holding it here would keep its disk busy.
SYSTEM = (
    "/bin", "/sbin", "/lib", "/lib64", "/usr", "/usr/local", "/opt", "/etc", "/etc/hosts", "/etc/resolv.conf",
    "/home", "/root", "/var", "/nix", "/nix/store",
)  # fmt: skip
# Where this is a link to a file in /run, containers see a copy of the file instead: their /run is empty.
RESOLV_CONF = "/etc/resolv.conf"
SHELL_DIRECTORY, SHELL_NAME = "/bin", "sh"
_EMPTY_IN_CONTAINER = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/run": 0o755}
# Keys, passwords and users' files: a container sees an empty file or directory instead, or nothing.
SECRETS = (
    "/root", "/home",
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd",
    "/etc/sudoers", "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/pki/tls/private",
    "/etc/letsencrypt", "/etc/krb5.keytab", "/etc/wireguard", "/etc/NetworkManager/system-connections",
    "/etc/kubernetes", "/etc/rancher", "/etc/cni/net.d", "/etc/docker", "/etc/containerd",
    "/var/lib/kubelet", "/var/lib/etcd", "/var/lib/rancher", "/var/lib/docker", "/var/lib/containerd",
    "/var/backups", "/var/spool/cron", "/var/lib/systemd/credential.secret", "/etc/credstore",
)  # fmt: skip

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
SAFE_MOUNT_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_READONLY_PROC = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_IPC_SYSCTLS = tuple(
    f"kernel/{name}"
    for name in ("msgmax", "msgmnb", "msgmni", "sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced")
)
# The same as containerd hides.
_HIDDEN_PROC = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
)  # fmt: skip
_HIDDEN_SYS = ("/sys/devices/virtual/powercap", "/sys/firmware")


class MountHandles:
    """Descriptors of mounts that every container has, opened before a volume can cover them."""

    def __init__(self, layers: list[int]) -> None:
        self.layers, self.proc, self.dev = layers, -1, -1
        self.empty = -1  # a read-only, empty tmpfs, mounted over directories that are hidden

    def close(self) -> None:
        for descriptor in (*self.layers, self.proc, self.dev, self.empty):
            if descriptor >= 0:
                os.close(descriptor)


class Cover:
    """A layer between the machine's root and a container's writable layer; it hides files of the machine."""

    def __init__(self, directory: str, layers: list[str], exposed: list[str]) -> None:
        self.directory = directory  # a subdirectory for each layer, by number
        self.layers = layers  # directories with an overlay of their own: "/", and mounts of SYSTEM
        self.exposed = exposed  # directories inside hidden ones that containers see nevertheless, read-only


class RootLayout:
    """The namespace to copy, and the covers with and without the machine's secrets."""

    def __init__(self, namespace: int, with_secrets: Cover | None, without: Cover | None) -> None:
        self.namespace = namespace
        self._with_secrets, self._without = with_secrets, without

    def cover(self, *, secrets: bool) -> Cover:
        cover = self._with_secrets if secrets else self._without
        assert cover is not None  # without a layout, no container is started
        return cover

    needs_spec = False  # a root can be built only when the container is known

    def build(
        self, *, privileged: bool, secrets: bool, masked: bool, targets: Sequence[str] = ()
    ) -> MountHandles:
        """Build a container's root, with /proc and /dev, in a copy of the namespace, and pivot into it.

        The caller is in the container's pid namespace. `targets`: where volumes will be mounted.
        """
        handles = MountHandles(build_root(self.cover(secrets=secrets), nodev=not privileged))
        mount_proc_and_dev(handles, privileged=privileged, masked=masked)
        return handles

    def mount_sys(self, handles: MountHandles, *, privileged: bool, masked: bool) -> None:
        """Mount /sys. The caller is in the container's network namespace, whose interfaces /sys shows."""
        flags = SAFE_MOUNT_FLAGS | (0 if privileged else kernel.MS_RDONLY)
        kernel.mount("sysfs", "/sys", "sysfs", flags)
        if masked and not privileged:
            mask_sys(handles)


class CoverFile:
    """A file that containers see instead of the machine's, or of none."""

    def __init__(self, content: bytes, mode: int = 0o644) -> None:
        self.content, self.mode = content, mode


def read_cover_files(shell: str) -> dict[str, CoverFile]:
    """The files by their paths. `shell`: a program of this machine that becomes /bin/sh, or ""."""
    accounts = make_account_files(_read_file(PASSWD), _read_file(GROUP))
    found = {path: CoverFile(content) for path, content in accounts.items()}
    if os.path.islink(RESOLV_CONF):
        found[RESOLV_CONF] = CoverFile(_read_file(RESOLV_CONF))
    if shell:
        path = f"{os.path.realpath(SHELL_DIRECTORY)}/{SHELL_NAME}"
        with open(shell, "rb") as file:
            found[path] = CoverFile(file.read(), 0o755)
    return found


def prepare_layout(hidden: Sequence[str], exposed: Sequence[str], shell: str = "") -> RootLayout:
    """Make the almost empty namespace, and return to the machine's.

    No container sees `hidden`; all see `exposed`, even inside a directory that is covered. `shell`: see
    `read_cover_files`.
    """
    files = read_cover_files(shell)
    me = os.open("/proc/self", os.O_PATH | os.O_CLOEXEC)  # /proc cannot be reached in between
    home = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=me)
    system = [path for path in SYSTEM if os.path.ismount(path)]
    trees = {path: kernel.copy_tree(path, recursive=False) for path in ["/", *system]}
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        for path, tree in trees.items():
            kernel.change_mount("", tree=tree, propagation=kernel.MS_PRIVATE)
            kernel.attach_tree(tree, WORK + path)
        pivot_into(WORK)
        kernel.mount("tmpfs", COVER, "tmpfs", data="mode=755")
        empty = {**dict.fromkeys(hidden), **_EMPTY_IN_CONTAINER}
        secrets = {**{os.path.realpath(path): None for path in SECRETS}, **empty}
        layout = RootLayout(
            os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=me),
            _make_cover("with-secrets", system, empty, exposed, files),
            _make_cover("without", system, secrets, exposed, files),
        )
        kernel.change_mount(COVER, readonly=True)
        return layout
    finally:
        kernel.setns(home, kernel.CLONE_NEWNS)
        for descriptor in (me, home, *trees.values()):
            os.close(descriptor)


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it does not exist, or is a link that leads nowhere
        return b""


def _make_cover(
    name: str,
    system: Sequence[str],
    hidden: dict[str, int | None],
    exposed: Sequence[str],
    files: dict[str, CoverFile],
) -> Cover:
    outermost = select_outermost(hidden)
    layers = ["/", *(path for path in system if not is_inside(path, outermost))]
    directory = f"{COVER}/{name}"
    for number in range(len(layers)):
        os.makedirs(f"{directory}/{number}")
    cover = Cover(directory, layers, [])
    for path in outermost:
        _hide(cover, path, hidden[path])
    for path in select_outermost(dict.fromkeys(exposed)):
        if is_inside(path, outermost) and path not in outermost and os.path.isdir(path):
            _make_parents(cover, path)
            os.makedirs(_path_in_cover(cover, path), exist_ok=True)
            cover.exposed.append(path)
    for path, covering in files.items():
        _make_parents(cover, path)
        write_cover_file(_path_in_cover(cover, path), covering)
    return cover


def write_cover_file(path: str, covering: CoverFile) -> None:
    with open(path, "wb") as file:
        file.write(covering.content)
    os.chmod(path, covering.mode)


def select_outermost(paths: dict[str, int | None]) -> list[str]:
    """The paths that are not inside another one."""
    chosen: list[str] = []
    for path in sorted(paths):
        if not is_inside(path, chosen):
            chosen.append(path)
    return chosen


def is_inside(path: str, others: Sequence[str]) -> bool:
    return any(path == other or path.startswith(other + "/") for other in others)


def _path_in_cover(cover: Cover, path: str) -> str:
    """Where the path is in the cover."""
    layer = max((p for p in cover.layers if p == "/" or path.startswith(p + "/")), key=len)
    return f"{cover.directory}/{cover.layers.index(layer)}{path.removeprefix(layer.rstrip('/'))}"


def _make_parents(cover: Cover, path: str) -> None:
    """Create the parent directories in the cover, with the machine's modes."""
    outer = os.path.dirname(path)
    target = _path_in_cover(cover, outer) if outer not in cover.layers else ""
    if target and not os.path.isdir(target):
        _make_parents(cover, outer)
        os.mkdir(target)
        _copy_mode(outer, target)


def _copy_mode(source: str, target: str) -> None:
    info = os.stat(source)
    os.chown(target, info.st_uid, info.st_gid)
    os.chmod(target, stat.S_IMODE(info.st_mode))


def _hide(cover: Cover, path: str, mode: int | None) -> None:
    """Cover a path by something empty; a path that does not exist yet stays hidden when it is created."""
    if os.path.realpath(path) != path:
        return  # only a link to somewhere else
    while not os.path.isdir(os.path.dirname(path)):
        path = os.path.dirname(path)  # if the parent is created later, all of it stays hidden
    _make_parents(cover, path)
    target = _path_in_cover(cover, path)
    if os.path.lexists(target):
        return
    if os.path.isdir(path):
        os.mkdir(target)
        _copy_mode(path, target)
        # Everyone may pass through: it is empty, but a path inside may be mounted for a program.
        os.chmod(target, stat.S_IMODE(os.stat(target).st_mode) | 0o111)
        os.setxattr(target, "trusted.overlay.opaque", b"y")
    elif os.path.exists(path):
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        _copy_mode(path, target)
    else:
        os.mknod(target, stat.S_IFCHR, 0)  # a whiteout: in an overlay the file does not exist
        return
    if mode is not None:
        os.chmod(target, mode)


def copy_sources(spec: Spec) -> list[int]:
    """Copies of all mount sources, in the order of `mounts_of`. Call it in the machine's namespace."""
    return [_copy_source(mount) for mount in mounts_of(spec)]


def _copy_source(mount: Spec) -> int:
    try:
        return kernel.copy_tree(mount["source"], recursive="device" not in mount)
    except OSError as error:
        text = f"cannot mount {mount['source']} at {mount['target']}: {error.strerror}"
        raise OSError(error.errno, text) from error


def build_root(cover: Cover, *, nodev: bool) -> list[int]:
    """Build the container's root in the copy of the empty namespace and pivot into it.

    Return descriptors of its mounts: by them they can be changed whatever is mounted over them.
    """
    kernel.mount("tmpfs", WORK, "tmpfs", data="mode=755")
    root = f"{WORK}/root"
    os.mkdir(root)
    for number, path in enumerate(cover.layers):
        _overlay(path, f"{cover.directory}/{number}", f"{WORK}/{number}", root, nodev=nodev)
    for path in cover.exposed:
        _expose(path, root + path)
    pivot_into(root)
    return [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in cover.layers]


def _overlay(path: str, cover: str, base: str, root: str, *, nodev: bool) -> None:
    if not os.path.isdir(path):
        return _expose(path, root + path)
    os.mkdir(base)
    os.mkdir(f"{base}/upper")
    os.mkdir(f"{base}/work")
    data = f"lowerdir={cover}:{path},upperdir={base}/upper,workdir={base}/work"
    kernel.mount("overlay", root + path, "overlay", kernel.MS_NODEV if nodev else 0, data)


def _expose(path: str, target: str) -> None:
    tree = kernel.copy_tree(path, recursive=False)
    kernel.change_mount("", tree=tree, readonly=True)
    kernel.attach_tree(tree, target)
    os.close(tree)


def pivot_into(root: str) -> None:
    os.chdir(root)
    kernel.pivot_root(".", ".")  # now the old root is mounted on top of the new one
    kernel.umount(".")
    os.chdir("/")


def mount_proc_and_dev(handles: MountHandles, *, privileged: bool, masked: bool = True) -> None:
    kernel.mount("proc", "/proc", "proc", SAFE_MOUNT_FLAGS)
    handles.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if not privileged:  # privileged containers get the machine's /dev as a volume
        _make_dev()
        handles.dev = os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        guard_proc(handles, masked=masked)


def mask_sys(handles: MountHandles) -> None:
    _mask(_HIDDEN_SYS, handles)


def make_readonly(handles: MountHandles) -> None:
    """Make the root read-only, but not the volumes in it."""
    for layer in handles.layers:
        kernel.change_mount("", tree=layer, readonly=True)


def make_dev_readonly(handles: MountHandles) -> None:
    """Keep the container from creating device nodes in /dev, where they would work.

    Existing nodes still do.
    """
    kernel.change_mount("", tree=handles.dev, readonly=True)


def set_sysctls(spec: Spec, progress: SetupProgress) -> None:
    """Set sysctls of the container's own namespaces; any other one would change the machine and is refused.

    /proc/sys is read-only in the container, so a second, detached proc is used.
    """
    if not spec["sysctls"]:
        return
    progress.reach(SYSCTL)
    own = kernel.mount_detached("proc")
    try:
        for index, (name, value) in enumerate(spec["sysctls"].items()):
            progress.reach(SYSCTL, index)
            path = name if "/" in name else name.replace(".", "/")
            if not _is_namespaced(spec, path):
                raise SetupFailure(NOT_NAMESPACED)
            resolve = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS
            file = kernel.open_at(own, f"sys/{path}", os.O_WRONLY | os.O_NONBLOCK, resolve)
            try:
                os.write(file, value.encode())
            finally:
                os.close(file)
    finally:
        os.close(own)


def _is_namespaced(spec: Spec, path: str) -> bool:
    if not set(path.split("/")).isdisjoint(("", ".", "..")):
        return False
    if path.startswith("net/"):
        return bool(spec["network"])
    return not spec["host_ipc"] and (path in _IPC_SYSCTLS or path.startswith("fs/mqueue/"))


def mount_volumes(
    spec: Spec, trees: list[int], handles: MountHandles, progress: SetupProgress, *, private: bool = False
) -> None:
    """Mount all volumes. `private`: refuse volumes that follow the machine's mounts."""
    mounts = mounts_of(spec)
    numbers = []
    for index, (mount, tree) in enumerate(zip(mounts, trees, strict=True)):
        progress.reach(MOUNT, index)
        numbers.append(_mount_volume(mount, tree, nodev=not spec["privileged"]))
    table = _read_mount_table(handles.proc, set(numbers)) if mounts else _MountTable(set(), set())
    for index, (mount, tree, number) in enumerate(zip(mounts, trees, numbers, strict=True)):
        progress.reach(MOUNT, index)
        _set_propagation(mount, tree, number, table, private=private)
        os.close(tree)


def _make_dev() -> None:
    kernel.mount("tmpfs", "/dev", "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=755,size=64k")
    for name, (major, minor) in DEVICES.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)  # mknod applies our umask
    link_dev()
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    kernel.mount("shm", "/dev/shm", "tmpfs", SAFE_MOUNT_FLAGS, "mode=1777,size=64m")


def link_dev() -> None:
    """Create the links and directories of a new /dev."""
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts")
    os.mkdir("/dev/shm")


def guard_proc(handles: MountHandles, *, masked: bool) -> None:
    """Make the machine's settings in /proc read-only, and hide some files.

    They are read-only even with procMount Unmasked: without a user namespace the container's root is the
    machine's, and could set the program that the kernel runs for a crash (core_pattern).
    """
    for path in _READONLY_PROC:
        _bind(path, path, readonly=True)
    if masked:
        _mask(_HIDDEN_PROC, handles)


def _mask(paths: Sequence[str], handles: MountHandles) -> None:
    """Hide files and directories. All directories of a container share one tmpfs."""
    for path in paths:
        if not os.path.isdir(path):
            _bind("/dev/null", path)
        elif handles.empty < 0:
            kernel.mount("tmpfs", path, "tmpfs", SAFE_MOUNT_FLAGS | kernel.MS_RDONLY, "size=0")
            handles.empty = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            tree = kernel.copy_mount(handles.empty)
            kernel.attach_tree(tree, path)
            os.close(tree)


def _bind(source: str, target: str, *, readonly: bool = False) -> None:
    if not os.path.exists(target):
        return
    tree = kernel.copy_tree(source, recursive=False)
    if readonly:
        kernel.change_mount("", tree=tree, readonly=True)
    kernel.attach_tree(tree, target)
    os.close(tree)


def _mount_volume(mount: Spec, tree: int, *, nodev: bool) -> int:
    """Mount one volume, for now as a slave of the machine's mount, and return the mount's id."""
    if mount.get("readonly"):
        kernel.change_mount("", tree=tree, readonly=True, recursive=bool(mount.get("recursive")))
    kernel.change_mount(
        "",
        tree=tree,
        nodev=nodev and "device" not in mount,
        propagation=0 if mount.get("propagation") == "rshared" else kernel.MS_SLAVE,
        recursive=True,
    )
    mode, number = kernel.inspect(tree)
    target = paths.open_or_create(mount["target"], directory=stat.S_ISDIR(mode))
    try:
        if kernel.filesystem_magic(target) == kernel.PROC_MAGIC:
            raise SetupFailure(ON_PROC)
        kernel.attach_tree_at(tree, target)
    finally:
        os.close(target)
    return number


def rehearse_mount(handles: MountHandles) -> None:
    """Run the code of `mount_volumes` without mounting anything."""
    target = paths.open_or_create("/", directory=True)
    kernel.inspect(target)
    kernel.filesystem_magic(target)
    os.close(target)
    table = _read_mount_table(handles.proc, set())
    with suppress(OSError):
        _set_propagation({}, -1, -1, table, private=False)
    with suppress(OSError):
        kernel.attach_tree_at(-1, -1)


class _MountTable:
    """Which volumes are shared, and which mounts have others below them, by mount id."""

    def __init__(self, shared: set[int], parents: set[int]) -> None:
        self.shared = shared
        self.parents = parents  # mounts below which others are that are not volumes of the container


def _read_mount_table(proc: int, volumes: set[int]) -> _MountTable:
    table = _MountTable(set(), set())
    for line in _read(proc, "self/mountinfo").splitlines():
        mount, parent, rest = line.split(b" ", 2)
        if int(mount) not in volumes:
            table.parents.add(int(parent))
        elif b" shared:" in rest.partition(b" - ")[0]:
            table.shared.add(int(mount))
    return table


def _set_propagation(mount: Spec, tree: int, number: int, table: _MountTable, *, private: bool) -> None:
    propagation = mount.get("propagation", "private")
    if propagation == "rshared" and number not in table.shared:
        raise SetupFailure(NOT_SHARED)
    # A volume that contains other mounts stays a slave of the machine's: if it were private, it would keep
    # them mounted, and their disks busy, after the machine has unmounted them.
    if propagation == "private" and number not in table.parents:
        kernel.change_mount("", tree=tree, propagation=kernel.MS_PRIVATE)
    elif private:
        raise SetupFailure(NOT_PRIVATE)


def _read(directory: int, path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), "rb", buffering=0) as file:
        return file.read()
