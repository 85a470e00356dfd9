"""Write requirements.lock: every dependency of project and tools, with versions and hashes, no addresses.

Also write deploy/requirements.lock, the part of it that an image needs. With names of programs, write only
the locks of these, which `tools/peers.py` installs in environments of their own.

    python tools/lock.py [--image | uv pipx twine mkdocs]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
WHOLE, IMAGE = ROOT / "requirements.lock", ROOT / "deploy" / "requirements.lock"
BUILD = ("setuptools", "wheel")
# The program's lock is tools/<name>.lock. It is a package, or part of a dependency group.
GROUPS = {"mkdocs": "docs"}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if sys.argv[1:] == ["--image"]:  # only deploy/requirements.lock, from the existing lock
        IMAGE.write_text(select_entries(image_packages(project)))
    elif sys.argv[1:]:
        for name in sys.argv[1:]:
            group = GROUPS.get(name)
            wanted = project["dependency-groups"][group] if group else [name]
            compile_lock(wanted, ROOT / "tools" / f"{name}.lock")
    else:
        compile_lock([*image_packages(project), *project["dependency-groups"]["dev"]], WHOLE)
        IMAGE.write_text(select_entries(image_packages(project)))


def compile_lock(wanted: Iterable[str], target: Path) -> None:
    """Pin packages and their dependencies; versions that are pinned already stay."""
    with tempfile.NamedTemporaryFile("w", suffix=".in") as source:
        source.write("\n".join(wanted))
        source.flush()
        options = ["--allow-unsafe", "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"]
        plain = ["--no-header", "--no-annotate", "--strip-extras", "--quiet"]
        output = ["--output-file", str(target)]
        subprocess.run(
            [sys.executable, "-m", "piptools", "compile", *options, *plain, *output, source.name], check=True
        )


def image_packages(project: dict[str, Any]) -> list[str]:
    """What an image needs: the driver runs on AWS, too, and Volplane itself is built in it."""
    own = project["project"]
    return [*own["dependencies"], *own["optional-dependencies"]["aws"], *BUILD]


def select_entries(wanted: Iterable[str]) -> str:
    """The entries of the lock for these packages and their dependencies, as installed here."""
    entries = parse_lock(WHOLE.read_text())
    needed: set[str] = set()
    left = [canonicalize_name(Requirement(text).name) for text in wanted]
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
    main()
