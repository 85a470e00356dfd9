"""Add a cluster to the user's kubeconfig, and remove it, as `kubectl config` does.

Other entries of the file are kept. kubectl's lock file is respected, so that both can write at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from volplane.base.files import atomic_write
from volplane.client.kubeconfig.errors import BadKubeconfig
from volplane.client.kubeconfig.files import SECTIONS, USUAL, read_file


def find_target(env: Mapping[str, str] = os.environ) -> Path:
    """The file to change: the first of $KUBECONFIG that exists, else its last one, else ~/.kube/config."""
    named = [Path(name) for name in env.get("KUBECONFIG", "").split(os.pathsep) if name]
    if not named:
        return Path(USUAL).expanduser()
    return next((path for path in named if path.exists()), named[-1])


def add_context(target: Path, source: Path, name: str) -> None:
    """Copy the cluster and user of `source` into `target` as the current context. Raises BadKubeconfig."""
    found = read_file(source)
    (cluster,), (user,) = found["clusters"], found["users"]
    context = {"cluster": name, "user": name}
    with _change(target) as config:
        for section, fields in (
            ("clusters", cluster["cluster"]),
            ("users", user["user"]),
            ("contexts", context),
        ):
            _remove(config, section, name)
            config.setdefault(section, []).append({"name": name, SECTIONS[section]: fields})
        config["current-context"] = name


def remove_context(target: Path, name: str) -> bool:
    """Remove a context with its cluster and user. Returns whether it was there. Raises BadKubeconfig."""
    try:
        if not target.exists():
            return False
    except OSError as error:
        raise BadKubeconfig(f"{target}: {error.strerror}") from error
    with _change(target) as config:
        removed = [_remove(config, section, name) for section in SECTIONS]
        if config.get("current-context") == name:
            config["current-context"] = ""
    return any(removed)


def _remove(config: dict[str, Any], section: str, name: str) -> bool:
    listed = config.get(section) or []
    config[section] = [entry for entry in listed if entry.get("name") != name]
    return len(config[section]) < len(listed)


@contextmanager
def _change(path: Path) -> Iterator[dict[str, Any]]:
    """The content of a kubeconfig, which is written at the end of the block."""
    lock = Path(f"{path}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadKubeconfig(f"cannot create {path.parent}: {error.strerror}") from error
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise BadKubeconfig(f"{path} is locked: remove {lock} if no kubectl runs") from None
    except OSError as error:
        raise BadKubeconfig(f"cannot write {error.filename}: {error.strerror}") from error
    try:
        config = {"apiVersion": "v1", "kind": "Config", **(read_file(path) if path.exists() else {})}
        yield config
        text = yaml.safe_dump(config, sort_keys=False)
        atomic_write(str(path.resolve()), text.encode(), 0o600, durable=True)
    except OSError as error:
        raise BadKubeconfig(f"cannot write {path}: {error.strerror}") from error
    finally:
        lock.unlink(missing_ok=True)
