"""The files of roles in the run directory: pids, logs, and markers of crashed nodes."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.base.files import atomic_write
from volplane.host.processes import start_time

log = logging.getLogger(__name__)


class ProcessIdentity(Struct, frozen=True):
    """A role's process. The start time tells it from a later process with the same pid."""

    pid: int
    start: int

    @property
    def is_alive(self) -> bool:
        return start_time(self.pid) == self.start != 0


class RoleFiles:
    """The pid files, logs and crash markers of roles."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def pid_file(self, role: str) -> Path:
        return self.directory / f"{role.replace('/', '-')}.pid"

    def log(self, role: str) -> Path:
        return self.directory / f"{role.replace('/', '-')}.log"

    def last_log_line(self, role: str) -> str:
        lines = self.log(role).read_text(errors="replace").split("\n")
        found = [line.removeprefix("volplane: ") for line in lines if line.strip()]
        return found[-1] if found else f"its log {self.log(role)} is empty"

    def crash_marker(self, role: str) -> Path:
        """A file that exists while a role must stay down."""
        return self.directory / f"{role.replace('/', '-')}.crashed"

    def is_crashed(self, node: str) -> bool:
        return self.crash_marker(f"node/{node}").exists()

    def write(self, role: str, pid: int) -> None:
        # Not durable: a power cut ends the process anyway.
        atomic_write(str(self.pid_file(role)), msgspec.json.encode(ProcessIdentity(pid, start_time(pid))))

    def read(self, role: str) -> ProcessIdentity | None:
        try:
            return msgspec.json.decode(self.pid_file(role).read_bytes(), type=ProcessIdentity)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read, and is ignored: %s", self.pid_file(role), error)
            return None
