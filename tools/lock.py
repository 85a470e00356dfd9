"""Write requirements.lock: every dependency of project and tools, with versions and hashes, no addresses."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        "setuptools",
        "wheel",
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".in") as source:
        source.write("\n".join(wanted))
        source.flush()
        options = ["--allow-unsafe", "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links"]
        plain = ["--no-header", "--no-annotate", "--strip-extras", "--quiet"]
        output = ["--output-file", str(ROOT / "requirements.lock")]
        subprocess.run(
            [sys.executable, "-m", "piptools", "compile", *options, *plain, *output, source.name], check=True
        )


if __name__ == "__main__":
    main()
