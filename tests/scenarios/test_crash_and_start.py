"""`volplane crash` and `volplane start`, for a cluster in one process and for separate processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.up import VOLPLANE, Up
from volplane.cluster.role_files import RoleFiles

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

SHORT = (
    "--node-monitor-grace-period=2s",
    "--default-not-ready-toleration-seconds=3",
    "--default-unreachable-toleration-seconds=1",
)
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: p
spec:
  nodeName: worker-2
  containers:
    - name: c
      image: busybox
      command: [sleep, "9999"]
"""


@pytest.fixture(scope="module", params=[(), ("--separate",)], ids=["one process", "separate"])
def up(request: pytest.FixtureRequest) -> Iterator[Up]:
    made = Up(*SHORT, *request.param, nodes=2)
    with made as up:
        yield up
    assert made.leftovers() == {}


def volplane(up: Up, *words: str) -> tuple[int, str]:
    command = [VOLPLANE, *words, "--data-dir", str(up.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


def is_ready(up: Up, node: str) -> bool:
    conditions = up.get("node", node)["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_the_replicas_of_the_driver_are_on_two_nodes(up: Up) -> None:
    pods = up.items("pods", "-n", "kube-system", "-l", "app=ebs-csi-controller")
    assert sorted(p["spec"]["nodeName"] for p in pods) == ["worker-1", "worker-2"]


def test_a_crashed_node_stays_down_until_it_is_started(up: Up) -> None:
    up.apply(POD)
    up.wait_running("p")
    tolerated = {t["key"]: t["tolerationSeconds"] for t in up.get("pod", "p")["spec"]["tolerations"]}
    assert tolerated == {"node.kubernetes.io/not-ready": 3, "node.kubernetes.io/unreachable": 1}
    code, said = volplane(up, "crash", "node/worker-2")
    assert code == 0, said
    assert "node/worker-2 is down" in said
    assert f"volplane start node/worker-2 --data-dir {up.directory}" in said
    up.wait("the node is known to be lost", lambda: not is_ready(up, "worker-2"))
    up.wait("the pod is evicted", lambda: "deletionTimestamp" in up.get("pod", "p")["metadata"], 30)
    code, said = volplane(up, "crash", "node/worker-2")
    assert (code, "node/worker-2 is down already" in said) == (1, True), said
    code, said = volplane(up, "start", "node/worker-2")
    assert (code, "node/worker-2 is starting" in said) == (0, True), said
    up.wait("the node is back", lambda: is_ready(up, "worker-2"))
    code, said = volplane(up, "start", "node/worker-2")
    assert (code, "node/worker-2 is not down" in said) == (1, True), said


def test_a_node_that_could_not_be_started_can_be_started_again(up: Up) -> None:
    if "--separate" in up.arguments:
        pytest.skip("a node with its own process is restarted until it runs")
    assert volplane(up, "crash", "node/worker-2")[0] == 0
    root, aside = up.directory / "n" / "2", up.directory / "aside"
    root.rename(aside)
    root.touch()
    code, said = volplane(up, "start", "node/worker-2")
    assert code == 1, said
    assert "cannot start node/worker-2" in said
    root.unlink()
    aside.rename(root)
    code, said = volplane(up, "start", "node/worker-2")
    assert (code, "node/worker-2 is starting" in said) == (0, True), said
    up.wait("the node is back", lambda: is_ready(up, "worker-2"))


@pytest.mark.parametrize("words", [("crash",), ("crash", "--revive"), ("start",)], ids=" ".join)
def test_a_role_that_does_not_exist_is_refused_with_those_that_do(up: Up, words: tuple[str, ...]) -> None:
    code, said = volplane(up, *words, "node/worker-9")
    assert code == 1
    assert "no role node/worker-9" in said
    assert "node/worker-1, node/worker-2" in said


def test_a_role_without_a_process_of_its_own_cannot_crash_and_one_with_is_restarted(up: Up) -> None:
    if "--separate" not in up.arguments:
        code, said = volplane(up, "crash", "scheduler")
        assert (code, "volplane up --separate" in said) == (1, True), said
        return
    runs = RoleFiles(up.directory / "run")
    before = runs.read("scheduler")
    code, said = volplane(up, "crash", "scheduler")
    assert (code, "scheduler was killed, and is restarted" in said) == (0, True), said
    assert before is not None
    assert not before.is_alive
    up.wait("another scheduler runs", lambda: runs.read("scheduler") != before)
    code, said = volplane(up, "start", "apiserver")
    assert (code, "apiserver is not down" in said) == (1, True), said


def test_a_node_stays_down_when_the_cluster_restarts(up: Up) -> None:
    assert volplane(up, "crash", "node/worker-1")[0] == 0
    assert up.stop() == 0
    up.start()
    assert "worker-1 stays down since its crash: volplane start node/worker-1" in up.log()
    up.wait("the node is known to be lost", lambda: not is_ready(up, "worker-1"))
    assert volplane(up, "crash", "node/worker-1", "--revive")[0] == 0
    up.wait("the node is back", lambda: is_ready(up, "worker-1"))


def test_without_a_cluster_the_command_says_how_to_start_one(tmp_path: Path) -> None:
    command = [VOLPLANE, "start", "node/worker-1", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"no cluster runs in {tmp_path}" in done.stderr
    assert "volplane up" in done.stderr
