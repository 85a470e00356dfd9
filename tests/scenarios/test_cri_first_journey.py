"""The article's claim and pod, unmodified, with a container runtime: nginx serves a page from the volume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cri.cluster import CriUp
from tests.support.cri.containerd import Containerd
from tests.support.up import wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "crictl"), pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-claim-and-pod"
PAGE = "<p>kept on the volume</p>"
FILE = "/usr/share/nginx/html/index.html"
NAME = "my-app-pod"


@pytest.fixture(scope="module")
def up(containerd: Containerd) -> Iterator[CriUp]:
    cluster = CriUp(containerd, nodes=2)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


@pytest.fixture(scope="module")
def running(up: CriUp) -> CriUp:
    for file in ("claim.yaml", "pod.yaml"):
        up.kubectl("apply", "-f", str(EXAMPLE / file))
    up.wait_ready(NAME)
    return up


def test_nginx_runs_with_the_image_of_the_registry(running: CriUp) -> None:
    status = running.find_status(NAME, "my-container")
    assert status["containerID"].startswith("containerd://")
    assert status["image"] == "docker.io/library/nginx:latest"
    assert status["imageID"].startswith("docker.io/library/nginx@sha256:")
    for reason in ("Scheduled", "SuccessfulAttachVolume", "Pulling", "Pulled", "Created", "Started"):
        running.wait_event(NAME, reason)  # events are written a moment after the work
    assert running.exec(NAME, "nginx", "-v") == ""  # it says its version on the standard error
    device, kind = running.exec(NAME, "df", "-T", "/usr/share/nginx/html").splitlines()[-1].split()[:2]
    assert (device.startswith("/dev/loop"), kind) == (True, "ext4")


def test_crictl_shows_the_same_containers(running: CriUp) -> None:
    expected = running.find_status(NAME, "my-container")["containerID"].removeprefix("containerd://")
    (found,) = running.list_cri_containers("--label", f"io.kubernetes.pod.name={NAME}")
    assert found["id"] == expected
    assert found["state"] == "CONTAINER_RUNNING"
    assert found["metadata"] == {"name": "my-container", "attempt": 0}
    (sandbox,) = running.list_sandboxes("--label", f"io.kubernetes.pod.name={NAME}")
    assert sandbox["id"] == found["podSandboxId"]
    pod = running.get("pod", NAME)
    assert (sandbox["metadata"]["uid"][:36], sandbox["metadata"]["namespace"]) == (
        pod["metadata"]["uid"],
        "default",
    )
    inspected = running.runtime.crictl("inspectp", sandbox["id"])
    assert f'"ip": "{pod["status"]["podIP"]}"' in inspected


def test_a_page_written_to_the_volume_is_served_and_is_still_there_when_the_pod_has_moved(
    running: CriUp,
) -> None:
    up = running
    up.exec(NAME, "sh", "-c", f"echo '{PAGE}' > {FILE}")
    assert up.fetch(NAME) == f"{PAGE}\n"
    wait_until("the request is in the log", lambda: '"GET / HTTP/1.1" 200' in up.kubectl("logs", NAME))
    first = up.get("pod", NAME)["spec"]["nodeName"]
    up.kubectl("delete", "pod", NAME)
    up.kubectl("cordon", first)
    up.kubectl("apply", "-f", str(EXAMPLE / "pod.yaml"))
    up.wait_ready(NAME)
    assert up.get("pod", NAME)["spec"]["nodeName"] != first
    assert up.fetch(NAME) == f"{PAGE}\n"
    up.kubectl("uncordon", first)


def test_deleting_everything_leaves_nothing_in_the_runtime(running: CriUp) -> None:
    up = running
    up.kubectl("delete", "pod", NAME)
    up.kubectl("delete", "pvc", "my-app-pvc")
    up.wait("the volume is gone", lambda: up.items("pv") == [] or None)
    up.wait("no container is left", lambda: up.list_cri_containers() == [] or None)
    up.wait("no sandbox is left", lambda: up.list_sandboxes() == [] or None)
    assert "loop devices" not in up.leftovers()
