"""A Debian package with all dependencies inside, for several versions of python3.

It is a virtual environment whose Python is Debian's. Byte code is compiled by the first start (as root) and
removed with the package.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools import archives, lock, man_page

HOME = "usr/lib/volplane"
CONTROL = """\
Package: volplane
Version: {version}
Architecture: {architecture}
Maintainer: The Volplane authors <volplane@users.noreply.github.com>
Section: admin
Priority: optional
Installed-Size: {kilobytes}
Depends: python3 (>= {first}), python3 (<< {beyond}), libc6 (>= 2.28), e2fsprogs, util-linux
Recommends: iproute2, xfsprogs
Suggests: btrfs-progs, kubernetes-client
Homepage: https://github.com/volplane/volplane
Description: Kubernetes volume control plane, without the cluster
 Runs every component of Kubernetes that a volume needs, each with its real
 protocol, tests CSI drivers, and explains why a volume of any cluster waits.
"""
REMOVE_BYTE_CODE = f"#!/bin/sh\nset -e\nfind /{HOME} -name __pycache__ -type d -prune -exec rm -rf {{}} +\n"
START = f"#!/{HOME}/bin/python\nfrom {{module}} import main\n\nmain()\n"
PROGRAMS = {  # their modules
    "volplane": "volplane.cli",
    "kubectl-volplane": "volplane.cli",
    "kubectl_complete-volplane": "volplane.cli.kubectl_completion",
}


def write_package(
    packages: Path, output: Path, version: str, architecture: str, pythons: Sequence[str], *, level: int
) -> None:
    """Write a package that contains these Python packages. Raises CannotBuild."""
    with tempfile.TemporaryDirectory(prefix="debian-") as place:
        root = Path(place, "root")
        lay_out(root, packages, pythons)
        last = pythons[-1].split(".")
        kilobytes = sum(file.lstat().st_size for file in root.rglob("*")) // 1024
        control = CONTROL.format(
            version=version,
            architecture=architecture,
            kilobytes=kilobytes,
            first=pythons[0],
            beyond=f"{last[0]}.{int(last[1]) + 1}",
        )
        (root / "DEBIAN").mkdir(mode=0o755)
        (root / "DEBIAN" / "control").write_text(control)
        (root / "DEBIAN" / "prerm").write_text(REMOVE_BYTE_CODE)
        (root / "DEBIAN" / "prerm").chmod(0o755)
        done = subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{level}", "--build", str(root), str(output)],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(archives.EPOCH)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise archives.CannotBuild(f"dpkg-deb: {done.stderr.strip()}")


def lay_out(root: Path, packages: Path, pythons: Sequence[str]) -> None:
    """The files of the package."""
    root.mkdir(mode=0o755)
    home = root / HOME
    (home / "bin").mkdir(parents=True)
    shutil.copytree(packages, home / "lib" / "site-packages")
    for python in pythons:
        (home / "lib" / f"python{python}").mkdir()
        (home / "lib" / f"python{python}" / "site-packages").symlink_to("../site-packages")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (home / "bin" / "python").symlink_to("/usr/bin/python3")
    (root / "usr" / "bin").mkdir()
    for name, module in PROGRAMS.items():
        program = home / "bin" / name
        program.write_text(START.format(module=module))
        program.chmod(0o755)
        (root / "usr" / "bin" / name).symlink_to(f"../lib/{Path(HOME).name}/bin/{name}")
    manual = root / "usr" / "share" / "man" / "man1" / "volplane.1.gz"
    manual.parent.mkdir(parents=True)
    manual.write_bytes(gzip.compress(man_page.page().encode(), mtime=0))
    licence = root / "usr" / "share" / "doc" / "volplane" / "copyright"
    licence.parent.mkdir(parents=True)
    shutil.copyfile(lock.ROOT / "LICENSE", licence)
