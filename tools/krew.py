"""The manifest with which krew, kubectl's plugin manager, installs `kubectl volplane`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

PROGRAM = "kubectl-volplane"
RELEASES = "https://github.com/volplane/volplane/releases/download"
ABOUT = """\
Shows which component of a cluster waits, for what, since when, and what to do: for claims, volumes, pods,
attachments, nodes and snapshots. Also shows every step that was taken for a volume, in order. It changes
nothing in the cluster.

  kubectl volplane explain pod/my-app-pod
  kubectl volplane journey pvc/my-app-pvc

On Linux the plugin can also start a cluster of its own, and test CSI drivers:

  sudo kubectl volplane demo
"""
CAVEATS = """\
Needs Python {first} to {last} as python3 on PATH. The first start unpacks the plugin into ~/.cache/volplane.
"""


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def manifest(version: str, archives: Mapping[str, Path], pythons: tuple[str, ...]) -> str:
    """The manifest for archives by platform, such as linux-amd64."""
    platforms = [_platform(version, name, archive) for name, archive in sorted(archives.items())]
    plugin: dict[str, Any] = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "volplane"},
        "spec": {
            "version": f"v{version}",
            "homepage": "https://github.com/volplane/volplane",
            "shortDescription": "Explain why a volume waits",
            "description": ABOUT,
            "caveats": CAVEATS.format(first=pythons[0], last=pythons[-1]),
            "platforms": platforms,
        },
    }
    text: str = yaml.dump(plugin, Dumper=_Dumper, sort_keys=False)
    return text


def _platform(version: str, name: str, archive: Path) -> dict[str, Any]:
    system, architecture = name.split("-")
    return {
        "selector": {"matchLabels": {"os": system, "arch": architecture}},
        "uri": f"{RELEASES}/v{version}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": PROGRAM,
        "files": [{"from": PROGRAM, "to": "."}, {"from": "LICENSE", "to": "."}],
    }
