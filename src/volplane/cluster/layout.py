"""A cluster's data directory: what lies where, who its nodes are, and what is remembered between two starts.

Node directories are short (`n/1`): a Unix socket's path ends at 107 bytes, and drivers put theirs deep below.
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
from ipaddress import IPv4Network
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.base.locks import Locked, lock
from volplane.cluster.errors import Unusable
from volplane.host import network
from volplane.host.mounts import read_table
from volplane.loops import wait_reports
from volplane.node.network import ranges
from volplane.node.network.pods import bridge_name
from volplane.store import InUse

log = logging.getLogger(__name__)

REGION = "us-east-1"
ZONES = "abcdefghijklmnopqrstuvwxyz"
PORTS = range(20_000, 65_536)
PORT_TRIES = 1000


class Member(Struct, frozen=True):
    """A node of the cluster."""

    name: str
    index: int
    zone: str
    instance: str
    root: Path


class Memory(Struct, frozen=True):
    """What must be the same at the next start."""

    port: int = 0
    cloud_port: int = 0
    kubelet_ports: dict[str, int] = {}
    access_key: str = ""
    secret_key: str = ""
    pod_range: str = ""  # addresses of all pods; none if they share the machine's


class Layout:
    """The paths of one data directory."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).expanduser().resolve()  # as the kernel names mounts
        self.state = self.directory / "state.db"
        self.kubeconfig = self.directory / "kubeconfig"
        self.cloud = self.directory / "cloud"
        self.shared = self.directory / "efs"
        self.guests = self.directory / "shared"  # what drivers that were brought share between nodes
        self.run = self.directory / "run"
        self.ready = self.directory / "ready"
        self.brought = self.directory / "brought.json"  # how drivers and manifests of others were brought
        self._memory = self.directory / "cluster.json"
        self._marks: list[socket.socket] = []
        self.bridge = bridge_name(str(self.directory))

    def forget_waits(self) -> None:
        """Of roles that were killed: they would be taken for ones that do not answer."""
        for left in self.run.glob(f"*{wait_reports.SUFFIX}"):
            left.unlink(missing_ok=True)

    def waits(self, role: str) -> Path:
        """The socket on which a role's process tells what it waits for."""
        return self.run / f"{role.replace('/', '-')}{wait_reports.SUFFIX}"

    def make(self) -> bool:
        """Create the directory, for its owner only; whether it was not there before. Raises Unusable."""
        try:
            fresh = not self.directory.exists()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)
            for part in (self.cloud, self.run, self.directory / "n"):
                part.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise Unusable(f"cannot use {self.directory} as data directory: {error.strerror}") from error
        return fresh

    def discard(self) -> None:
        """After a first start that failed: as if it had not been tried. What is mounted somewhere stays."""
        if not read_table().under(str(self.directory)):
            shutil.rmtree(self.directory, ignore_errors=True)

    def hold(self) -> int:
        """Keep every other `up` out of the directory until the descriptor is closed. Raises InUse."""
        try:
            return lock(str(self.directory / "up.lock"))
        except Locked as error:
            raise InUse(f"the data directory {self.directory}", error.pid) from None

    def members(self, nodes: int, nodes_per_zone: int) -> list[Member]:
        return [self.member(i, nodes_per_zone) for i in range(1, nodes + 1)]

    def member(self, index: int, nodes_per_zone: int) -> Member:
        name = f"worker-{index}"
        zone = f"{REGION}{ZONES[(index - 1) // nodes_per_zone % len(ZONES)]}"
        instance = "i-0" + hashlib.sha256(name.encode()).hexdigest()[:16]
        return Member(name, index, zone, instance, self.directory / "n" / str(index))

    # --- remembered between starts

    def remembered(self) -> Memory:
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=Memory)
        except FileNotFoundError:
            return Memory()

    def remember(self, memory: Memory) -> None:
        self.write(self._memory, memory)

    def write(self, place: Path, what: Struct) -> None:
        """Whole or not at all, and for its owner only."""
        temporary = place.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(what), indent=2))
            file.flush()
            os.fsync(descriptor)
        temporary.replace(place)

    def prepared(self, port: int = 0, nodes: int = 0, *, pods_apart: bool = False) -> Memory:
        """Ports and keys for this start: those of the last one where there was one.

        The API server's port is in people's kubeconfigs, so it stays even if somebody else has it now, which
        is then an error; the others are known to us alone and can change.
        """
        held = self.remembered()
        members = [self.member(i, 1).name for i in range(1, nodes + 1)]
        kubelets = {name: self._port(_still_free(held.kubelet_ports.get(name))) for name in members}
        return Memory(
            port=self._port(port or held.port, known=True),
            cloud_port=self._port(_still_free(held.cloud_port)),
            kubelet_ports={**held.kubelet_ports, **kubelets},
            access_key=held.access_key or "AKIA" + secrets.token_hex(8).upper(),
            secret_key=held.secret_key or secrets.token_urlsafe(30),
            pod_range=self._pod_range(held.pod_range, nodes) if pods_apart else "",
        )

    def _port(self, wanted: int, *, known: bool = False) -> int:
        """That one, or a free one, marked as ours until `release`: it is some time until a server is on it,
        and whoever starts beside us chooses, too. One that is `known` to others stays.
        """
        for port in itertools.chain([wanted] if wanted else [], (free_port() for _ in range(PORT_TRIES))):
            mark = _marked(port)
            if mark is not None:
                self._marks.append(mark)
            if mark is not None or (known and port == wanted):
                return port
        raise Unusable("this machine has no free port left")

    def release(self) -> None:
        """Let others have our ports."""
        for mark in self._marks:
            mark.close()
        self._marks.clear()

    def _pod_range(self, held: str, nodes: int) -> str:
        """The last one if it is large enough and nobody else on this machine has it by now."""
        wanted = ranges.candidates(ranges.prefix_for(nodes), str(self.directory))
        if held and ranges.holds(IPv4Network(held), nodes):
            wanted = itertools.chain([IPv4Network(held)], wanted)
        try:
            used = network.taken(self.bridge)
        except OSError as error:
            log.warning("pods share this machine's network, whose routes cannot be read: %s", error)
            return ""
        found = network.first_free(wanted, used)
        if found is None:
            raise Unusable(f"this machine uses all of {ranges.SPACE}: start it with --pod-network=host")
        return str(found)


def _still_free(port: int | None) -> int:
    return port if port and _is_free(port) else 0


def free_port() -> int:
    """One that stays ours while we are down.

    The kernel gives out the ports of its own range to whoever connects somewhere, so a server that restarts
    there may find a stranger on its port, or a client of its own that was connected to itself.
    """
    given_out = _given_out()
    for _ in range(PORT_TRIES):
        port = random.choice(PORTS)
        if port not in given_out and _is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        any_port: int = probe.getsockname()[1]
        return any_port


def _marked(port: int) -> socket.socket | None:
    """None if another cluster has it. Such names belong to the network's namespace, as ports do, and end with
    their process.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0volplane-port-{port}")
    except OSError:
        mark.close()
        return None
    return mark


def _given_out() -> range:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(0)
    return range(int(first), int(last) + 1)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are over do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
