"""A real API server over HTTPS in the test's process, and roles in separate processes that can be killed.

`Role` is one role as its own process, started as a user starts it. With
`die="patch PersistentVolume/status#1:after"` it kills itself with SIGKILL at that write, just before or just
after it took effect; `die="rpc:CreateVolume:after"` is a fail point of the product's own. `kill()` is a
kill -9 from outside.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from volplane import apiserver
from volplane.client import kubeconfig
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.store.memory import MemoryStore

ROOT = Path(__file__).parents[2]
ELECTED = ("controller-manager", "scheduler")
VERBS = ("create", "update", "patch", "delete")


class Server:
    """The API server; `client` is its admin."""

    def __init__(self, directory: Path, kubeconfig: str, client: Client) -> None:
        self.directory, self.kubeconfig, self.client = directory, kubeconfig, client

    def role(self, *arguments: str, die: str = "") -> Role:
        return Role(self, arguments, die)


class Role:
    def __init__(self, server: Server, arguments: tuple[str, ...], die: str = "") -> None:
        self.server, self.arguments = server, arguments
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        if die.startswith("rpc:"):
            env["VOLPLANE_FAILPOINT"] = die
            die = ""
        self.output = server.directory / f"{arguments[0]}-{os.urandom(4).hex()}.log"
        login = ("--kubeconfig", server.kubeconfig)
        if arguments[0] in ELECTED and not any(word.startswith("--leader-elect") for word in arguments):
            # A role that is killed is followed by another at once.
            arguments = (*arguments, "--leader-elect=false")
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.role_processes", die, *arguments, *login],
                cwd=ROOT,
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    async def wait_until_killed(self, seconds: float = 60.0) -> None:
        """Wait until it has killed itself."""
        async with asyncio.timeout(seconds):
            while self.process.poll() is None:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
        assert self.process.returncode == -signal.SIGKILL, self.log()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        return self.output.read_text(errors="replace")

    async def __aenter__(self) -> Role:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[Server]:
    store = MemoryStore()
    running = await apiserver.run(apiserver.ApiServerOptions(data_dir=str(directory)), store)
    transport = kubeconfig.load(running.kubeconfig)
    try:
        async with Caches(transport) as caches:
            yield Server(directory, str(running.kubeconfig), Client(transport, caches=caches))
    finally:
        await transport.close()
        await running.close(0)
        await store.close()


# --- inside the role's process


def _kill_at_write(point: str) -> None:
    """Kill this process at the n-th write of a kind."""
    what, _, when = point.rpartition(":")
    what, _, number = what.partition("#")
    left = int(number or 1)

    def wrap_verb(verb: str, original: Any) -> Any:
        async def call(self: HttpsTransport, first: Any, *args: Any, **options: Any) -> Any:
            nonlocal left
            kind = (first if isinstance(first, type) else type(first)).__name__
            below = f"/{options['subresource']}" if options.get("subresource") else ""
            met = f"{verb} {kind}{below}" == what
            left -= met
            if met and left == 0 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await original(self, first, *args, **options)
            if met and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call

    for verb in VERBS:
        setattr(HttpsTransport, verb, wrap_verb(verb, getattr(HttpsTransport, verb)))


def main() -> None:
    from volplane.cli import volplane

    _, point, *arguments = sys.argv
    if point:
        _kill_at_write(point)
    volplane(arguments)


if __name__ == "__main__":
    main()
