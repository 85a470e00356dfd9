"""Run programs as an ordinary user, who has no rights on this machine and a home directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.up import VOLPLANE, environment

USER = 4242  # has no entry in /etc/passwd
PATIENCE = 300.0


class OrdinaryUser:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**environment(), "HOME": str(home), "KUBECONFIG": "", "TMPDIR": str(home)}

    def run(
        self, *argv: str, code: int = 0, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> str:
        done = subprocess.run(
            argv,
            user=USER,
            group=USER,
            extra_groups=[],
            env={**self.env, **(env or {})},
            cwd=cwd or self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def volplane(self, *words: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        return self.run(VOLPLANE, *words, code=code, env=env)

    def kubectl(self, directory: Path, *words: str, stdin: str = "") -> str:
        argv = ["kubectl", "--kubeconfig", str(directory / "kubeconfig"), *words]
        return subprocess.run(
            argv,
            user=USER,
            group=USER,
            extra_groups=[],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.home,
            check=True,
        ).stdout

    def processes(self) -> list[str]:
        """The command lines of all processes of this user."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if place.stat().st_uid == USER and (text := (place / "cmdline").read_bytes()):
                    found.append(text.replace(b"\0", b" ").decode(errors="replace"))
            except OSError:  # it has just ended
                continue
        return found


def make_ordinary_user() -> Iterator[OrdinaryUser]:
    """Skips the test if that user can run nothing here, or gets no user namespace."""
    above = Path(tempfile.gettempdir())
    above.chmod(0o755)  # the user must reach its home, and pytest lists the directories above
    home = Path(tempfile.mkdtemp(prefix="vpu-"))
    os.chown(home, USER, USER)
    made = OrdinaryUser(home)
    try:
        for check in ([sys.executable, "-c", "import volplane.cli"], [VOLPLANE, "unshare", "true"]):
            done = subprocess.run(
                check,
                user=USER,
                group=USER,
                extra_groups=[],
                env=made.env,
                cwd=home,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"an ordinary user cannot run {' '.join(check)}: {done.stderr.strip()[-400:]}")
        yield made
        assert not (left := made.processes()), left
    finally:
        shutil.rmtree(home, ignore_errors=True)
