"""Nodes and data directories that share one runtime do not meet; a restarted node adopts its own pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.cri.cluster import NODE_ROOT, CriUp
from tests.support.cri.containerd import Containerd
from volplane.node.containers import records

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "crictl"), pytest.mark.slow]


@pytest.fixture(scope="module")
def clusters(containerd: Containerd) -> Iterator[list[CriUp]]:
    """Two data directories, with pods of the same names on nodes of the same names."""
    made = [CriUp(containerd, nodes=2) for _ in range(2)]
    with made[0], made[1]:
        for up in made:
            for node in ("worker-1", "worker-2"):
                up.run_pod(f"on-{node}", nodeName=node)
        yield made
    for up in made:
        assert up.leftovers() == {}


def list_ids(up: CriUp) -> set[str]:
    return {each["id"] for each in up.list_cri_containers("--state", "running")}


def test_each_node_has_its_own_names_cgroups_and_logs(clusters: list[CriUp]) -> None:
    found = [sandbox for up in clusters for sandbox in up.list_sandboxes()]
    assert len(found) == 4
    assert len({sandbox["labels"][NODE_ROOT] for sandbox in found}) == 4
    inspected = [up.runtime.crictl("inspectp", s["id"]) for up in clusters for s in up.list_sandboxes()]
    for up in clusters:
        assert sum(str(up.directory) in text for text in inspected) == 2


def test_a_killed_cluster_adopts_its_own_containers_and_leaves_the_others(clusters: list[CriUp]) -> None:
    one, other = clusters
    before = list_ids(one), list_ids(other)
    one.kill()
    one.start()
    for node in ("worker-1", "worker-2"):
        one.wait_ready(f"on-{node}")
        assert one.find_status(f"on-{node}")["restartCount"] == 0
    assert (list_ids(one), list_ids(other)) == before


def test_stopping_one_cluster_stops_its_own_containers_only(clusters: list[CriUp]) -> None:
    one, other = clusters
    before = list_ids(other)
    assert one.stop() == 0
    assert list_ids(one) == set()
    assert list_ids(other) == before
    assert other.exec("on-worker-1", "echo", "here") == "here\n"
    one.start()
    for node in ("worker-1", "worker-2"):
        one.wait_ready(f"on-{node}")


def test_containers_of_others_in_the_runtime_are_left_alone(clusters: list[CriUp]) -> None:
    one, _ = clusters
    one.runtime.ctr("run", "--detach", "docker.io/library/busybox:latest", "foreign", "sleep", "infinity")
    try:
        one.kill()
        one.start()
        one.wait_ready("on-worker-1")
        assert "foreign" in one.runtime.list_tasks()
    finally:
        one.runtime.ctr("tasks", "kill", "--signal", "SIGKILL", "foreign")
        one.wait("it has ended", lambda: "RUNNING" not in one.runtime.ctr("tasks", "ls").split("foreign")[-1])
        one.runtime.ctr("tasks", "rm", "foreign", check=False)
        one.runtime.ctr("containers", "rm", "foreign")


def test_a_mixed_cluster_runs_a_pod_with_and_without_a_runtime(containerd: Containerd) -> None:
    mixed = CriUp(containerd, "--node", "worker-2=process", nodes=2)
    with mixed as up:
        up.run_pod("with-image", nodeName="worker-1", container={"image": "nginx"})
        up.run_pod("without", nodeName="worker-2", container={"image": "nginx"})
        assert up.find_status("with-image")["containerID"].startswith("containerd://")
        assert up.find_status("without")["containerID"].startswith("process://")
        versions = {
            n["metadata"]["name"]: n["status"]["nodeInfo"]["containerRuntimeVersion"]
            for n in up.items("nodes")
        }
        assert versions["worker-1"].startswith("containerd://1.")
        assert not versions["worker-2"].startswith("containerd://")
    assert mixed.leftovers() == {}


def test_the_next_start_uses_the_same_runtime_until_it_is_told_otherwise(containerd: Containerd) -> None:
    cluster = CriUp(containerd, "--node", "worker-2=process", nodes=2)
    flags = cluster.arguments
    with cluster as up:
        up.run_pod("web", nodeName="worker-1")
        up.run_pod("beside", nodeName="worker-2")
        first = up.find_status("web")["containerID"]
        up.kill()
        at = flags.index("--container-runtime-endpoint")
        up.arguments = flags[:at]  # no option but the directory and the number of nodes
        up.start()
        assert f"options of the last start: --container-runtime-endpoint {containerd.endpoint}" in up.log()
        up.wait_ready("web")
        assert up.find_status("web")["containerID"] == first
        assert up.find_status("beside")["containerID"].startswith("process://")
        up.kill()
        up.arguments = (*flags[:at], "--container-runtime-endpoint=")
        up.start()
        up.wait("it runs as a process", lambda: is_process(up, "web"))
        up.wait_ready("web")
        assert up.list_containers() == []  # what the killed cluster had left in the runtime was ended
        up.kill()
        up.arguments = flags
        up.start()
        up.wait("it runs in the runtime", lambda: not is_process(up, "web"))
        up.wait_ready("web")
        assert not any(
            record.is_alive for record in records.load_all(str(up.directory / "n" / "1" / "containers"))
        )
    assert cluster.leftovers() == {}


def is_process(up: CriUp, pod: str) -> bool:
    status = up.find_status(pod)
    return "running" in status["state"] and status["containerID"].startswith("process://")


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_copy_of_a_data_directory_runs_its_own_pods_of_the_same_names(
    containerd: Containerd, tmp_path: Path, how: str
) -> None:
    """Pods have the same uids in both, and names of sandboxes are unique in a runtime."""
    with CriUp(containerd, nodes=1) as original:
        original.run_pod("web")
        uid = original.get("pod", "web")["metadata"]["uid"]
        original.kill() if how == "killed" else original.stop()
        place = tmp_path / "copy"
        subprocess.run(["cp", "-a", "--sparse=always", original.directory, place], check=True)
        original.start()
        original.wait_ready("web")
        before = list_ids(original)
        copy = CriUp(containerd, nodes=1, directory=place)
        try:
            with copy:
                copy.wait("the copy runs a container of its own", lambda: list_ids(copy))
                copy.wait_ready("web")
                assert copy.get("pod", "web")["metadata"]["uid"] == uid
                assert copy.exec("web", "echo", "here") == "here\n"
                assert not list_ids(copy) & before
                copy.kubectl("delete", "pod", "web", "--timeout=60s")
                assert copy.list_containers() == []
            assert copy.leftovers() == {}
        finally:
            machine.purge(place)
        assert list_ids(original) == before
        assert original.find_status("web")["restartCount"] == (0 if how == "killed" else 1)
    assert original.leftovers() == {}
