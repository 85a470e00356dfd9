"""Build everything that is installed: packages for pip, archives, the kubectl plugin, a Debian package.

    python -m tools.dist [--output dist] [--python 3.11 …] [--platform linux-amd64 …]

Everything is built before the first file is moved to the output. `volplane.yaml` is the manifest for krew,
and has the name of the plugin, as krew wants; `SHA256SUMS` has the digests of all files.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import archives, debian_package, krew, lock, man_page

ROOT = lock.ROOT
COPIED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src")
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")
BLOB = "https://github.com/volplane/volplane/blob/main/"
RAW = "https://raw.githubusercontent.com/volplane/volplane/main/"  # of pictures
# Setuptools has no other place for a file that is installed outside of the package.
DATA_FILES = "[options.data_files]\nshare/man/man1 = man/volplane.1\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build packages and archives.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", action="append", choices=archives.PYTHONS, help="default: all")
    parser.add_argument("--platform", action="append", choices=archives.PLATFORMS, help="default: all")
    parser.add_argument("--level", type=int, default=6, help="of the archives' compression")
    given = parser.parse_args()
    platforms = [archives.PLATFORMS[name] for name in given.platform or archives.PLATFORMS]
    try:
        with tempfile.TemporaryDirectory(prefix="dist-") as place:
            made = Path(place, "made")
            build_all(made, platforms, tuple(given.python or archives.PYTHONS), level=given.level)
            given.output.mkdir(parents=True, exist_ok=True)
            for file in sorted(made.iterdir()):
                shutil.move(file, given.output / file.name)
                _say(f"{(given.output / file.name).stat().st_size:>10}  {given.output / file.name}")
    except archives.CannotBuild as error:
        sys.exit(f"dist: {error}")


def build_all(
    output: Path, platforms: Sequence[archives.Platform], pythons: tuple[str, ...], *, level: int = 6
) -> None:
    """Build into a new directory. Raises CannotBuild."""
    output.mkdir()
    wheel = build_packages(output)
    version = wheel.name.split("-")[1]
    plugins = {}
    for platform in platforms:
        _say(f"building archives for {platform.name}")
        plugins[platform.name] = build_archives(output, wheel, version, platform, pythons, level)
    (output / "volplane.yaml").write_text(krew.manifest(version, plugins, pythons))
    write_digests(output)


def build_archives(
    output: Path, wheel: Path, version: str, platform: archives.Platform, pythons: Sequence[str], level: int
) -> Path:
    """Build what contains all packages for a platform. Returns the plugin. Raises CannotBuild."""
    with tempfile.TemporaryDirectory(prefix="archives-") as place:
        packages = Path(place, "packages")
        archives.collect_packages(wheel, packages, platform, pythons)
        archive = output / f"volplane-{version}-{platform.name}.pyz"
        archives.write_archive(packages, archive, version, platform, pythons, level=level)
        if platform.is_linux and shutil.which("dpkg-deb"):
            machine = platform.name.split("-")[1]
            package = output / f"volplane_{version}_{machine}.deb"
            debian_package.write_package(packages, package, version, machine, pythons, level=level)
    plugin = pack_plugin(archive, output / f"{krew.PROGRAM}-{version}-{platform.name}.tar.gz")
    if not platform.is_linux:
        archive.unlink()  # only the plugin makes sense there
    return plugin


def build_packages(output: Path) -> Path:
    """Build the sdist, and from it the wheel. Returns the wheel. Raises CannotBuild."""
    with tempfile.TemporaryDirectory(prefix="packages-") as place:
        prepare_sources(Path(place))
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), place]
        done = subprocess.run(
            command,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(archives.EPOCH)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise archives.CannotBuild(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (wheel,) = output.glob("*.whl")
    return wheel


def prepare_sources(place: Path) -> None:
    """Copy what the packages are made of; add the manual page, and make links of the README absolute."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=IGNORED)
        else:
            shutil.copyfile(ROOT / name, place / name)
    readme = place / "README.md"
    readme.write_text(make_links_absolute(readme.read_text()))
    (place / "man").mkdir()
    (place / "man" / "volplane.1").write_text(man_page.page())
    (place / "setup.cfg").write_text(DATA_FILES)


def make_links_absolute(text: str) -> str:
    text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:)", rf"\1{RAW}", text)
    return re.sub(r"\]\((?![a-z]+:|#)([^)]+)\)", rf"]({BLOB}\1)", text)


def pack_plugin(archive: Path, target: Path) -> Path:
    """The archive under the name by which kubectl finds it, with the licence, as krew wants it."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as packed:
            for source, name, mode in (
                (archive, krew.PROGRAM, 0o755),
                (ROOT / "LICENSE", "LICENSE", 0o644),
            ):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = source.stat().st_size, archives.EPOCH, mode
                with source.open("rb") as data:
                    packed.addfile(entry, data)
        file.flush()
        done = subprocess.run(["gzip", "-n", "-1", "-c", file.name], capture_output=True, check=True)
    target.write_bytes(done.stdout)
    return target


def write_digests(output: Path) -> None:
    (output / "SHA256SUMS").write_text("".join(f"{line}\n" for line in _digests(output)))


def _digests(output: Path) -> Iterator[str]:
    for file in sorted(output.iterdir()):
        yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}"


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
