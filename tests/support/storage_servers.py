"""An NFS server and an iSCSI target, both Debian's, for tests in the virtual machine.

They use the loopback network of the VM and end with it. Call only there: they change /etc/iscsi and the
kernel's list of exports.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ADDRESS = "127.0.0.1"
PORTAL = f"{ADDRESS}:3260"
EXPORT = Path("/run/nfs-export")  # the server's root directory
INITIATOR = "iqn.2026-01.com.example:node"
NO_SESSIONS = 21  # exit code of iscsiadm


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def start_nfs(*directories: str) -> None:
    """Export directories as `127.0.0.1:/<directory>`, writable by root."""
    run("modprobe", "-a", "nfsd", "nfsv4")
    run("mount", "-t", "tmpfs", "tmpfs", "/var/lib/nfs")
    state = Path("/var/lib/nfs")
    (state / "v4recovery").mkdir()
    for name in ("etab", "rmtab"):
        (state / name).touch()
    EXPORT.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", str(EXPORT))
    for directory in directories:
        (EXPORT / directory).mkdir()
    run("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
    run("exportfs", "-i", "-o", "rw,no_root_squash,insecure,fsid=0", f"{ADDRESS}:{EXPORT}")
    run("rpc.mountd", "-N", "3")
    run("rpc.nfsd", "-N", "3", "2")
    Path("/proc/fs/nfsd/v4_end_grace").write_text("Y")  # no client was there before


def start_iscsi() -> None:
    """Start an initiator, the program that names its disks, and a target without disks."""
    run("modprobe", "-a", "iscsi_tcp", "sd_mod")
    run("mount", "-t", "tmpfs", "tmpfs", "/etc/iscsi")
    Path("/etc/iscsi/initiatorname.iscsi").write_text(f"InitiatorName={INITIATOR}\n")
    Path("/etc/iscsi/iscsid.conf").touch()
    Path("/run/lock/iscsi").mkdir(parents=True)
    run("/usr/lib/systemd/systemd-udevd", "--daemon")
    run("tgtd")
    run("iscsid")


def add_target(number: int, iqn: str, *disks: Path, account: tuple[str, str] | None = None) -> None:
    """With a LUN for each disk, from 1: LUN 0 is the controller's. `account`: a CHAP user and password."""
    _tgtadm("new", "target", number, "-T", iqn)
    for lun, disk in enumerate(disks, 1):
        _tgtadm("new", "logicalunit", number, "--lun", str(lun), "-b", str(disk))
    if account is not None:
        user, password = account
        run("tgtadm", "--lld", "iscsi", "-o", "new", "-m", "account", "--user", user, "--password", password)
        _tgtadm("bind", "account", number, "--user", user)
    _tgtadm("bind", "target", number, "-I", ADDRESS)


def _tgtadm(operation: str, mode: str, target: int, *arguments: str) -> None:
    run("tgtadm", "--lld", "iscsi", "-o", operation, "-m", mode, "--tid", str(target), *arguments)


def list_sessions() -> list[str]:
    """The sessions of this kernel, as iscsiadm shows them."""
    done = subprocess.run(["iscsiadm", "-m", "session"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, NO_SESSIONS), done.stderr
    return done.stdout.splitlines()


def list_records() -> list[str]:
    """The targets that iscsiadm has recorded, and would log in to again."""
    return sorted(path.name for path in Path("/etc/iscsi/nodes").glob("*"))
