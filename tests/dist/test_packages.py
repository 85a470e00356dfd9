"""The wheel and the Debian package are installed into clean environments, as users do it, and used."""

from __future__ import annotations

import email
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.dist.conftest import Built, Home
from tests.support import peers
from tools import archives, lock, pythons
from tools.archives import PYTHONS
from volplane.base.version import package_version

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def wheel(built: Built) -> Path:
    return built.find("*.whl")


@pytest.mark.peer("twine")
def test_the_metadata_is_complete_and_the_readme_renders(built: Built, wheel: Path) -> None:
    sdist = built.find("volplane-*.tar.gz")
    done = subprocess.run(
        [peers.path("twine"), "check", "--strict", wheel, sdist], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = email.message_from_bytes(file.read(f"volplane-{package_version()}.dist-info/METADATA"))
    assert metadata["Requires-Python"] == f">={PYTHONS[0]}"
    assert {f"Programming Language :: Python :: {python}" for python in PYTHONS} <= set(
        metadata.get_all("Classifier", [])
    )
    extra = [line for line in metadata.get_all("Requires-Dist", []) if "botocore" in line]
    assert [line.partition(";")[2].strip() for line in extra] == ['extra == "aws"']
    readme = metadata.get_payload()
    assert isinstance(readme, str)
    assert "](docs/" not in readme, "a link that leads nowhere on a package index"
    assert {"volplane/py.typed", "volplane/apiserver/defaults.yaml"} <= names
    assert any(name.endswith("/share/man/man1/volplane.1") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "tools/"))]
    with tarfile.open(sdist) as file:
        assert {"man/volplane.1", "LICENSE", "src/volplane/py.typed"} <= {
            name.partition("/")[2] for name in file.getnames()
        }


def test_pip_installs_it(python: str, wheel: Path, home: Home) -> None:
    home.run(python, "-m", "venv", "venv")
    home.run("venv/bin/pip", "install", wheel)
    home.check("venv/bin/volplane")
    packages = next((home.place / "venv" / "lib").iterdir()) / "site-packages"
    assert not (packages / "botocore").exists()
    assert (home.place / "venv" / "share" / "man" / "man1" / "volplane.1").exists()
    assert "volplane" in home.run("venv/bin/python", "-m", "volplane", "--help")
    endpoint = f"unix://{home.place}/csi.sock"
    words = ("driver", "controller", "--driver", "ebs", "--endpoint", endpoint)
    shown = home.run("venv/bin/volplane", *words, code=1)
    assert "volplane[aws]" in shown, "it does not say what to install"


@pytest.mark.peer("pipx")
def test_pipx_installs_it(python: str, wheel: Path, home: Home, tmp_path: Path) -> None:
    newest = tmp_path / "pip.txt"  # pipx installs it first
    newest.write_text(lock.select_entries(["pip"]))
    archives.download_wheels(str(newest))
    home.run(peers.path("pipx"), "install", "--python", python, wheel)
    home.check(home.bin / "volplane")
    assert "volplane explain" in home.run("kubectl-volplane", "explain", "--help")


@pytest.mark.peer("uv")
def test_uv_installs_it(python: str, wheel: Path, home: Home) -> None:
    home.run(peers.path("uv"), "tool", "install", "--python", python, wheel)
    home.check(home.bin / "volplane")


@pytest.mark.peer("uv")
def test_uvx_runs_it_once(python: str, wheel: Path, home: Home) -> None:
    """`uvx` is `uv tool run`."""
    home.check(peers.path("uv"), "tool", "run", "--quiet", "--python", python, "--from", wheel, "volplane")
    assert not home.bin.exists()


def test_the_debian_package_runs_where_it_is_installed(built: Built, home: Home) -> None:
    """Its files lie over /usr in a mount namespace, as if it were installed."""
    package = built.find("*.deb")
    if not any(pythons.is_debians(version) for version in PYTHONS):
        pytest.skip("python3 of this machine is not supported")
    fields = subprocess.check_output(["dpkg-deb", "--field", package], text=True)
    assert f"Version: {package_version()}\n" in fields
    assert "Depends: python3 (>= 3.11)" in fields
    files = home.place / "files"
    subprocess.run(["dpkg-deb", "--extract", package, files], check=True)
    owners = subprocess.check_output(["dpkg-deb", "--contents", package], text=True).splitlines()
    assert {line.split()[1] for line in owners} == {"root/root"}
    script = f'mount -t overlay overlay -o "lowerdir={files}/usr:/usr" /usr && exec "$@"'
    installed = ("unshare", "--mount", "sh", "-c", script, "sh", "volplane")
    home.check(*installed)
    assert "volplane explain" in home.run(*installed[:-1], "kubectl-volplane", "explain", "--help")
    assert (files / "usr" / "share" / "man" / "man1" / "volplane.1.gz").exists()


def test_the_digests_are_those_of_the_files(built: Built) -> None:
    shown = subprocess.check_output(["sha256sum", "--check", "SHA256SUMS"], cwd=built.place, text=True)
    assert len(shown.splitlines()) == len(list(built.place.iterdir())) - 1
