"""The scripted driver as a process: it can be killed, and has its state in its directory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.scripted.driver import NAME, driver
from tests.support.scripted.outcomes import Hold, Outcome, encode
from tests.support.scripted.state import State
from volplane import sdk

ROOT = Path(__file__).parents[3]


class Process:
    """The driver's process; scripts, calls and state are files in `directory`."""

    def __init__(self, directory: Path, *features: str, name: str = NAME) -> None:
        self.directory, self.features, self.name = directory, features, name
        self.socket = str(directory / "csi.sock")
        self._process: subprocess.Popen[bytes] | None = None
        self._gates = 0

    def start(self) -> None:
        arguments = [str(self.directory), self.name, *self.features]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.scripted.process", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )
        end = time.monotonic() + 60
        while not Path(self.socket).exists():
            assert self._process.poll() is None, "the driver ended at once"
            assert time.monotonic() < end, "the driver does not come up"
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it (SIGKILL); the directory and the socket file remain."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        Path(self.socket).unlink(missing_ok=True)

    def script(self, method: str, *outcomes: Outcome) -> None:
        """Replace the rest of the method's script."""
        fresh = self.directory / f".script-{method}"
        fresh.write_bytes(encode(outcomes))
        fresh.rename(self.directory / f"script-{method}")

    def hold(self) -> Hold:
        """A `Hold` for `script` with a gate file; `<gate>.reached` exists when the call has arrived."""
        self._gates += 1
        return Hold(gate=str(self.directory / f"gate-{self._gates}"))

    def requests_of(self, method: str) -> list[dict[str, Any]]:
        file = self.directory / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [call["request"] for call in map(json.loads, lines) if call["method"] == method]

    @property
    def state(self) -> State:
        return State(self.directory)


@contextmanager
def process(directory: Path, *features: str, name: str = NAME) -> Iterator[Process]:
    made = Process(directory, *features, name=name)
    made.start()
    try:
        yield made
    finally:
        made.kill()


def main() -> None:
    directory, name, *features = sys.argv[1:]
    made = driver(*features, name=name, directory=Path(directory))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(sdk.serve(made, str(Path(directory) / "csi.sock")))


if __name__ == "__main__":
    main()
