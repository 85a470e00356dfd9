"""AWS's own EBS driver with upstream's manifests, on our nodes, sidecars and disk service.

Nothing is added to its manifests: it finds its instance by the instance metadata, its keys and its endpoint
in the Secret and the ConfigMap that they name, and its disks in the `/dev` that it mounts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.scenarios.test_bring_your_own_driver import apply, ready
from tests.support import aws_ebs_driver, peers
from tests.support.aws_ebs_driver import NAME, PEER
from tests.support.up import Up, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.peer("kubectl"),
    pytest.mark.peer(PEER),
]
PATIENCE = 100.0
ZONE = "us-east-1a"  # of both nodes


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    options = ("--manifest", str(aws_ebs_driver.manifests()), "--image", aws_ebs_driver.image_option())
    with Up(*options, nodes=2) as up:
        apply(up, *CLASSES)
        yield up
        assert up.stop() == 0, up.log()
        assert up.leftovers() == {}


def _class(name: str, **given: Any) -> dict[str, Any]:
    parameters = given.pop("parameters", {})
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": NAME,
        "allowVolumeExpansion": True,
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": parameters,
        **given,
    }


def _snapshot_class(name: str, **parameters: str) -> dict[str, Any]:
    meta = {"name": name}
    made = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": meta}
    return {**made, "driver": NAME, "deletionPolicy": "Delete", "parameters": parameters}


CLASSES = (
    _class("ext4", parameters={"type": "gp3", "tagSpecification_1": "team={{ .PVCNamespace }}"}),
    _class("xfs", parameters={"type": "gp3", "csi.storage.k8s.io/fstype": "xfs"}),
    _class("io2", parameters={"type": "io2", "iops": "100"}),
    _snapshot_class("plain"),
    _snapshot_class("fast", fastSnapshotRestoreAvailabilityZones=ZONE),
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttributesClass",
        "metadata": {"name": "quick"},
        "driverName": NAME,
        "parameters": {"iops": "4000", "throughput": "200"},
    },
)


def claim(name: str, storage_class: str, size: str = "1Gi", **spec: Any) -> dict[str, Any]:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {**wanted, "storageClassName": storage_class, **spec},
    }


def copied(name: str, storage_class: str, kind: str, source: str, **spec: Any) -> dict[str, Any]:
    group = {"apiGroup": "snapshot.storage.k8s.io"} if kind == "VolumeSnapshot" else {}
    return claim(name, storage_class, dataSource={**group, "kind": kind, "name": source}, **spec)


def snapshot(name: str, source: str, snapshot_class: str) -> dict[str, Any]:
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {
            "volumeSnapshotClassName": snapshot_class,
            "source": {"persistentVolumeClaimName": source},
        },
    }


def pod(name: str, node: str, mounted: list[str], raw: list[str], command: str) -> dict[str, Any]:
    """A pod with each claim at a path of its name, which is ready when its command is done."""
    container = {
        "name": "work",
        "image": "busybox",
        "command": ["sh", "-ec", f"{command}; touch /tmp/done; sleep infinity"],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/done"]}, "periodSeconds": 1},
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in mounted],
        "volumeDevices": [{"name": name, "devicePath": f"/dev/{name}"} for name in raw],
    }
    claims = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in (*mounted, *raw)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": claims,
        },
    }


def remove(up: Up, *what: str) -> None:
    up.kubectl("delete", *what, f"--timeout={PATIENCE:.0f}s")


def wait_until_nothing_is_left(up: Up) -> None:
    up.wait("no volume is left", lambda: not up.items("pv"), PATIENCE)
    up.wait("no attachment is left", lambda: not up.items("volumeattachments"), PATIENCE)
    assert up.aws("describe-volumes")["Volumes"] == []
    assert up.aws("describe-snapshots", "--owner-ids", "self")["Snapshots"] == []


def node_pod(up: Up) -> str:
    (found, *_) = up.items("pod", "-n", "kube-system", "-l", "app=ebs-csi-node")
    return str(found["metadata"]["name"])


def test_it_finds_its_instance_by_the_instance_metadata(up: Up) -> None:
    log = up.kubectl("logs", "-n", "kube-system", node_pod(up), "-c", "ebs-plugin")
    assert '"Retrieved metadata from IMDS"' in log
    (instance, _) = (r["Instances"][0] for r in up.aws("describe-instances")["Reservations"])
    (driver,) = up.get("csinode", instance["PrivateDnsName"])["spec"]["drivers"]
    assert (driver["nodeID"], driver["name"]) == (instance["InstanceId"], NAME)
    assert driver["allocatable"] == {"count": 26}  # 28, less the root disk and the network interface


def test_commands_of_its_image_are_run_by_the_program_that_stands_for_it(up: Up) -> None:
    command = ("-c", "ebs-plugin", "--", "/bin/aws-ebs-csi-driver", "--version")
    assert '"driverVersion": "v1' in up.kubectl("exec", "-n", "kube-system", node_pod(up), *command)
    # Its preStop hook is such a command, too.
    gone = node_pod(up)
    remove(up, "pod", "-n", "kube-system", gone)
    assert f"hook of container ebs-plugin of pod kube-system/{gone}" not in up.log(200)
    up.kubectl(
        "rollout", "status", "-n", "kube-system", "daemonset/ebs-csi-node", f"--timeout={PATIENCE:.0f}s"
    )
    ports = up.items("events", "-n", "kube-system", "--field-selector", "reason=Unhealthy")
    assert not [e["message"] for e in ports if ":9809" in e["message"]]  # of the registrar, which is ours


def test_disks_with_ext4_with_xfs_and_raw_live_their_whole_lives(up: Up) -> None:
    claims = [claim("a", "ext4"), claim("b", "xfs"), claim("c", "ext4", volumeMode="Block")]
    write = "echo one > /a/file; echo two > /b/file; echo three | dd of=/dev/c conv=fsync; sync"
    apply(up, *claims, pod("first", "worker-1", ["a", "b"], ["c"], write))
    ready(up, "first")
    volumes = up.aws("describe-volumes", "--filters", "Name=tag:team,Values=default")["Volumes"]
    assert len(volumes) == 2  # of the class with the tag
    assert "ext4" in up.kubectl("exec", "first", "--", "df", "-T", "/a")

    # Grow and modify in use.
    for name in ("b", "c"):
        more = '{"spec":{"resources":{"requests":{"storage":"9Gi"}},"volumeAttributesClassName":"quick"}}'
        up.kubectl("patch", "pvc", name, "-p", more)
    for name in ("b", "c"):
        up.wait(f"{name} is modified", partial(_is_modified, up, name), PATIENCE)
    size = (
        "test $(df --output=size -B1G /b | tail -1) -ge 8; test $(blockdev --getsize64 /dev/c) = 9663676416"
    )
    up.wait(
        "the new sizes are seen", lambda: not up.kubectl("exec", "first", "--", "sh", "-ec", size), PATIENCE
    )

    # Snapshots, one with fast restores, a restored disk, a clone.
    apply(up, snapshot("sa", "a", "fast"), snapshot("sc", "c", "plain"))
    for name in ("sa", "sc"):
        up.wait(f"{name} is ready", partial(_is_ready_to_use, up, name), PATIENCE)
    apply(
        up,
        copied("ra", "ext4", "VolumeSnapshot", "sa"),
        copied("rb", "xfs", "PersistentVolumeClaim", "b", size="9Gi"),
        copied("rc", "ext4", "VolumeSnapshot", "sc", size="9Gi", volumeMode="Block"),
    )
    read = "cat /ra/file /rb/file; dd if=/dev/rc bs=6 count=1"
    apply(up, pod("second", "worker-2", ["ra", "rb"], ["rc"], read))
    ready(up, "second")
    assert up.kubectl("logs", "second").splitlines()[:3] == ["one", "two", "three"]
    assert [v["Size"] for v in up.aws("describe-volumes", *_fast_restored())["Volumes"]] == [1]

    # The first disks move to the other node, where they still have their data.
    remove(up, "pod", "first")
    apply(up, pod("third", "worker-2", ["a", "b"], ["c"], "cat /a/file /b/file; dd if=/dev/c bs=6 count=1"))
    ready(up, "third")
    assert up.kubectl("logs", "third").splitlines()[:3] == ["one", "two", "three"]

    remove(up, "pod", "second", "third")
    remove(up, "pvc", "--all")
    remove(up, "volumesnapshot", "--all")
    up.wait("no snapshot is left", lambda: not up.items("volumesnapshotcontents"), PATIENCE)
    wait_until_nothing_is_left(up)


def _fast_restored() -> tuple[str, str]:
    return "--filters", "Name=fast-restored,Values=true"


def _is_modified(up: Up, name: str) -> bool:
    status = up.get("pvc", name)["status"]
    size, modified = status["capacity"]["storage"], status.get("currentVolumeAttributesClassName")
    return (size, modified) == ("9Gi", "quick")


def _is_ready_to_use(up: Up, name: str) -> bool:
    return bool(up.get("volumesnapshot", name)["status"].get("readyToUse"))


def test_two_nodes_share_a_raw_disk_with_multi_attach(up: Up) -> None:
    apply(up, claim("s", "io2", "4Gi", volumeMode="Block", accessModes=["ReadWriteMany"]))
    apply(up, pod("one", "worker-1", [], ["s"], "echo shared | dd of=/dev/s conv=fsync"))
    ready(up, "one")
    apply(up, pod("two", "worker-2", [], ["s"], "dd if=/dev/s bs=7 count=1"))
    ready(up, "two")
    assert up.kubectl("logs", "two").splitlines()[0] == "shared"
    (volume,) = up.aws("describe-volumes")["Volumes"]
    assert volume["MultiAttachEnabled"]
    assert len({a["InstanceId"] for a in volume["Attachments"]}) == 2
    remove(up, "pod", "one")
    up.wait(
        "one node has left",
        lambda: len(up.aws("describe-volumes")["Volumes"][0]["Attachments"]) == 1,
        PATIENCE,
    )
    again = ("exec", "two", "--", "sh", "-ec", "dd if=/dev/s bs=4096 count=1 iflag=direct | head -1")
    assert up.kubectl(*again) == "shared\n"
    remove(up, "pod", "two")
    remove(up, "pvc", "s")
    wait_until_nothing_is_left(up)


def test_a_disk_survives_the_death_of_everything(up: Up) -> None:
    """The whole cluster is killed, and its next start finds disk, mounts and driver again."""
    apply(up, claim("k", "ext4"), pod("kept", "worker-1", ["k"], [], "echo kept > /k/file; sync"))
    ready(up, "kept")
    up.kill()
    up.start()
    wait_until("the pod runs", lambda: up.phase("kept") == "Running", PATIENCE)
    assert up.kubectl("exec", "kept", "--", "cat", "/k/file") == "kept\n"
    remove(up, "pod", "kept")
    remove(up, "pvc", "k")
    wait_until_nothing_is_left(up)


def test_its_command_alone_is_enough() -> None:
    """It is discovered with the API server and the metadata that it finds when it is started."""
    command = f"{peers.path(PEER)} all --endpoint=$CSI_ENDPOINT"
    with Up("--driver-command", command, nodes=1) as up:
        assert not up.kubectl("get", "node", "probe", "--ignore-not-found")
        apply(up, claim("a", NAME), pod("one", "worker-1", ["a"], [], "echo one > /a/file"))
        ready(up, "one")
        remove(up, "pod", "one")
        remove(up, "pvc", "a")
        wait_until_nothing_is_left(up)
        assert up.stop() == 0, up.log()
        assert up.leftovers() == {}
