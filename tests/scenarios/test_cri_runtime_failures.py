"""A container runtime that is killed, hangs or is replaced: no data is lost, and other pods go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cri.cluster import CriUp, make_claim, make_pod, mount_claim
from tests.support.cri.fixtures import run_shared
from tests.support.cri.registry import Registry

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "crictl"), pytest.mark.slow]

COUNT = "i=$((i+1)); echo $i > /data/new; mv /data/new /data/n; sleep 0.1"
WRITER = f"i=$(cat /data/n 2>/dev/null || echo 0); while true; do {COUNT}; done"


@pytest.fixture(scope="module")
def cluster(registry: Registry, private_registry: Registry) -> Iterator[CriUp]:
    """worker-2 has no container runtime; its pods must notice nothing."""
    with run_shared(registry, private_registry) as runtime:
        made = CriUp(runtime, "--node", "worker-2=process", nodes=2)
        with made:
            made.apply(make_claim("kept"))
            made.run_pod("beside", nodeName="worker-2")
            yield made
        assert made.leftovers() == {}


@pytest.fixture
def up(cluster: CriUp) -> Iterator[CriUp]:
    """A pod of worker-1 counts on its volume; the next test finds what this one has made of the runtime."""
    place = {"nodeSelector": {"kubernetes.io/hostname": "worker-1"}}
    cluster.run_pod("writer", "sh", "-c", WRITER, **place, **mount_claim("kept", "/data"))
    beside = cluster.find_status("beside")["containerID"]
    yield cluster
    assert cluster.find_status("beside")["containerID"] == beside
    cluster.kubectl("delete", "pods", "-l", "app notin (beside)", "--timeout=60s")
    cluster.wait("nothing of its pods is left", lambda: cluster.list_containers() == [])


def read_number(up: CriUp) -> int:
    return int(up.exec("writer", "cat", "/data/n"))


def find_container(up: CriUp) -> str:
    id: str = up.find_status("writer")["containerID"]
    return id


def is_ready_node(up: CriUp, name: str) -> bool:
    conditions = up.get("node", name)["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_containers_go_on_while_the_runtime_is_killed_and_started_again(up: CriUp) -> None:
    before, container = read_number(up), find_container(up)
    up.runtime.kill()
    up.wait("the node is not ready", lambda: not is_ready_node(up, "worker-1"))
    message = [
        c["message"] for c in up.get("node", "worker-1")["status"]["conditions"] if c["type"] == "Ready"
    ]
    assert "container runtime" in message[0]
    assert up.exec("beside", "echo", "here") == "here\n"
    up.runtime.start()
    up.wait("the node is ready", lambda: is_ready_node(up, "worker-1"))
    assert find_container(up) == container
    assert up.find_status("writer")["restartCount"] == 0
    up.wait("it has gone on", lambda: read_number(up) > before)


def test_a_pod_that_is_deleted_while_the_runtime_hangs_keeps_its_volume_until_it_has_ended(up: CriUp) -> None:
    up.runtime.freeze()
    up.kubectl("delete", "pod", "writer", "--wait=false")
    up.wait("the node is not ready", lambda: not is_ready_node(up, "worker-1"))
    # The container may still write: the volume stays mounted and attached.
    (attachment,) = up.items("volumeattachments")
    assert attachment["status"]["attached"]
    assert "deletionTimestamp" in up.get("pod", "writer")["metadata"]
    assert up.exec("beside", "echo", "here") == "here\n"
    up.runtime.thaw()
    up.wait("the pod is gone", lambda: not up.items("pods", "-l", "app=writer"))
    up.wait("the volume is detached", lambda: not up.items("volumeattachments"))


def test_a_pod_that_was_started_while_the_runtime_was_away_runs_once_it_is_back(up: CriUp) -> None:
    up.runtime.kill()
    up.apply(make_pod("late", nodeName="worker-1"))
    up.wait_event("late", "FailedCreatePodSandBox")
    up.runtime.start()
    up.wait_ready("late")
    assert len(up.list_sandboxes("--label", "io.kubernetes.pod.name=late")) == 1


def test_a_replaced_runtime_that_knows_nothing_runs_the_pods_again_with_their_data(up: CriUp) -> None:
    before = read_number(up)
    up.runtime.replace()
    up.wait("it runs again", lambda: up.find_status("writer")["restartCount"] >= 1)
    up.wait_ready("writer")
    assert read_number(up) >= before
    assert up.exec("beside", "echo", "here") == "here\n"


def test_a_node_that_is_killed_with_its_runtime_comes_back_with_its_pods(up: CriUp) -> None:
    before = read_number(up)
    up.kill()
    up.runtime.kill()
    up.runtime.start()
    up.start()
    up.wait_ready("writer")
    up.wait_ready("beside")
    up.wait("it has gone on", lambda: read_number(up) > before)
    assert up.find_status("writer")["restartCount"] == 0
