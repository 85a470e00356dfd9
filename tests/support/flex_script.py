"""A FlexVolume driver as a shell script: it records its calls, mounts tmpfs, and does what a test says.

A command `mount` runs the file `mount` of the script's directory, if there is one, before its own work; what
that file answers (it exits) is the answer.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

DRIVER = "example.com/disks"

_SCRIPT = """#!/bin/sh
line=$(printf '%s\\037' "$@")
[ "$1" = init ] || printf '%s\\n' "$line" >> HOME/calls
[ "$1" != init ] || echo init >> HOME/inits
answer() { echo "$1"; exit 0; }
[ ! -f "HOME/$1" ] || . "HOME/$1"
case "$1" in
  init) answer '{"status": "Success", "capabilities": CAPABILITIES}' ;;
  attach) answer '{"status": "Success", "device": "/dev/attached"}' ;;
  isattached) answer '{"status": "Success", "attached": true}' ;;
  waitforattach) answer '{"status": "Success", "device": "/dev/waited"}' ;;
  mountdevice | mount) mount -t tmpfs tmpfs "$2" 2>&1 ;;
  unmountdevice | unmount) ! mountpoint -q "$2" || umount "$2" 2>&1 ;;
esac
answer '{"status": "Success"}'
"""

NOT_SUPPORTED = """answer '{"status": "Not supported"}'"""


class FlexScript:
    def __init__(self, exec_directory: str | Path, home: str | Path, driver: str = DRIVER) -> None:
        self.driver = driver
        self.home = Path(home)
        self.directory = Path(exec_directory) / driver.replace("/", "~")
        self.path = self.directory / driver.rpartition("/")[2]
        self.home.mkdir(parents=True, exist_ok=True)

    def install(self, **capabilities: bool) -> None:
        """By a rename, as upstream tells vendors to; also over an older version."""
        self.directory.mkdir(parents=True, exist_ok=True)
        text = _SCRIPT.replace("HOME", str(self.home)).replace("CAPABILITIES", json.dumps(capabilities))
        aside = self.directory / ".new"
        aside.write_text(text)
        aside.chmod(0o755)
        aside.rename(self.path)

    def remove(self) -> None:
        self.path.unlink()

    def on(self, command: str, script: str) -> None:
        """What the command does first."""
        aside = self.home / f".{command}"
        aside.write_text(script + "\n")
        os.replace(aside, self.home / command)

    def fail(self, command: str, message: str = "no") -> None:
        self.on(command, f"""answer '{{"status": "Failure", "message": "{message}"}}'""")

    def work(self, command: str) -> None:
        """As at first."""
        (self.home / command).unlink()

    def do_not_support(self, *commands: str) -> None:
        for command in commands:
            self.on(command, NOT_SUPPORTED)

    @property
    def inits(self) -> int:
        return len((self.home / "inits").read_text().splitlines())

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of every call but `init`."""
        try:
            lines = (self.home / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line.split("\x1f")[:-1] for line in lines]

    @property
    def commands(self) -> list[str]:
        return [call[0] for call in self.calls]

    def forget_calls(self) -> None:
        (self.home / "calls").unlink(missing_ok=True)
