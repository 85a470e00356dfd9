"""A cluster's data directory: its paths, its nodes, and what is saved between starts.

Node directories have short names (`n/1`): the path of a Unix socket is limited to 107 bytes, and drivers
create theirs deep below.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import random
import secrets
import shutil
import socket
import stat
from ipaddress import IPv4Network
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.base.directory_identity import DirectoryOrigin, claim_directory
from volplane.base.files import atomic_write
from volplane.base.locks import LockHeld, lock
from volplane.cluster.errors import UnusableDataDirectory
from volplane.host import network
from volplane.host.mounts import read_table
from volplane.loops import wait_reports
from volplane.node.network import address_ranges
from volplane.node.network.pod_network import bridge_name
from volplane.store import StoreInUse

log = logging.getLogger(__name__)

REGION = "us-east-1"
ZONES = "abcdefghijklmnopqrstuvwxyz"
PORTS = range(20_000, 65_536)
PORT_TRIES = 1000


def node_name(index: int) -> str:
    """The name of the node with that number, counted from 1."""
    return f"worker-{index}"


def instance_of(node: str) -> str:
    """The id of a node's instance in the disk service."""
    return "i-0" + hashlib.sha256(node.encode()).hexdigest()[:16]


class ClusterMember(Struct, frozen=True):
    """A node of the cluster."""

    name: str
    index: int
    zone: str
    instance: str
    root: Path


class SavedCluster(Struct, frozen=True):
    """What must be the same at the next start (`cluster.json`)."""

    port: int = 0
    cloud_port: int = 0
    controller_manager_port: int = 0  # of its metrics, if it is a process of its own
    ui_port: int = 0  # of the live page
    kubelet_ports: dict[str, int] = {}
    metadata_ports: dict[str, int] = {}  # of the nodes' instance metadata
    access_key: str = ""
    secret_key: str = ""
    pod_range: str = ""  # address range of all pods; "" if they share the machine's network


