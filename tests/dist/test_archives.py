"""Archives that need only a Python: the first start, interrupted ones, wrong versions, the kubectl plugin."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.dist.conftest import PLATFORM, Built, Home
from tests.support.pythons import WANTED
from tools import archive_main, krew
from volplane.base.version import package_version

pytestmark = pytest.mark.slow

# Kills Python when the environment is complete, and gets its name.
KILL_AT_RENAME = "import os, signal\nos.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.fixture
def archive(built: Built) -> Path:
    return built.find("*.pyz")


def environments(home: Home) -> list[Path]:
    return [path for path in (home.place / ".cache" / "volplane" / "archives").iterdir() if path.is_dir()]


@pytest.mark.root
def test_an_archive_needs_only_a_python(python: str, archive: Path, home: Home) -> None:
    assert home.run(python, archive, "--version") == f"volplane, version {package_version()}\n"
    (environment,) = environments(home)
    unpacked = environment.stat().st_mtime_ns, environment.stat().st_ino
    assert list(environment.rglob("site-packages/volplane/cli/__pycache__/*.pyc")), (
        "the next start compiles again"
    )
    home.check(python, archive)
    assert [(path.stat().st_mtime_ns, path.stat().st_ino) for path in environments(home)] == [unpacked]


def test_it_starts_as_a_program(archive: Path, home: Home) -> None:
    """With python3 of PATH, in another cache directory."""
    shown = home.run(archive, "completion", "bash", XDG_CACHE_HOME=str(home.place / "elsewhere"))
    assert "_VOLPLANE_COMPLETE" in shown
    assert (home.place / "elsewhere" / "volplane" / "archives").is_dir()
    assert not (home.place / ".cache").exists()


def test_a_killed_first_start_leaves_nothing_that_is_used(python: str, archive: Path, home: Home) -> None:
    (home.place / "sitecustomize.py").write_text(KILL_AT_RENAME)
    home.run(python, archive, "--version", code=-signal.SIGKILL, PYTHONPATH=str(home.place))
    (left,) = environments(home)
    assert left.name.startswith(archive_main.PREFIX)
    home.run(python, archive, "--version")
    (complete,) = environments(home)
    assert not complete.name.startswith(archive_main.PREFIX)


def test_first_starts_at_the_same_time_unpack_once(python: str, archive: Path, home: Home) -> None:
    with ThreadPoolExecutor() as pool:
        shown = list(pool.map(lambda _: home.run(python, archive, "--version"), range(3)))
    assert shown == [f"volplane, version {package_version()}\n"] * 3
    assert len(environments(home)) == 1


def test_a_cache_that_cannot_be_written_is_named(python: str, archive: Path, home: Home) -> None:
    (home.place / "file").touch()
    shown = home.run(python, archive, "--version", code=1, XDG_CACHE_HOME=str(home.place / "file"))
    assert shown.startswith(f"volplane: cannot unpack into {home.place}/file/volplane/archives/")
    assert "set XDG_CACHE_HOME to choose another directory" in shown


def old_pythons() -> list[Path]:
    found = Path.home().glob(".pyenv/versions/3.*/bin/python3")
    return sorted(
        path for path in found if path.parents[1].name.startswith(("3.6", "3.7", "3.8", "3.9", "3.10"))
    )


def test_an_older_python_says_which_one_is_needed(archive: Path, home: Home) -> None:
    if not (old := old_pythons()):
        pytest.skip("no older Python is on this machine")
    for python in old:
        shown = home.run(python, archive, code=1)
        version = ".".join(python.parents[1].name.split(".")[:2])
        assert shown == (
            f"volplane: this is Python {version}, and the archive is for {', '.join(WANTED)}: run it with one"
            f" of them, such as python{WANTED[-1]} {archive}\n"
        )


@pytest.mark.root
@pytest.mark.peer("kubectl")
def test_kubectl_finds_the_plugin(built: Built, home: Home) -> None:
    home.bin.mkdir(parents=True)
    subprocess.run(["tar", "-xzf", built.find(f"{krew.PROGRAM}-*.tar.gz"), "-C", home.bin], check=True)
    assert os.access(home.bin / krew.PROGRAM, os.X_OK)
    assert str(home.bin / krew.PROGRAM) in home.run("kubectl", "plugin", "list")
    home.check("kubectl", "volplane")
    shown = home.run("kubectl", "volplane", "explain", "pvc/data", code=1)
    assert shown.startswith("volplane: no cluster: there is no ~/.kube/config")
    assert "error: " not in shown  # kubectl adds nothing


def test_the_manifest_for_krew_describes_the_plugin(built: Built) -> None:
    manifest = yaml.safe_load((built.place / "volplane.yaml").read_text())
    assert manifest["metadata"]["name"] == "volplane"
    assert manifest["spec"]["version"] == f"v{package_version()}"
    (platform,) = manifest["spec"]["platforms"]
    assert PLATFORM.name == "-".join(platform["selector"]["matchLabels"].values())
    plugin = built.place / platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == hashlib.sha256(plugin.read_bytes()).hexdigest()
    with tarfile.open(plugin) as file:
        assert [each["from"] for each in platform["files"]] == file.getnames()
    assert platform["bin"] in [each["from"] for each in platform["files"]]


def test_the_archive_is_the_plugin(built: Built, archive: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", built.find(f"{krew.PROGRAM}-*.tar.gz"), "-C", tmp_path], check=True)
    assert (tmp_path / krew.PROGRAM).read_bytes() == archive.read_bytes()
