"""Kubeconfig files: which ones are read, and how several are merged.

As in kubectl: of entries with the same name, and of current-contexts, the first file's is used, as a whole.
Files of $KUBECONFIG that do not exist are skipped. File names inside a kubeconfig are relative to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from volplane.client.kubeconfig.errors import BadKubeconfig

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SECTIONS = {"clusters": "cluster", "contexts": "context", "users": "user"}
USUAL = "~/.kube/config"


class KubeconfigEntry(Struct, frozen=True):
    """A cluster, context or user, and the file it is from."""

    name: str
    file: Path
    fields: Mapping[str, Any]

    def text(self, key: str) -> str:
        value = self.fields.get(key)
        return "" if value is None else str(value)

    def path(self, name: str) -> Path:
        return self.file.parent / Path(name).expanduser() if name else self.file

    def error(self, message: str) -> BadKubeconfig:
        return BadKubeconfig(f"{self.file}: {message}")


class MergedKubeconfig(Struct, frozen=True):
    files: tuple[Path, ...]
    current_context: str
    entries: Mapping[tuple[str, str], KubeconfigEntry]  # by section and name

    def find(self, section: str, name: str) -> KubeconfigEntry:
        """Raises BadKubeconfig."""
        if found := self.entries.get((section, name)):
            return found
        known = sorted(other for kind, other in self.entries if kind == section)
        hint = f"; there are: {', '.join(known)}" if known else ""
        raise self.error(f"no {SECTIONS[section]} {name!r}{hint}")

    def error(self, message: str) -> BadKubeconfig:
        return BadKubeconfig(f"{', '.join(map(str, self.files))}: {message}")


def list_files(env: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The files to read if the user names none: those of $KUBECONFIG, or ~/.kube/config; only existing ones.

    Raises BadKubeconfig if $KUBECONFIG names only files that do not exist.
    """
    named = dict.fromkeys(name for name in env.get("KUBECONFIG", "").split(os.pathsep) if name)
    existing = tuple(path for path in map(Path, named or [os.path.expanduser(USUAL)]) if path.exists())
    if named and not existing:
        raise BadKubeconfig(f"no file of $KUBECONFIG exists: {os.pathsep.join(named)}")
    return existing


def merge_files(files: Iterable[str | Path]) -> MergedKubeconfig:
    """Read and merge files. Raises BadKubeconfig."""
    paths = tuple(map(Path, files))
    current, entries = "", dict[tuple[str, str], KubeconfigEntry]()
    for path in paths:
        config = read_file(path)
        current = current or str(config.get("current-context") or "")
        for section, what in SECTIONS.items():
            for entry in _list_entries(path, config, section, what):
                entries.setdefault((section, entry.name), entry)
    return MergedKubeconfig(paths, current, entries)


def parse_yaml(text: str | bytes) -> Any:
    """Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)


def read_file(path: Path) -> Mapping[str, Any]:
    """Raises BadKubeconfig."""
    try:
        config = parse_yaml(path.read_text())
    except OSError as error:
        raise BadKubeconfig(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadKubeconfig(f"{path}: not YAML: {error}") from error
    if config is None:
        return {}  # an empty file, as kubectl makes one
    if not isinstance(config, dict):
        raise BadKubeconfig(f"{path}: not a kubeconfig")
    return config


def _list_entries(
    path: Path, config: Mapping[str, Any], section: str, what: str
) -> Iterable[KubeconfigEntry]:
    listed = config.get(section) or []
    if not isinstance(listed, list):
        raise BadKubeconfig(f"{path}: {section} is not a list")
    names = set()
    for entry in listed:
        fields = entry.get(what) if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(fields, dict | None):
            raise BadKubeconfig(f"{path}: {section} has an entry that is not a map")
        name = str(entry.get("name") or "")
        if name in names:
            raise BadKubeconfig(f"{path}: {section} has two entries named {name!r}")
        names.add(name)
        yield KubeconfigEntry(name, path, fields or {})
