"""csi-driver-host-path as its authors deploy it: their manifests, unmodified, and the driver in an image."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.support import peers
from tests.support.cri import image
from tests.support.cri.cluster import CriUp
from tests.support.cri.containerd import Containerd
from tests.support.cri.registry import Registry

# Upstream's sidecars that can be built; our attacher, registrar and liveness probe run beside them.
SIDECARS = {"csi-provisioner": "v2.2.1", "csi-resizer": "v1.2.0", "csi-snapshotter": "v4.1.1"}

pytestmark = [
    pytest.mark.root,
    pytest.mark.peer("kubectl", "crictl", "hostpathplugin", *SIDECARS),
    pytest.mark.slow,
]

PLUGIN = "csi-hostpathplugin-0"
# Programs that only observe the driver, or forward its socket to a test of theirs: images that wait.
OBSERVERS = (
    "sig-storage/csi-external-health-monitor-agent:v0.2.0",
    "sig-storage/csi-external-health-monitor-controller:v0.3.0",
    "alpine/socat:1.0.3",
)


@pytest.fixture(scope="module")
def up(containerd: Containerd, registry: Registry) -> Iterator[CriUp]:
    made = image.from_peer(peers.path("hostpathplugin"), "losetup", "findmnt", "fallocate")
    registry.push(made, "sig-storage/hostpathplugin:v1.7.1")
    waiting = structs.replace(
        image.busybox(), entrypoint=("sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait")
    )
    registry.push(waiting, *OBSERVERS)
    options = []
    for sidecar, tag in SIDECARS.items():
        registry.push(image.from_peer(peers.path(sidecar)), f"sig-storage/{sidecar}:{tag}")
        options += ["--image", f"k8s.gcr.io/sig-storage/{sidecar}"]
    (plugin,) = peers.manifests("hostpathplugin", "kubernetes-1.20/hostpath/csi-hostpath-plugin.yaml")
    cluster = CriUp(containerd, "--manifest", str(plugin.parent), *options, nodes=1)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def test_its_image_serves_volumes_of_pods(up: CriUp) -> None:
    for name in ("csi-storageclass.yaml", "csi-pvc.yaml", "csi-app.yaml"):
        up.kubectl("apply", "-f", str(peers.manifests("hostpathplugin", f"examples/{name}")[0]))
    up.wait_ready("my-csi-app")
    for container in ("hostpath", *SIDECARS):
        assert up.find_status(PLUGIN, container)["containerID"].startswith("containerd://")
    for container in ("csi-attacher", "node-driver-registrar", "liveness-probe"):
        assert up.find_status(PLUGIN, container)["containerID"].startswith("task://")
    up.exec("my-csi-app", "sh", "-c", "echo hello > /data/line")
    own = up.directory / "n" / "1" / "host/var/lib/csi-hostpath-data"
    assert [path.read_text() for path in own.glob("*/line")] == ["hello\n"]


def test_a_driver_that_was_killed_serves_its_volumes_again(up: CriUp) -> None:
    up.kubectl("delete", "pod", "my-csi-app", "--grace-period=1", "--timeout=60s")
    kill_driver(up)
    create_app(up)
    assert up.exec("my-csi-app", "cat", "/data/line") == "hello\n"


def test_a_driver_that_forgets_what_it_has_mounted_is_told(up: CriUp) -> None:
    """This version does not save what it has published: after a kill it finds nothing to unmount."""
    kill_driver(up)
    up.kubectl("delete", "pod", "my-csi-app", "--grace-period=1", "--wait=false")
    up.wait("the reason is told", lambda: "is still a mount point" in up.explain("pod/my-csi-app")[1])
    (mounted,) = (place for place in list_mounts(up) if "/volumes/kubernetes.io~csi/" in place)
    subprocess.run(["umount", mounted], check=True)
    up.wait("the pod is gone", lambda: not up.items("pods", "--field-selector=metadata.name=my-csi-app"))
    create_app(up)
    assert up.exec("my-csi-app", "cat", "/data/line") == "hello\n"


def create_app(up: CriUp) -> None:
    up.kubectl("apply", "-f", str(peers.manifests("hostpathplugin", "examples/csi-app.yaml")[0]))
    up.wait_ready("my-csi-app")


def list_mounts(up: CriUp) -> list[str]:
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in table if str(up.directory) in line.split()[4]]


def kill_driver(up: CriUp) -> None:
    before = up.find_status(PLUGIN, "hostpath")["restartCount"]
    (found,) = up.list_cri_containers("--name", "^hostpath$", "--state", "running")
    up.runtime.ctr("tasks", "kill", "--signal", "SIGKILL", found["id"])
    up.wait("it was restarted", lambda: up.find_status(PLUGIN, "hostpath")["restartCount"] > before)
    up.wait_ready(PLUGIN)


def test_upstreams_resizer_and_snapshotter_work_in_their_images(up: CriUp) -> None:
    up.kubectl("patch", "pvc", "csi-pvc", "-p", '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}')
    up.wait("the claim has grown", lambda: up.get("pvc", "csi-pvc")["status"]["capacity"]["storage"] == "2Gi")
    (example,) = peers.manifests("hostpathplugin", "examples/csi-snapshot-v1beta1.yaml")
    up.apply(example.read_text().replace("v1beta1", "v1"))
    up.wait("the snapshot is ready", lambda: up.items("volumesnapshots")[0]["status"]["readyToUse"])
    logs = up.kubectl("logs", PLUGIN, "-c", "csi-snapshotter")
    assert "CreateSnapshot" in logs
    up.kubectl("delete", "volumesnapshot", "--all", "--timeout=60s")


def test_its_volume_is_unmounted_and_removed(up: CriUp) -> None:
    up.kubectl("delete", "pod", "my-csi-app", "--grace-period=1", "--timeout=100s")
    up.kubectl("delete", "pvc", "csi-pvc", "--timeout=100s")
    up.wait("no volume is left", lambda: not up.items("pv"))
    assert list((up.directory / "n" / "1" / "host/var/lib/csi-hostpath-data").glob("*/line")) == []
