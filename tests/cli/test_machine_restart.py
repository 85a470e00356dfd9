"""Clusters in the background that are killed: by a restart of the machine, and before they are stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli.test_lifecycle import Machine, make_machine
from tests.support import machine
from tests.support.power_cut import OBJECTS, detach, is_pod_running
from tests.support.up import Up, wait_until
from volplane.cluster import lifecycle
from volplane.cluster.data_directory import DataDirectory
from volplane.host import devices

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl")]

NAMES = ("dev", "test")


@pytest.fixture
def home() -> Iterator[Machine]:
    for made in make_machine():
        yield made
        for name in NAMES:
            machine.purge(made.home / f".volplane-{name}")


def restart_machine(directories: list[Path]) -> None:
    """End all processes, and remove mounts, loop devices and networks; the files stay."""
    for directory in directories:
        machine.kill(directory)
    for directory in directories:
        # The loop device that holds a pod's device has a path that is gone with the mounts.
        pins = [device for device, file in devices.loops().items() if file.startswith(f"{directory}/n/")]
        for device in pins:
            wait_until(f"{device} is free", partial(detach, device))
        machine.purge(directory)
        assert not machine.leftovers(directory)


def test_two_clusters_survive_a_restart_of_the_machine(home: Machine) -> None:
    ups = {name: Up(directory=home.home / f".volplane-{name}") for name in NAMES}
    for name, up in ups.items():
        home.run("up", "--name", name, "--nodes", "1", "--detach")
        up.apply(OBJECTS)
        up.kubectl("create", "configmap", f"of-{name}")
    for up in ups.values():
        wait_until("the pod has written", partial(is_pod_running, up), 120)
    states = [home.status("--name", name) for name in NAMES]
    assert [state["phase"] for state in states] == ["Running", "Running"]
    assert len({state["server"] for state in states}) == 2

    restart_machine([up.directory for up in ups.values()])
    assert [home.status("--name", name)["phase"] for name in NAMES] == ["Stopped", "Stopped"]
    assert home.run("list").count("Stopped") == 2
    for name in NAMES:
        home.run("start", "--name", name)
    for name, up in ups.items():
        wait_until("the pod runs with its data", partial(is_pod_running, up), 120)
        assert up.kubectl("get", "configmap", f"of-{name}", "-o", "name").strip() == f"configmap/of-{name}"
    assert [home.status("--name", name)["server"] for name in NAMES] == [state["server"] for state in states]

    home.run("delete", "--name", "dev", "--yes")
    assert not machine.leftovers(ups["dev"].directory)
    assert is_pod_running(ups["test"])
    home.run("stop", "--name", "test")
    assert not machine.leftovers(ups["test"].directory)
    assert "everything agrees" in home.run("fsck", "--name", "test")


def test_a_stop_after_a_kill_leaves_nothing(home: Machine) -> None:
    up = Up(directory=home.home / ".volplane-dev")
    home.run("up", "--name", "dev", "--nodes", "1", "--detach")
    up.apply(OBJECTS)
    wait_until("the pod has written", partial(is_pod_running, up), 120)

    os.kill(home.status("--name", "dev")["pid"], signal.SIGKILL)
    assert lifecycle.stop(DataDirectory(up.directory))  # at once: its supervisor has not started it again
    assert not machine.leftovers(up.directory)

    home.run("start", "--name", "dev")
    wait_until("the pod runs with its data", partial(is_pod_running, up), 120)
    status = home.status("--name", "dev")
    os.kill(status["supervisor"], signal.SIGKILL)
    os.kill(status["pid"], signal.SIGKILL)
    wait_until("it has ended", lambda: home.status("--name", "dev")["phase"] == "Stopped")
    for words in (("stop",), ("delete", "--yes")):
        shown = home.run(*words, "--name", "dev", code=1)
        assert "1 container, " in shown
        assert "of a killed run remain: start and stop it once to remove them" in shown
    home.run("start", "--name", "dev")
    home.run("delete", "--name", "dev", "--yes")
    assert not up.directory.exists()
    assert not machine.leftovers(up.directory)
