"""Real etcd processes on loopback, with their data in a directory of the test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 20.0
BINARY = os.environ.get("VOLPLANE_TEST_ETCD", "etcd")  # to use another version than the installed one


class Etcd:
    """One member. It can be stopped, killed, frozen and started again."""

    def __init__(self, directory: Path, name: str = "m0", arguments: Sequence[str] = ()) -> None:
        self.name = name
        self.directory = directory / name
        self.port, self.peer_port = free_port(), free_port()
        self.scheme = "http"
        self.arguments = list(arguments)
        self.initial = f"{name}={self.peer_url}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [
            BINARY,
            *("--name", self.name),
            *("--data-dir", str(self.directory / "data")),
            *("--listen-client-urls", self.url),
            *("--advertise-client-urls", self.url),
            *("--listen-peer-urls", self.peer_url),
            *("--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", self.initial),
            # short timeouts, so that a lost leader is replaced at once
            *("--heartbeat-interval", "50"),
            *("--election-timeout", "500" if "," in self.initial else "250"),
            *self.arguments,
        ]
        with open(self.directory / "log", "ab") as log:
            environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def wait(self) -> None:
        """Until it accepts connections."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self._process is not None
            assert self._process.poll() is None, (self.directory / "log").read_text()[-2000:]
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, (self.directory / "log").read_text()[-2000:]
                time.sleep(0.02)
            else:
                return

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, like a power loss."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


@contextmanager
def etcd(directory: Path, *arguments: str) -> Iterator[Etcd]:
    member = Etcd(directory, arguments=arguments)
    with _running([member]):
        yield member


@contextmanager
def cluster(directory: Path, size: int = 3) -> Iterator[list[Etcd]]:
    members = [Etcd(directory, f"m{n}") for n in range(size)]
    for member in members:
        member.initial = ",".join(f"{m.name}={m.peer_url}" for m in members)
    with _running(members):
        yield members


@contextmanager
def _running(members: list[Etcd]) -> Iterator[None]:
    try:
        for member in members:
            member.start()
        for member in members:
            member.wait()
        yield
    finally:
        for member in members:
            member.kill()


def version() -> str:
    """The version of the etcd binary."""
    output = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout
    return output.splitlines()[0].rpartition(" ")[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
