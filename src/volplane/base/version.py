"""The version of this package."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache  # reads a file, and every node of the process needs it
def package_version() -> str:
    try:
        return metadata.version("volplane")
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "0"