class DataDirectory:
    """The paths of one data directory."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).expanduser().resolve()  # resolved, as in the mount table
        self.state = self.directory / "state.db"
        self.kubeconfig = self.directory / "kubeconfig"
        self.cloud = self.directory / "cloud"
        self.shared = self.directory / "efs"
        self.driver_shares = self.directory / "shared"  # directories that user drivers share between nodes
        self.run = self.directory / "run"
        self.ready = self.directory / "ready"
        # Options with which user drivers and manifests were given.
        self.saved_options = self.directory / "brought.json"
        self.nodes = self.directory / "n"
        self.lock = self.directory / "up.lock"
        self.supervisor_lock = self.directory / "supervisor.lock"
        self.start_options = self.directory / "start.json"  # of a cluster in the background
        self.version = self.directory / "version.json"  # of the files in this directory
        self._memory = self.directory / "cluster.json"
        self._reservations: list[socket.socket] = []
        self.spans = self.directory / "spans"  # the recorded steps of volumes
        self.role_control = self.run / "control.sock"
        self.bridge = bridge_name(str(self.directory))

    def remove_wait_report_sockets(self) -> None:
        """Remove the sockets of killed roles, which would look like roles that do not answer."""
        for path in self.run.glob(f"*{wait_reports.SUFFIX}"):
            path.unlink(missing_ok=True)

    def wait_report_socket(self, role: str) -> Path:
        """The socket on which a role's process reports what it waits for."""
        return self.run / f"{role.replace('/', '-')}{wait_reports.SUFFIX}"

    def create(self) -> bool:
        """Create the directory, for its owner only. Returns whether it is new. Raises UnusableDataDirectory.

        An existing directory keeps its mode: all files in it are private anyway.
        """
        try:
            fresh = not self.directory.exists()
            if fresh:
                self.directory.mkdir(mode=0o700, parents=True)
            self._check_ownership()
            for part in (self.cloud, self.run, self.nodes):
                part.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        return fresh

    def _check_ownership(self) -> None:
        """Refuse a directory of another user, or one that other users can write to: they could replace its
        files. Refuse also a directory with files that Volplane has not created.
        """
        there = self.directory.stat()
        refused = f"cannot use {self.directory} as data directory: "
        if there.st_uid != os.geteuid():
            raise UnusableDataDirectory(
                f"{refused}it belongs to user {there.st_uid}; choose one that does not exist yet"
            )
        if there.st_mode & stat.S_IWOTH or (there.st_mode & stat.S_IWGRP and there.st_gid != os.getegid()):
            raise UnusableDataDirectory(
                f"{refused}other users can write to it (mode {stat.S_IMODE(there.st_mode):04o}); "
                f"choose one that does not exist yet, or run: chmod go-w {self.directory}"
            )
        if any(path.exists() for path in (self.lock, self._memory, self.state)):
            return
        ours = (self.cloud, self.run, self.nodes, self.shared, self.driver_shares, self.directory / "pki")
        if foreign := next((part for part in ours if part.exists()), None):
            raise UnusableDataDirectory(
                f"{refused}{foreign} exists and was not created by Volplane; choose an empty directory"
            )

    def _unusable(self, error: OSError) -> UnusableDataDirectory:
        inside = f"{error.filename}: " if error.filename not in (None, str(self.directory)) else ""
        return UnusableDataDirectory(
            f"cannot use {self.directory} as data directory: {inside}{error.strerror}"
        )

    def claim_directory(self) -> DirectoryOrigin:
        """Make a copy of another data directory a cluster of its own. Raises UnusableDataDirectory.

        Called with the lock, before anything is read: the files of a copy refer to the original.
        """
        try:
            found = claim_directory(str(self.directory), self._forget_original)
        except OSError as error:
            raise self._unusable(error) from error
        if found.is_copy:
            beside = f"; {found.original} keeps its own, and its ports" if found.original else ""
            log.warning(
                "%s is a copy: containers, mounts and disks are not taken over%s", self.directory, beside
            )
        return found

    def _forget_original(self, found: DirectoryOrigin) -> None:
        """Remove links to the original's disks, its processes, and its ports if the original still exists."""
        for link in (*self.nodes.glob("*/dev/*"), *self.nodes.glob("*/dev/disk/by-id/*")):
            if link.is_symlink() and os.readlink(link).startswith("/dev/loop"):
                link.unlink()
        for file in (self.ready, *self.run.glob("*.pid")):
            file.unlink(missing_ok=True)
        if found.original:
            saved = self.load_saved()
            self.save(SavedCluster(access_key=saved.access_key, secret_key=saved.secret_key))

    @property
    def is_used(self) -> bool:
        """Whether a cluster was started here before."""
        return self._memory.exists() or self.state.exists()

    def check_state(self) -> None:
        """Check that the state of an earlier start still exists. Raises UnusableDataDirectory."""
        if not self._memory.exists():
            return
        size = self.state.stat().st_size if self.state.exists() else -1
        if size <= 0:
            raise UnusableDataDirectory(
                f"{self.state} is {'empty' if size == 0 else 'missing'}, though a cluster was started here "
                f"before: restore it from a backup, or choose another --data-dir"
            )

    def discard(self) -> None:
        """Remove the directory after a first start that failed, unless something is mounted in it."""
        if not read_table().under(str(self.directory)):
            shutil.rmtree(self.directory, ignore_errors=True)

    def acquire_lock(self) -> int:
        """Lock the directory until the descriptor is closed. Raises StoreInUse."""
        try:
            return lock(str(self.lock))
        except LockHeld as error:
            raise StoreInUse(f"the data directory {self.directory}", error.pid) from None
        except OSError as error:
            raise UnusableDataDirectory(f"cannot lock {self.lock}: {error.strerror}") from error

    def members(self, nodes: int, nodes_per_zone: int) -> list[ClusterMember]:
        return [self.member(i, nodes_per_zone) for i in range(1, nodes + 1)]

    def member(self, index: int, nodes_per_zone: int) -> ClusterMember:
        name = node_name(index)
        zone = f"{REGION}{ZONES[(index - 1) // nodes_per_zone % len(ZONES)]}"
        return ClusterMember(name, index, zone, instance_of(name), self.nodes / str(index))

    # --- saved between starts

    def load_saved(self) -> SavedCluster:
        """What the last start saved; empty if there was none or its file cannot be read."""
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=SavedCluster)
        except (FileNotFoundError, NotADirectoryError):
            return SavedCluster()
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read; choosing new ports and keys: %s", self._memory, error)
            return SavedCluster()

    def save(self, memory: SavedCluster) -> None:
        self.write(self._memory, memory)

    def write(self, path: Path, content: Struct) -> None:
        """Write a file atomically and durably, private to its owner."""
        atomic_write(str(path), msgspec.json.format(msgspec.json.encode(content), indent=2), durable=True)

    def prepare_ports_and_keys(
        self, port: int = 0, nodes: int = 0, *, pods_apart: bool = False
    ) -> SavedCluster:
        """Ports and keys for this start: those of the last start, if any.

        The API server's port is in users' kubeconfigs, so it never changes: if another program has it now,
        the start fails. The other ports can change.
        """
        saved = self.load_saved()
        members = [self.member(i, 1).name for i in range(1, nodes + 1)]
        kubelets = {name: self._port(_still_free(saved.kubelet_ports.get(name))) for name in members}
        metadata = {name: self._port(_still_free(saved.metadata_ports.get(name))) for name in members}
        return SavedCluster(
            port=self._port(port or saved.port, known=True),
            cloud_port=self._port(_still_free(saved.cloud_port)),
            controller_manager_port=self._port(_still_free(saved.controller_manager_port)),
            ui_port=saved.ui_port,
            kubelet_ports={**saved.kubelet_ports, **kubelets},
            metadata_ports={**saved.metadata_ports, **metadata},
            access_key=saved.access_key or "AKIA" + secrets.token_hex(8).upper(),
            secret_key=saved.secret_key or secrets.token_urlsafe(30),
            pod_range=self._pod_range(saved.pod_range, nodes) if pods_apart else "",
        )

    def _port(self, wanted: int, *, known: bool = False) -> int:
        """The wanted port, or a free one, reserved until `release`: it takes a while until a server listens
        on it, and other clusters may be starting. A port that is `known` to clients never changes.
        """
        for port in itertools.chain([wanted] if wanted else [], (free_port() for _ in range(PORT_TRIES))):
            reservation = _reserve_port(port)
            if reservation is not None:
                self._reservations.append(reservation)
            if reservation is not None or (known and port == wanted):
                return port
        raise UnusableDataDirectory("this machine has no free port left")

    def release(self) -> None:
        """Release the reserved ports."""
        for reservation in self._reservations:
            reservation.close()
        self._reservations.clear()

    def _pod_range(self, saved: str, nodes: int) -> str:
        """The range of the last start if it is large enough and still unused on this machine, else another
        one.
        """
        wanted = address_ranges.candidates(address_ranges.prefix_for(nodes), str(self.directory))
        if saved and address_ranges.fits_nodes(IPv4Network(saved), nodes):
            wanted = itertools.chain([IPv4Network(saved)], wanted)
        try:
            used = network.list_used_ranges(self.bridge)
        except OSError as error:
            log.warning("cannot read the routes of this machine, so pods share its network: %s", error)
            return ""
        found = network.first_free(wanted, used)
        if found is None:
            raise UnusableDataDirectory(
                f"this machine uses all of {address_ranges.SPACE}: start it with --pod-network=host"
            )
        return str(found)


def _still_free(port: int | None) -> int:
    return port if port and is_free(port) else 0


def free_port() -> int:
    """A free port outside the kernel's ephemeral range, so that it stays free while the cluster is down.

    The kernel assigns ephemeral ports to outgoing connections: a server that restarts on one may find it
    taken, even by a client that connected to itself.
    """
    ephemeral = _ephemeral_ports()
    for _ in range(PORT_TRIES):
        port = random.choice(PORTS)
        if port not in ephemeral and is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        any_port: int = probe.getsockname()[1]
        return any_port


def _reserve_port(port: int) -> socket.socket | None:
    """Reserve a port among clusters; None if it is taken. Abstract sockets belong to the network namespace,
    as ports do, and end with their process.
    """
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0volplane-port-{port}")
    except OSError:
        reservation.close()
        return None
    return reservation


def _ephemeral_ports() -> range:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(0)
    return range(int(first), int(last) + 1)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore closed connections
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
