"""The root file system of a container where root is only the root of a user namespace.

The kernel lets such a root do less. The machine's mounts stay together: no part of a tree of mounts can be
shown without the rest. So the container's root is a new file system, with an overlay over each directory of
the machine's root that has no mounts below it; the content of one that has is shown read-only. There are no
new devices, so the machine's are mounted one by one. A new /proc is allowed only where another one is seen
completely, so it is mounted before the machine's own is left behind; and no new /sys, so the machine's is
shown read-only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from . import kernel, rootfs
from .rootfs import Cover, CoverFile, MountHandles, RootLayout

# Directories of the layout's namespace.
_SHOWN, _WORK, _COVER, _PROC, _SYS, _DEV = (
    "/shown", "/work", "/cover", "/machine/proc", "/machine/sys", "/machine/dev",
)  # fmt: skip
# Directories of the machine's root that containers see. Others may have volumes of other clusters below them.
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "opt", "etc", "var", "nix", "srv")
_EMPTY = {"tmp": 0o1777, "run": 0o755, "root": 0o700, "home": 0o755, "mnt": 0o755, "media": 0o755}
_VAR_TMP = "/var/tmp"
_EMPTY_FILE = f"{_COVER}/empty"  # is mounted over hidden files of directories with mounts below them
_WRITABLE = ("/var", "/usr/local", "/opt", "/srv")  # programs create files in the directories in them


class UserNamespaceLayout(RootLayout):
    """`links` are symbolic links in the machine's root, `solid` directories with mounts below them, `hidden`
    what no container sees, and `files` those of the cover that containers see instead of the machine's.
    """

    def __init__(
        self,
        namespace: int,
        cover: Cover,
        links: dict[str, str],
        solid: set[str],
        hidden: list[str],
        files: list[str],
    ) -> None:
        super().__init__(namespace, cover, cover)
        self._links, self._solid, self._hidden, self._files = links, solid, hidden, files

    needs_spec = True

    def build(
        self, *, privileged: bool, secrets: bool, masked: bool, targets: Sequence[str] = ()
    ) -> MountHandles:
        cover = self.cover(secrets=secrets)
        kernel.mount("tmpfs", _WORK, "tmpfs", data="mode=755")
        root = f"{_WORK}/root"
        os.mkdir(root)
        kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NODEV, "mode=755")
        for name, target in self._links.items():
            os.symlink(target, f"{root}/{name}")
        for name, mode in _EMPTY.items():
            os.mkdir(f"{root}/{name}")
            os.chmod(f"{root}/{name}", mode)
        for name in ("proc", "sys", "dev"):
            os.mkdir(f"{root}/{name}")
        for number, path in enumerate(cover.layers):
            inner = [target for target in targets if target.startswith(f"{path}/")]
            self._show(path, f"{cover.directory}/{number}", f"{_WORK}/{number}", root, inner)
        for path in cover.exposed:
            os.makedirs(root + path, exist_ok=True)
            _show_readonly(_SHOWN + path, root + path)
        kernel.mount("proc", f"{root}/proc", "proc", rootfs.SAFE_MOUNT_FLAGS)
        tree = kernel.copy_tree(_SYS, recursive=True)
        kernel.attach_tree(tree, f"{root}/sys")
        os.close(tree)
        devices = {name: kernel.copy_tree(f"{_DEV}/{name}", recursive=False) for name in os.listdir(_DEV)}
        rootfs.pivot_into(root)
        handles = MountHandles(
            [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in ("/", *self._writable(cover, targets))]
        )
        handles.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if not privileged:
            _make_dev(devices)
            handles.dev = os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            rootfs.guard_proc(handles, masked=masked)
        for descriptor in devices.values():
            os.close(descriptor)
        return handles

    def mount_sys(self, handles: MountHandles, *, privileged: bool, masked: bool) -> None:
        """It is mounted already: a new one would need a network namespace of ours."""
        if masked and not privileged:
            rootfs.mask_sys(handles)

    def _writable(self, cover: Cover, targets: Sequence[str]) -> list[str]:
        leading = {f"/{target.split('/')[1]}" for target in targets}
        return [path for path in cover.layers if path not in self._solid or path in leading]

    def _show(self, path: str, cover: str, base: str, root: str, targets: Sequence[str]) -> None:
        """Show a directory of the machine's root. `targets`: paths in it that may have to be created."""
        target = root + path
        os.mkdir(target)
        if path in self._solid:
            _show_solid(path, root, targets)
            for file in self._files:
                if file.startswith(f"{path}/") and os.path.lexists(root + file):
                    _show_readonly(cover + file.removeprefix(path), root + file)
        else:
            os.mkdir(base)
            os.mkdir(f"{base}/upper")
            os.mkdir(f"{base}/work")
            for inner in targets:
                _make_writable(os.path.dirname(inner), path, f"{base}/upper")
            data = f"lowerdir={cover}:{_SHOWN}{path},upperdir={base}/upper,workdir={base}/work,userxattr"
            kernel.mount("overlay", target, "overlay", kernel.MS_NODEV, data)
        for hidden in self._hidden:
            if not hidden.startswith(f"{path}/"):
                continue
            if os.path.isdir(root + hidden):
                mode = "mode=1777" if hidden == _VAR_TMP else "mode=755"
                kernel.mount("tmpfs", root + hidden, "tmpfs", rootfs.SAFE_MOUNT_FLAGS, mode)
            elif os.path.exists(root + hidden):
                _show_readonly(_EMPTY_FILE, root + hidden)


