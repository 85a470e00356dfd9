"""Archives that need nothing but a Python: all packages, for several versions of Python, in one file.

Extension modules have their version of Python in their name (`_core.cpython-312-x86_64-linux-gnu.so`), so
that the wheels for several versions fit into one directory. Compressed together, they are smaller than apart.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tools import archive_main, lock, peers

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
WHEELS = peers.CACHE / "wheels"  # downloaded once; the lock has their digests
WINDOW = 1 << 26  # bytes: an extension module for one version is compressed with the help of the one before
EPOCH = 315532800  # 1980, the first year of zip files: the same sources make the same archive

# What the verbs need that only look at a cluster. The others need Linux.
LOOKING = ("click", "httptools", "msgspec", "prometheus-client", "PyYAML")
NOT_COPIED = ("RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json")  # differ between the wheels


class Platform(NamedTuple):
    name: str  # as in krew: system and architecture
    machine: str  # as the system calls them
    tags: tuple[str, ...]  # of wheels

    @property
    def is_linux(self) -> bool:
        return self.name.startswith("linux")


def _linux(machine: str) -> tuple[str, ...]:
    return tuple(f"{tag}_{machine}" for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_28"))


PLATFORMS = {
    platform.name: platform
    for platform in (
        Platform("linux-amd64", "linux x86_64", _linux("x86_64")),
        Platform("linux-arm64", "linux aarch64", _linux("aarch64")),
        Platform("darwin-amd64", "darwin x86_64", ("macosx_12_0_x86_64",)),
        Platform("darwin-arm64", "darwin arm64", ("macosx_12_0_arm64",)),
    )
}


class CannotBuild(Exception):
    """The archive cannot be built; the message is shown to the user."""


def write_archive(
    packages: Path, output: Path, version: str, platform: Platform, pythons: Sequence[str], *, level: int
) -> None:
    """Write an executable archive with these packages."""
    contents = pack(packages, level)
    build = f"{version}-{hashlib.sha256(contents).hexdigest()[:12]}"
    output.write_bytes(b"#!/usr/bin/env python3\n" + _zip(contents, build, pythons, platform))
    output.chmod(0o755)


def collect_packages(wheel: Path, target: Path, platform: Platform, pythons: Sequence[str]) -> None:
    """Unpack Volplane and its dependencies for all versions of Python. Raises CannotBuild."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(target)
    shutil.rmtree(next(target.glob("volplane-*.data")), ignore_errors=True)  # the manual page
    for python in pythons:
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=target.parent) as place:
            install_wheels(Path(place), platform, python)
            merge(Path(place), target)


def requirements(platform: Platform) -> str:
    """The pinned packages of an archive."""
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text())
    return lock.select_entries(project["project"]["dependencies"] if platform.is_linux else LOOKING)


def install_wheels(target: Path, platform: Platform, python: str) -> None:
    """Install the pinned packages, from the cache if they are all there. Raises CannotBuild."""
    tags = [
        "--implementation=cp",
        f"--python-version={python}",
        *(f"--platform={tag}" for tag in platform.tags),
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements(platform))
        file.flush()
        options = ["--no-index", f"--find-links={WHEELS}", "--no-compile", f"--target={target}", *tags]
        if _pip("install", *options, requirements=file.name).returncode == 0:
            return
        download_wheels(file.name, *tags)
        if (done := _pip("install", *options, requirements=file.name)).returncode:
            raise CannotBuild(f"packages for Python {python} on {platform.name}: {done.stderr.strip()}")


def download_wheels(requirements: str, *tags: str) -> None:
    """Download pinned packages into the cache. Raises CannotBuild."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    done = _pip("download", f"--dest={WHEELS}", *tags, requirements=requirements)
    if done.returncode:
        raise CannotBuild(f"cannot download packages ({' '.join(tags)}): {done.stderr.strip()[-1000:]}")


def _pip(command: str, *words: str, requirements: str) -> subprocess.CompletedProcess[str]:
    pip = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *words]
    wanted = ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--requirement={requirements}"]
    return subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)


def merge(source: Path, target: Path) -> None:
    """Move files; those that are there already must be the same. Raises CannotBuild."""
    for file in _files(source):
        name = file.relative_to(source)
        if name.parts[0] == "bin" or name.name in NOT_COPIED:
            continue
        place = target / name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
        elif place.read_bytes() != file.read_bytes():
            raise CannotBuild(f"{name} differs between versions of Python")


def pack(packages: Path, level: int) -> bytes:
    """A compressed tar file that depends on the files only, extension modules of one kind side by side."""
    packed = io.BytesIO()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": level, **({"dict_size": WINDOW} if level else {})}]
    with (
        lzma.LZMAFile(packed, "w", filters=filters) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as contents,
    ):
        for file in sorted(_files(packages), key=lambda f: (f.parent, f.name)):
            entry = tarfile.TarInfo(str(file.relative_to(packages)))
            entry.size, entry.mtime, entry.mode = file.stat().st_size, EPOCH, 0o644
            with file.open("rb") as data:
                contents.addfile(entry, data)
    return packed.getvalue()


def _zip(contents: bytes, build: str, pythons: Sequence[str], platform: Platform) -> bytes:
    text = Path(archive_main.__file__).read_text()
    for name, value in (("BUILD", build), ("PYTHONS", " ".join(pythons)), ("PLATFORM", platform.machine)):
        assert f'\n{name} = ""' in text
        text = text.replace(f'\n{name} = ""', f"\n{name} = {value!r}")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("__main__.py", text.encode()), (archive_main.CONTENTS, contents)):
            archive.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


def _files(directory: Path) -> Iterator[Path]:
    return (file for file in directory.rglob("*") if file.is_file())
