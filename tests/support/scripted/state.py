"""The state of the scripted driver: volumes, snapshots, publications; in memory or in a file."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from volplane.csi import v1


class State:
    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.volumes: dict[str, v1.Volume] = {}  # by name
        self.asked: dict[str, v1.CreateVolumeRequest] = {}  # by name: what the volume was made from
        self.snapshots: dict[str, v1.Snapshot] = {}  # by name
        self.groups: dict[str, v1.VolumeGroupSnapshot] = {}  # by name
        self.published: dict[str, set[str]] = defaultdict(set)  # handle → nodes
        self.modified: dict[str, dict[str, str]] = {}  # handle → mutable parameters
        if directory is not None and self._file.exists():
            self._load(json.loads(self._file.read_text()))

    @property
    def _file(self) -> Path:
        assert self.directory is not None
        return self.directory / "state.json"

    def by_handle(self, handle: str) -> v1.Volume | None:
        return next((v for v in self.volumes.values() if v.volume_id == handle), None)

    def snapshot(self, handle: str) -> v1.Snapshot | None:
        return next((s for s in self.snapshots.values() if s.snapshot_id == handle), None)

    def save(self) -> None:
        if self.directory is None:
            return
        whole = {
            "volumes": _plain(self.volumes),
            "asked": _plain(self.asked),
            "snapshots": _plain(self.snapshots),
            "groups": _plain(self.groups),
            "published": {handle: sorted(nodes) for handle, nodes in self.published.items()},
            "modified": self.modified,
        }
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(whole))
        fresh.rename(self._file)

    def _load(self, whole: dict[str, Any]) -> None:
        self.volumes = _messages(v1.Volume, whole["volumes"])
        self.asked = _messages(v1.CreateVolumeRequest, whole["asked"])
        self.snapshots = _messages(v1.Snapshot, whole["snapshots"])
        self.groups = _messages(v1.VolumeGroupSnapshot, whole["groups"])
        self.published.update({handle: set(nodes) for handle, nodes in whole["published"].items()})
        self.modified = whole["modified"]


def _plain(messages: dict[str, Any]) -> dict[str, Any]:
    return {name: json_format.MessageToDict(message) for name, message in messages.items()}


def _messages(kind: Any, plain: dict[str, Any]) -> dict[str, Any]:
    return {name: json_format.ParseDict(fields, kind()) for name, fields in plain.items()}
