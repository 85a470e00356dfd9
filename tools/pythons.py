"""The interpreters of this machine that Volplane supports, and a short run of the suite with each.

python -m tools.pythons [pytest's words …]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import peers
from tools.archives import PYTHONS

ROOT = Path(__file__).parent.parent
RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"
PLACES = ("/usr/bin", "/usr/local/bin")
# What depends most on Python itself: event loops, sockets, processes, decoding, containers.
SHORT = ("base", "api", "web", "client", "loops", "store", "conformance", "csi", "rules", "host")
SHORT_WITH_ROOT = ("containers",)
LONG = ("tests/containers/cri",)  # other programs do the work there


def find(version: str) -> str | None:
    """The path of an interpreter, such as 3.12; the distribution's before others."""
    if version == RUNNING:
        return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return next(_installed(version), None)


def is_debians(version: str) -> bool:
    """Whether python3 of the distribution has this version."""
    return os.path.basename(os.path.realpath("/usr/bin/python3")) == f"python{version}"


def _installed(version: str) -> Iterator[str]:
    for place in (*map(Path, PLACES), *sorted(Path.home().glob(".pyenv/versions/*/bin"))):
        program = place / f"python{version}"
        if program.exists() and _runs(program, version):
            yield str(program)


def _runs(program: Path, version: str) -> bool:
    command = [str(program), "-c", "import lzma, sqlite3, ssl, sys, venv; print(sys.version)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return bool(re.match(rf"{re.escape(version)}\.", done.stdout))


def main(words: Sequence[str]) -> int:
    failed = []
    for version in PYTHONS:
        program = find(version)
        if program is None:
            print(f"Python {version}: not on this machine", flush=True)
        elif version != RUNNING:
            print(f"Python {version}: {program}", flush=True)
            if run_suite(prepare(program, version), words):
                failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else "passed")
    return bool(failed)


def prepare(program: str, version: str) -> Path:
    """An environment with all packages, outside of the repository."""
    place = peers.CACHE / "pythons" / version
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([program, "-m", "venv", str(place)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "--no-deps", "-r", str(ROOT / "requirements.lock")], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
    return python


def run_suite(python: Path, words: Sequence[str]) -> int:
    folders = SHORT if os.geteuid() else (*SHORT, *SHORT_WITH_ROOT)
    left_out = ["-m", "not vm and not capability", *(f"--ignore={path}" for path in LONG)]
    chosen = words or ["-q", *left_out, *(f"tests/{name}" for name in folders)]
    return subprocess.run([str(python), "-m", "pytest", *chosen], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
