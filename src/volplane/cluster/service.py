"""A cluster as a service of systemd: started with the machine, restarted if its process ends."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from volplane.base.files import atomic_write
from volplane.base.log import FILE
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart
from volplane.cluster.lifecycle import STOP_TIMEOUT, UP
from volplane.cluster.role_files import RoleFiles
from volplane.host.processes import CompletedCommand, HostCommandMissing, run

SYSTEM_UNITS, USER_UNITS = "/etc/systemd/system", "~/.config/systemd/user"
RUNNING = "/run/systemd/system"  # exists if systemd is the init of this machine
MARK = "# Written by `volplane service install`; `volplane service uninstall` removes it."
SYSTEMCTL_TIMEOUT = STOP_TIMEOUT + 60.0


class ServiceError(CannotStart):
    """The service cannot be installed or removed."""


class ServiceUnit(Struct, frozen=True):
    """One unit. `user`: of the user's own systemd, without root."""

    path: Path
    user: bool = False

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def exists(self) -> bool:
        return self.path.exists()

    @property
    def is_controlled(self) -> bool:
        """Whether the systemd of this machine runs, and reads the unit's directory."""
        standard = Path(USER_UNITS if self.user else SYSTEM_UNITS).expanduser()
        return os.path.isdir(RUNNING) and self.path.parent == standard

    def control(self, *words: str) -> CompletedCommand:
        """Run systemctl. Raises ServiceError."""
        argv = ["systemctl", *(["--user"] if self.user else []), *words]
        try:
            done = run(argv, timeout=SYSTEMCTL_TIMEOUT, check=False)
        except (HostCommandMissing, TimeoutError) as error:
            raise ServiceError(f"{' '.join(argv)}: {error}") from error
        if done.code:
            raise ServiceError(f"{' '.join(argv)} failed: {done.output}")
        return done


def choose_unit(layout: DataDirectory, directory: str = "", *, user: bool = False) -> ServiceUnit:
    """The unit of a data directory: volplane.service for ~/.volplane, volplane-dev.service for --name dev."""
    name = layout.directory.name.lstrip(".") or "root"
    name = name if name.startswith("volplane") else f"volplane-{name}"
    place = Path(directory or (USER_UNITS if user else SYSTEM_UNITS)).expanduser()
    return ServiceUnit(place / f"{_escape_name(name)}.service", user)


def write_unit(unit: ServiceUnit, text: str) -> None:
    """Raises ServiceError."""
    _check_ours(unit)
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(str(unit.path), text.encode(), mode=0o644, durable=True)
    except OSError as error:
        raise ServiceError(f"cannot write {unit.path}: {error.strerror}") from error


def remove_unit(unit: ServiceUnit) -> None:
    """Raises ServiceError."""
    _check_ours(unit)
    try:
        unit.path.unlink()
    except OSError as error:
        raise ServiceError(f"cannot remove {unit.path}: {error.strerror}") from error


def _check_ours(unit: ServiceUnit) -> None:
    try:
        text = unit.path.read_text(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise ServiceError(f"cannot read {unit.path}: {error.strerror}") from error
    if MARK not in text:
        raise ServiceError(f"{unit.path} was not written by Volplane: it is left as it is")


def build_unit(
    layout: DataDirectory,
    program: Sequence[str],
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    working_directory: str = "",
    user: bool = False,
) -> str:
    """The text of a unit that runs `program up` with these arguments."""
    log = RoleFiles(layout.run).log(UP)
    command = [*program, UP, "--data-dir", str(layout.directory), *arguments]
    variables = {FILE: str(log), **environment}
    lines = [
        MARK,
        "[Unit]",
        f"Description=Volplane cluster in {_escape_specifiers(str(layout.directory))}",
        "After=network.target local-fs.target",
        f"RequiresMountsFor={_quote(str(layout.directory))}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(map(_quote_argument, command))}",
        *(f"Environment={_quote(f'{name}={value}')}" for name, value in variables.items()),
        *([f"WorkingDirectory=-{_escape_specifiers(working_directory)}"] if working_directory else []),
        # The process writes to this file, and rotates it (base/log.py).
        f"StandardOutput=append:{_escape_specifiers(str(log))}",
        "StandardError=inherit",
        "# A stop ends the pods in order. If the process is killed, they go on, and the next one takes over.",
        "KillMode=process",
        f"TimeoutStopSec={STOP_TIMEOUT:g}",
        "Restart=on-failure",
        "RestartSec=1",
        "LimitNOFILE=1048576",
        "TasksMax=infinity",
        "OOMPolicy=continue",
        "",
        "[Install]",
        f"WantedBy={'default' if user else 'multi-user'}.target",
    ]
    return "\n".join(lines) + "\n"


def _quote_argument(text: str) -> str:
    """A word of a command line, in which systemd replaces variables."""
    return _quote(text.replace("$", "$$"))


def _quote(text: str) -> str:
    escaped = _escape_specifiers(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _escape_specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _escape_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in name)
