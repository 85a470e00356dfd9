"""Manifests of a directory with a kustomization, rendered by the kubectl program of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from volplane.cluster.errors import CannotStart
from volplane.host.processes import HostCommandFailed, run

PROGRAM = "kubectl"
TIMEOUT = 120.0  # seconds
FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")


class BadKustomization(CannotStart):
    """A kustomization cannot be rendered; the message says why."""


def is_kustomization(directory: Path) -> bool:
    return any((directory / name).is_file() for name in FILES)


def render(directory: Path) -> str:
    """The manifests as YAML. Raises BadKustomization."""
    if shutil.which(PROGRAM) is None:
        raise BadKustomization(
            f"{directory} has a kustomization, and {PROGRAM}, which renders it, is not on PATH; where it is, "
            f"`{PROGRAM} kustomize {directory} > driver.yaml` does it, and --manifest driver.yaml uses "
            "the result"
        )
    try:
        completed = run([PROGRAM, "kustomize", str(directory)], timeout=TIMEOUT)
    except HostCommandFailed as error:
        reason = error.completed.stderr.decode(errors="replace").strip()
        raise BadKustomization(f"{directory}: {reason}") from error
    except TimeoutError as error:
        raise BadKustomization(f"{directory}: kubectl kustomize does not end in {TIMEOUT:g} s") from error
    return completed.stdout.decode(errors="replace")
