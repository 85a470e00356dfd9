"""hostPath on a machine that several nodes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from volplane.api.core import HostPathVolumeSource, Pod, Volume
from volplane.host import Host, NodePaths
from volplane.volumes.base import NodeContext, PodVolumeSpec
from volplane.volumes.hostpath import HostPathPlugin

NOBODYS = "/var/lib/volplane-test-nobody-has-this"


def where(root: Path, path: str, *, identity: bool = False) -> str:
    context = NodeContext("n", cast("Host", None), NodePaths(str(root), identity=identity), cast("Any", None))
    source = Volume(name="v", host_path=HostPathVolumeSource(path=path))
    return HostPathPlugin(context).path(PodVolumeSpec("p", "u", "v", Pod(), source))


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/var/lib/kubelet", ""),
        ("/var/lib/kubelet/plugins/x/", "/plugins/x/"),
        (f"{NOBODYS}/", f"/host{NOBODYS}"),
        (f"{NOBODYS}/a/b", f"/host{NOBODYS}/a/b"),
    ],
)
def test_a_node_has_its_own_state(tmp_path: Path, path: str, inside: str) -> None:
    assert where(tmp_path, path) == f"{tmp_path}{inside}"


@pytest.mark.parametrize(
    "path", ["/dev", "/dev/", "/dev/null", "/etc", "/sys/", "/var/lib/dpkg", "/nowhere/at/all", "/var/lib"]
)
def test_everything_else_is_the_machines(tmp_path: Path, path: str) -> None:
    if path == "/var/lib/dpkg" and not Path(path).exists():
        pytest.skip("this machine has no dpkg")
    assert where(tmp_path, path).rstrip("/") == path.rstrip("/")


def test_a_machine_that_is_one_node_is_taken_at_its_word(tmp_path: Path) -> None:
    assert where(tmp_path, NOBODYS, identity=True) == NOBODYS