def prepare_user_namespace_layout(
    hidden: Sequence[str], exposed: Sequence[str], shell: str = ""
) -> UserNamespaceLayout:
    """Make the namespace that containers copy, and return to the machine's. See `rootfs.prepare_layout`."""
    files = rootfs.read_cover_files(shell)
    # A secret may be a link, or behind one: what it leads to is hidden.
    secrets = [os.path.realpath(path) for path in (*rootfs.SECRETS, *hidden, _VAR_TMP)]
    me = os.open("/proc/self", os.O_PATH | os.O_CLOEXEC)
    home = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=me)
    names = [name for name in SYSTEM if os.path.lexists(f"/{name}")]
    links = {name: os.readlink(f"/{name}") for name in names if os.path.islink(f"/{name}")}
    directories = [f"/{name}" for name in names if name not in links and os.path.isdir(f"/{name}")]
    solid: set[str] = set()
    trees = {path: _copy_directory(path, solid) for path in directories}
    shown = _outermost_directories(exposed, directories, secrets)
    trees |= {path: kernel.copy_tree(path, recursive=True) for path in shown}
    machine = {
        _PROC: kernel.copy_tree("/proc", recursive=True),
        _SYS: kernel.copy_tree("/sys", recursive=True),
    }
    devices = {
        name: kernel.copy_tree(f"/dev/{name}", recursive=False)
        for name in rootfs.DEVICES
        if os.path.exists(f"/dev/{name}")
    }
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        # Not private: what the machine unmounts must be unmounted here, too, or its disk stays busy.
        kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_SLAVE)
        kernel.mount("tmpfs", "/proc", "tmpfs", data="mode=755")
        for path, tree in {**{_SHOWN + path: tree for path, tree in trees.items()}, **machine}.items():
            os.makedirs(f"/proc{path}", exist_ok=True)
            kernel.change_mount("", tree=tree, propagation=kernel.MS_SLAVE, recursive=True)
            kernel.attach_tree(tree, f"/proc{path}")
        os.makedirs(f"/proc{_DEV}")
        for name, tree in devices.items():
            os.close(os.open(f"/proc{_DEV}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
            kernel.attach_tree(tree, f"/proc{_DEV}/{name}")
        for path in (_WORK, _COVER):
            os.mkdir(f"/proc{path}")
        rootfs.pivot_into("/proc")
        cover, covered = _make_cover(directories, solid, secrets, files)
        cover.exposed.extend(shown)
        return UserNamespaceLayout(
            os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=me),
            cover,
            links,
            solid,
            covered,
            list(files),
        )
    finally:
        kernel.setns(home, kernel.CLONE_NEWNS)
        for descriptor in (me, home, *trees.values(), *machine.values(), *devices.values()):
            os.close(descriptor)


def _copy_directory(path: str, solid: set[str]) -> int:
    """A copy of the mount of a directory, without those below it if the kernel permits that."""
    try:
        return kernel.copy_tree(path, recursive=False)
    except OSError:
        solid.add(path)
        return kernel.copy_tree(path, recursive=True)


def _outermost_directories(
    exposed: Sequence[str], directories: Sequence[str], hidden: Sequence[str]
) -> list[str]:
    """Those of `exposed` that containers would not see otherwise: they are in no directory of the machine's
    root that is shown, or in one that is hidden.
    """
    chosen = rootfs.select_outermost(dict.fromkeys(exposed))
    return [
        path
        for path in chosen
        if os.path.isdir(path) and (not rootfs.is_inside(path, directories) or rootfs.is_inside(path, hidden))
    ]


def _make_cover(
    directories: Sequence[str], solid: set[str], hidden: Sequence[str], files: dict[str, CoverFile]
) -> tuple[Cover, list[str]]:
    """The cover, and the paths over which something empty is mounted in each container, if they exist then.

    Only a file in an overlay is covered, by a whiteout. A directory is not: to mark a new one as empty,
    extended attributes are needed, which older kernels lack on a tmpfs. Nor is what does not exist yet: with
    a whiteout in its place, no container could create a directory there, for the same reason.
    """
    covered = []
    for number in range(len(directories)):
        os.makedirs(f"{_COVER}/{number}")
    rootfs.write_cover_file(_EMPTY_FILE, CoverFile(b"", 0o444))
    for path in rootfs.select_outermost(dict.fromkeys(hidden)):
        layer = f"/{path.split('/')[1]}"
        if layer not in directories:
            continue
        if layer in solid or os.path.isdir(_SHOWN + path) or not os.path.lexists(_SHOWN + path):
            covered.append(path)
        else:
            place = f"{_COVER}/{directories.index(layer)}{path.removeprefix(layer)}"
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.mknod(place, stat.S_IFCHR, 0)
    for path, covering in files.items():
        layer = f"/{path.split('/')[1]}"
        if layer in directories:
            place = f"{_COVER}/{directories.index(layer)}{path.removeprefix(layer)}"
            os.makedirs(os.path.dirname(place), exist_ok=True)
            rootfs.write_cover_file(place, covering)
    for top in _WRITABLE:
        layer = f"/{top.split('/')[1]}"
        if layer in directories and layer not in solid and os.path.isdir(_SHOWN + top):
            place = f"{_COVER}/{directories.index(layer)}"
            for name in os.listdir(_SHOWN + top):
                _make_writable(f"{top}/{name}", layer, place)
    return Cover(_COVER, list(directories), []), covered


def _make_writable(directory: str, layer: str, place: str) -> None:
    """Put a directory of the machine into a layer above it, so that it belongs to the container's root.

    Directories of users that the namespace does not have cannot be changed, not even by root.
    """
    path = layer
    for name in directory.removeprefix(layer).split("/")[1:]:
        path, place = f"{path}/{name}", f"{place}/{name}"
        try:
            found = os.lstat(_SHOWN + path)
        except OSError:
            return  # what does not exist is created in a directory of root
        if not stat.S_ISDIR(found.st_mode):
            return
        with suppress(FileExistsError):
            os.mkdir(place)
            os.chmod(place, stat.S_IMODE(found.st_mode))


def _show_solid(path: str, root: str, targets: Sequence[str]) -> None:
    """Show a directory with mounts below it, read-only. Directories that lead to `targets` are new ones with
    the same entries, so that places for volumes can be created in them.
    """
    if targets:
        kernel.mount("tmpfs", root + path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
    _show_entries(path, root, targets)


def _show_entries(path: str, root: str, targets: Sequence[str]) -> None:
    inner = [target for target in targets if target.startswith(f"{path}/")]
    if not inner:
        _show_readonly(_SHOWN + path, root + path)
        return
    try:
        entries = list(os.scandir(_SHOWN + path))
    except PermissionError:
        _show_readonly(_SHOWN + path, root + path)
        return
    for entry in entries:
        with suppress(FileNotFoundError):  # the machine has removed it meanwhile, as log rotation does
            _show_entry(entry, f"{path}/{entry.name}", root, inner)


def _show_entry(entry: os.DirEntry[str], path: str, root: str, targets: Sequence[str]) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), root + path)
    elif entry.is_dir():
        os.mkdir(root + path)
        os.chmod(root + path, stat.S_IMODE(entry.stat().st_mode))
        _show_entries(path, root, targets)
    elif entry.is_file():
        os.close(os.open(root + path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        _show_readonly(entry.path, root + path)


def _show_readonly(source: str, target: str) -> None:
    tree = kernel.copy_tree(source, recursive=True)
    kernel.change_mount("", tree=tree, readonly=True, recursive=True)
    kernel.attach_tree(tree, target)
    os.close(tree)


def _make_dev(devices: dict[str, int]) -> None:
    kernel.mount("tmpfs", "/dev", "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=755,size=64k")
    for name, tree in devices.items():
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        kernel.attach_tree(tree, f"/dev/{name}")
    rootfs.link_dev()
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    options = "newinstance,ptmxmode=0666,mode=0620"
    try:
        kernel.mount("devpts", "/dev/pts", "devpts", flags, f"{options},gid=5")
    except OSError:  # the namespace has no group 5
        kernel.mount("devpts", "/dev/pts", "devpts", flags, options)
    with suppress(OSError):
        kernel.mount("shm", "/dev/shm", "tmpfs", rootfs.SAFE_MOUNT_FLAGS, "mode=1777,size=64m")
