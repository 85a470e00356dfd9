"""Fixtures of a worker: a registry with images, one with a password, and a runtime that pulls from both."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import peers
from tests.support.cri import image
from tests.support.cri.containerd import NEEDED, NEWER, PAUSE, Containerd, run_containerd
from tests.support.cri.registry import Registry, run_registry

PRIVATE = "registry.example.com"  # the name of the registry with a password


def require_containerd() -> None:
    """Skip the test with the reason if containerd cannot run here (fail in CI if it is missing)."""
    if os.geteuid() != 0:
        pytest.skip("containerd needs root")
    for program in NEEDED:
        peers.require(program)
    if not Path("/usr/lib/cni/bridge").exists():
        peers.require("containernetworking-plugins")
    if "overlay" not in Path("/proc/filesystems").read_text():
        pytest.skip("containerd needs overlayfs, which this kernel does not have")


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """What containerd fetches images of all registries from; it has busybox, nginx and the sandbox image."""
    require_containerd()
    peers.require("nginx")
    with run_registry(Path(tempfile.mkdtemp(prefix="registry-"))) as registry:
        registry.push(image.pause(), PAUSE.partition("/")[2])
        registry.push(image.busybox(), "library/busybox:latest", "library/busybox:1.35")
        registry.push(image.nginx(), "library/nginx:latest", "library/nginx:1.22")
        yield registry


@pytest.fixture(scope="session")
def private_registry() -> Iterator[Registry]:
    """`registry.example.com`, which wants a user and a password."""
    require_containerd()
    with run_registry(Path(tempfile.mkdtemp(prefix="registry-")), password=True) as registry:
        registry.push(image.busybox(), "team/app:v1")
        yield registry


# Run all tests with the runtime of `newer_containerd`.
ALL_NEWER = os.environ.get("VOLPLANE_CONTAINERD") == "newer"


@contextmanager
def run_shared(
    registry: Registry, private_registry: Registry, *, newer: bool = ALL_NEWER
) -> Iterator[Containerd]:
    if newer:
        for program in NEWER:
            peers.require(program)
    registries = {"_default": registry.url, PRIVATE: private_registry.url}
    with run_containerd(registries, newer=newer) as runtime:
        yield runtime


@pytest.fixture(scope="session")
def containerd(registry: Registry, private_registry: Registry) -> Iterator[Containerd]:
    """A runtime for all tests of this worker. A test that kills or freezes it uses `own_containerd`."""
    with run_shared(registry, private_registry) as runtime:
        yield runtime


@pytest.fixture
def own_containerd(registry: Registry, private_registry: Registry) -> Iterator[Containerd]:
    with run_shared(registry, private_registry) as runtime:
        yield runtime


@pytest.fixture(scope="session")
def newer_containerd(registry: Registry, private_registry: Registry) -> Iterator[Containerd]:
    """A runtime that mounts images as volumes and reports container events."""
    with run_shared(registry, private_registry, newer=True) as runtime:
        yield runtime


@pytest.fixture
def own_newer_containerd(registry: Registry, private_registry: Registry) -> Iterator[Containerd]:
    with run_shared(registry, private_registry, newer=True) as runtime:
        yield runtime
