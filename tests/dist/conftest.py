"""What `make dist` makes, built once for these tests, and clean environments to install it into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.pythons import WANTED
from tools import archives, dist, pythons
from volplane.base.version import package_version

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "examples" / "04-your-own-driver" / "driver.py"
PATIENCE = 600.0
PLATFORM = archives.PLATFORMS["linux-amd64"]


class Built(Struct, frozen=True):
    """The directory with everything that is built."""

    place: Path

    def find(self, pattern: str) -> Path:
        (found,) = self.place.glob(pattern)
        return found


class Home:
    """A user's home directory, empty at first, and a shell that knows nothing of this checkout."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bin = place / ".local" / "bin"
        kept = {name: os.environ[name] for name in ("TMPDIR", "LANG") if name in os.environ}
        self.env = {
            **kept,
            "HOME": str(place),
            "PATH": f"{self.bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            # Packages come from the cache, never from the network.
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(archives.WHEELS),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_OFFLINE": "1",
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": str(archives.WHEELS),
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def run(self, *argv: str | Path, code: int = 0, **env: str) -> str:
        done = subprocess.run(
            list(map(str, argv)),
            cwd=self.place,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def check(self, *volplane: str | Path) -> None:
        """Run what a new user runs first."""
        assert self.run(*volplane, "--version") == f"volplane, version {package_version()}\n"
        assert "No mount, loop device, network or process of the demo is left." in self.run(*volplane, "demo")
        command = f"{sys.executable} {DRIVER} $CSI_ENDPOINT $NODE_ID $SHARED_DIR"
        shown = self.run(*volplane, "test-driver", "--focus", "^identity/", "--driver-command", command)
        assert re.search(r"^[1-9]\d* passed, 0 failed", shown, re.MULTILINE), shown


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("dist") / "made"
    dist.build_all(place, [PLATFORM], WANTED, level=0)
    return Built(place)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = tmp_path / "home"
    place.mkdir()
    return Home(place)


@pytest.fixture(params=WANTED)
def python(request: pytest.FixtureRequest) -> str:
    """An interpreter, as it was installed on this machine."""
    found = pythons.find(request.param)
    if found is None:
        pytest.skip(f"Python {request.param} is not on this machine")
    return found
