"""csi-driver-host-path as its authors deploy it: their manifests, unmodified, and the driver in an image."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from tests.support import peers
from tests.support.cri import image
from tests.support.cri.cluster import CriUp
from tests.support.cri.containerd import Containerd
from tests.support.cri.registry import Registry

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "crictl", "hostpathplugin"), pytest.mark.slow]

PLUGIN = "csi-hostpathplugin-0"
# Programs that only observe the driver, or forward its socket to a test of theirs: images that wait.
OBSERVERS = (
    "sig-storage/csi-external-health-monitor-agent:v0.2.0",
    "sig-storage/csi-external-health-monitor-controller:v0.3.0",
    "alpine/socat:1.0.3",
)


@pytest.fixture(scope="module")
def up(containerd: Containerd, registry: Registry) -> Iterator[CriUp]:
    made = image.from_programs(peers.path("hostpathplugin"), entrypoint=["/hostpathplugin"])
    program = image.build_layer(links={"hostpathplugin": peers.path("hostpathplugin")})
    registry.push(made.add_layer(program), "sig-storage/hostpathplugin:v1.7.1")
    waiting = structs.replace(
        image.busybox(), entrypoint=("sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait")
    )
    registry.push(waiting, *OBSERVERS)
    (plugin,) = peers.manifests("hostpathplugin", "kubernetes-1.20/hostpath/csi-hostpath-plugin.yaml")
    cluster = CriUp(containerd, "--manifest", str(plugin.parent), nodes=1)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def test_its_image_serves_volumes_of_pods(up: CriUp) -> None:
    for name in ("csi-storageclass.yaml", "csi-pvc.yaml", "csi-app.yaml"):
        up.kubectl("apply", "-f", str(peers.manifests("hostpathplugin", f"examples/{name}")[0]))
    up.wait_ready("my-csi-app")
    assert up.find_status(PLUGIN, "hostpath")["containerID"].startswith("containerd://")
    up.exec("my-csi-app", "sh", "-c", "echo hello > /data/line")
    own = up.directory / "n" / "1" / "host/var/lib/csi-hostpath-data"
    assert [path.read_text() for path in own.glob("*/line")] == ["hello\n"]


def test_its_volume_is_unmounted_and_removed(up: CriUp) -> None:
    up.kubectl("delete", "pod", "my-csi-app", "--grace-period=1", "--timeout=100s")
    up.kubectl("delete", "pvc", "csi-pvc", "--timeout=100s")
    up.wait("no volume is left", lambda: not up.items("pv"))
    assert list((up.directory / "n" / "1" / "host/var/lib/csi-hostpath-data").glob("*/line")) == []
