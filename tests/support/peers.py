"""Upstream's programs as the tests find them: in the cache that `make peers` fills, or on PATH.

A peer that `make peers` builds must be there in CI. One that it builds only when asked, as it takes long, or
that it cannot build everywhere, is run where it is found, and skipped with the reason elsewhere.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import pytest

from tools import peers as builds

BIN = builds.CACHE / "bin"
BUILT = {peer.name: peer for peer in builds.PEERS}

# Only found, never built: the Go module proxy has none that speaks today's API, or the build takes too long.
FOUND = {
    "csi-attacher": "external-attacher v4",
    "csi-node-driver-registrar": "node-driver-registrar v2",
    "democratic-csi": "democratic-csi v1.9.4",
    "nfsplugin": "csi-driver-nfs v4.13.4",
    "smbplugin": "csi-driver-smb v1.20.3",
}

# Debian has them for these machines only, see tools/packages.sh.
MACHINES = {"qemu-system-x86_64": ("x86_64",)}


def find(name: str) -> str | None:
    """The path of a peer; the pinned version before any other."""
    if name in BUILT and not BUILT[name].is_program:
        kept = builds.manifests_path(builds.CACHE, BUILT[name])
        return str(kept) if kept.is_dir() else None
    return shutil.which(name, path=str(BIN)) or shutil.which(name)


def path(name: str) -> str:
    found = find(name)
    assert found is not None, why_missing(name)
    return os.path.abspath(found)


def why_missing(name: str) -> str:
    if name in FOUND:
        return f"peer {name} ({FOUND[name]}) is not on PATH, and `make peers` does not build it"
    if (peer := BUILT.get(name)) is None:
        return f"peer {name} is not installed"
    by = f"make peers PEERS={name}" if peer.optional else "make peers"
    try:
        said = builds.failure_path(builds.CACHE, peer).read_text().strip()
    except FileNotFoundError:
        return f"peer {name} {peer.version} is not built: `{by}` does"
    return f"peer {name} {peer.version} could not be built: {said}"


def require(name: str, because: str = "") -> None:
    """Skip the test if the peer is missing (fail in CI)."""
    if find(name) is None:
        reason = because + why_missing(name)
        if must_be_there(name):
            pytest.fail(f"{reason}; CI is meant to have it")
        pytest.skip(reason)


def must_be_there(name: str) -> bool:
    """Whether a missing peer fails the run."""
    optional = name in BUILT and BUILT[name].optional
    exists = platform.machine() in MACHINES.get(name, (platform.machine(),))
    return bool(os.environ.get("CI")) and name not in FOUND and not optional and exists


def version(name: str) -> str:
    return BUILT[name].version if name in BUILT else "found"


def manifests(name: str, *parts: str) -> list[Path]:
    """Upstream's manifests of a peer: roles, CustomResourceDefinitions."""
    place = builds.manifests_path(builds.CACHE, BUILT[name])
    found = sorted(file for part in parts for file in place.glob(f"**/{part}"))
    assert found, f"{place} has nothing like {parts}"
    return found
