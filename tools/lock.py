"""Write requirements.lock: every dependency of project and tools, with versions and hashes, no addresses.

Also write deploy/requirements.lock: the part of it that an image needs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
WHOLE, IMAGE = ROOT / "requirements.lock", ROOT / "deploy" / "requirements.lock"
BUILD = ("setuptools", "wheel")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *BUILD,
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".in") as source:
        source.write("\n".join(wanted))
        source.flush()
        options = ["--allow-unsafe", "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"]
        plain = ["--no-header", "--no-annotate", "--strip-extras", "--quiet"]
        output = ["--output-file", str(WHOLE)]
        subprocess.run(
            [sys.executable, "-m", "piptools", "compile", *options, *plain, *output, source.name], check=True
        )
    IMAGE.write_text(image_lock(project["project"]["dependencies"]))


def image_lock(wanted: list[str]) -> str:
    """The entries of the lock for these packages and their dependencies, as installed here."""
    entries = parse_lock(WHOLE.read_text())
    needed: set[str] = set()
    left = [canonicalize_name(Requirement(text).name) for text in (*wanted, *BUILD)]
    while left:
        name = left.pop()
        if name in needed:
            continue
        needed.add(name)
        asked = [Requirement(text) for text in metadata.distribution(name).requires or ()]
        left += [canonicalize_name(r.name) for r in asked if not r.marker or r.marker.evaluate({"extra": ""})]
    return "".join(entries[name] for name in sorted(needed))


def parse_lock(text: str) -> dict[str, str]:
    """The entries of a lock by name, each with its hashes."""
    entries = re.findall(r"^[a-z0-9][^\n]*(?:\n[ \t]+[^\n]*)*\n", text, re.M)
    return {canonicalize_name(entry.split("==")[0].partition("[")[0]): entry for entry in entries}


if __name__ == "__main__":
    if sys.argv[1:] == ["--image"]:  # only deploy/requirements.lock, from the existing lock
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        IMAGE.write_text(image_lock(project["project"]["dependencies"]))
    else:
        main()
