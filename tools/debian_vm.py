"""Make the files of the tests' virtual machine (tests/support/vm.py) from Debian packages.

    python tools/debian_vm.py [--cache DIR]

Nothing is installed: the packages are downloaded with apt and unpacked into
`DIR/peers/debian-vm-<version>`. The VM sees that directory on top of this machine's files. It has a kernel,
the modules that tests need, an initial RAM disk that mounts the two, and the programs of an NFS server and of
an iSCSI target and initiator. If it fails, `debian-vm-<version>.failed` has the reason, with which tests are
skipped.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

CACHE = Path(os.environ.get("VOLPLANE_CACHE") or Path.home() / ".cache" / "volplane")
VERSION = "1"  # of this file's results; changed with it
MACHINE = "x86_64"
KERNEL = "linux-image-amd64"
PROGRAMS = ("nfs-kernel-server", "nfs-common", "open-iscsi", "tgt", "udev")
SHELL = "busybox-static"
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
MODULES = (
    *BOOT_MODULES,
    *("loop", "ext4", "xfs", "btrfs", "veth", "bridge"),
    *("nfs", "nfsv4", "nfsd", "iscsi_tcp", "sd_mod"),
)
OWN_DIRECTORIES = ("etc/iscsi", "var/lib/nfs")  # the VM mounts file systems of its own here
TIMEOUT = 600  # seconds for one command

# The machine's files and those of the packages become one read-only file system. Its init is an argument of
# the kernel.
INIT = """#!/bin/busybox sh
busybox=/bin/busybox
$busybox mkdir /proc /machine /packages /root
$busybox mount -t proc proc /proc
for module in /modules/*; do $busybox insmod $module; done
options=trans=virtio,version=9p2000.L,msize=512000,cache=loose
$busybox mount -t 9p -o ro,$options machine /machine
$busybox mount -t 9p -o ro,$options packages /packages
$busybox mount -t overlay -o ro,lowerdir=/packages:/machine root /root
init=$($busybox sed 's/.*volplane.init=\\([^ ]*\\).*/\\1/' /proc/cmdline)
$busybox umount /proc
exec $busybox switch_root /root $init
"""


class NotMade(Exception):
    """The files cannot be made; the message is shown to the user."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the files of the tests' virtual machine.")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where to store them ({CACHE})")
    cache = parser.parse_args(arguments).cache
    if platform.machine() != MACHINE or directory(cache).is_dir():
        return 0
    (cache / "peers").mkdir(parents=True, exist_ok=True)
    with (cache / "peers" / ".debian-vm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not directory(cache).is_dir():
                make(cache)
        except (NotMade, OSError, subprocess.TimeoutExpired) as error:
            failure_path(cache).write_text(f"{error}\n")
            print(f"peers: could not make the virtual machine: {error}", file=sys.stderr)
        else:
            failure_path(cache).unlink(missing_ok=True)
    return 0  # tests that need it are skipped, or fail in CI


def directory(cache: Path) -> Path:
    return cache / "peers" / f"debian-vm-{VERSION}"


def failure_path(cache: Path) -> Path:
    return cache / "peers" / f"debian-vm-{VERSION}.failed"


def make(cache: Path) -> None:
    print("peers: making the virtual machine from Debian packages …", file=sys.stderr)
    for tool in ("apt-get", "dpkg-deb", "modprobe", "depmod"):
        if shutil.which(tool) is None:
            raise NotMade(f"there is no {tool} command")
    with tempfile.TemporaryDirectory(prefix="debian-vm-", dir=cache) as place:
        work, root = Path(place), Path(place, "root")
        if os.geteuid() == 0:
            _run("apt-get", "-qq", "update")
        kernel = next((name for name in _dependencies([KERNEL]) if name.startswith("linux-image-")), "")
        if not kernel:
            raise NotMade(f"{KERNEL} needs no package with a kernel")
        libraries = [name for name in _dependencies(PROGRAMS) if re.match(r"lib(?!c6$|.*-perl$)", name)]
        unpack([kernel, SHELL, *PROGRAMS, *libraries], work, root)
        image = next((root / "boot").glob("vmlinuz-*"), None)
        if image is None:
            raise NotMade(f"{kernel} has no /boot/vmlinuz-*")
        release = image.name.removeprefix("vmlinuz-")
        keep_modules(root, release)
        boot = [Path(file) for file in _module_files(root, release, BOOT_MODULES)]
        write_ram_disk(root / "boot" / "initrd", root / "bin" / "busybox", boot)
        image.rename(root / "boot" / "vmlinuz")
        strip(root)
        root.chmod(0o755)
        root.rename(directory(cache))


def unpack(packages: Iterable[str], work: Path, root: Path) -> None:
    """Into the layout of a machine whose /bin, /lib and /sbin are links into /usr."""
    for name in ("bin", "lib", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    _run("apt-get", "-qq", "download", *dict.fromkeys(packages), cwd=work)
    for package in sorted(work.glob("*.deb")):
        command = 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"'
        _run("sh", "-c", command, "sh", str(package), str(root))


def keep_modules(root: Path, release: str) -> None:
    """Remove all kernel modules but those of MODULES and what they need."""
    _run("depmod", "-b", str(root), release)
    kept = {os.path.realpath(file) for file in _module_files(root, release, MODULES)}
    for file in (root / "usr/lib/modules" / release).rglob("*.ko*"):
        if os.path.realpath(file) not in kept:
            file.unlink()
    _run("depmod", "-b", str(root), release)


def strip(root: Path) -> None:
    """Remove what would hide the machine's own settings."""
    for name in ("etc", "var", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in OWN_DIRECTORIES:
        (root / name).mkdir(parents=True)


def write_ram_disk(target: Path, shell: Path, modules: Iterable[Path]) -> None:
    files = [("bin", 0o040755, b""), ("modules", 0o040755, b"")]
    files += [("init", 0o100755, INIT.encode()), ("bin/busybox", 0o100755, shell.read_bytes())]
    for number, module in enumerate(modules):  # in this order
        files.append((f"modules/{number:02}-{module.name}", 0o100644, module.read_bytes()))
    target.write_bytes(b"".join(_archive(files)))


def _archive(files: Iterable[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """A cpio archive in the format `newc`, which the kernel unpacks."""
    for number, (name, mode, content) in enumerate([*files, ("TRAILER!!!", 0, b"")], 1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        header = b"070701" + b"".join(b"%08x" % value for value in fields)
        yield from (_pad(header + path), _pad(content))


def _pad(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)


def _dependencies(packages: Iterable[str]) -> list[str]:
    """The packages that these need directly; one of several alternatives."""
    listed = _run("apt-cache", "depends", "--important", *packages)
    return re.findall(r"^  (?:Pre)?Depends: ([a-z0-9.+-]+)$", listed, re.MULTILINE)


def _module_files(root: Path, release: str, names: Iterable[str]) -> list[str]:
    """Of the modules and all that they need, in an order in which they can be loaded."""
    listed = _run("modprobe", "-d", str(root), "-S", release, "--show-depends", "--all", *names)
    return list(dict.fromkeys(re.findall(r"^insmod (\S+)", listed, re.MULTILINE)))


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise NotMade(f"{' '.join(command[:3])}: {said[-1]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
