"""Paths of a node, as users know them and as they are on this machine."""

from __future__ import annotations

import pytest

from volplane.host import NodePaths

PATHS = NodePaths("/data/n/1")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open /data/n/1/pods/u/volumes", "cannot open /var/lib/kubelet/pods/u/volumes"),
        ('"/data/n/1/dev/xvdba" and "/data/n/1/logs/x"', '"/dev/xvdba" and "/var/log/pods/x"'),
        ("/data/n/1: not a directory", "/var/lib/kubelet: not a directory"),
        ("/data/n/1/host/var/lib/state is missing", "/var/lib/state is missing"),
        ("/data/n/1/devices", "/var/lib/kubelet/devices"),
        ("/data/n/10/pods", "/data/n/10/pods"),
        ("no path at all", "no path at all"),
    ],
)
def test_messages_show_the_paths_that_users_know(text: str, shown: str) -> None:
    assert PATHS.wire_text(text) == shown


def test_a_machine_that_is_one_node_changes_no_message() -> None:
    assert NodePaths("/srv/kubelet", identity=True).wire_text("/srv/kubelet/pods") == "/srv/kubelet/pods"


@pytest.mark.parametrize("path", ["/var/lib/kubelet/pods/u", "/dev/xvdba", "/var/log/pods/a_b_c"])
def test_the_wire_path_of_a_real_path(path: str) -> None:
    assert PATHS.wire(PATHS.real(path)) == path
    assert PATHS.real(path).startswith("/data/n/1/")
