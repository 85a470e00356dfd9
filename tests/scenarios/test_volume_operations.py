"""What is done to volumes on the EBS driver, with checked data: snapshots, clones, growth, raw devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.up import Up, wait_until
from tests.support.vm_tests import CAP_SYS_RESOURCE
from volplane.rules import resizing

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

XFS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: xfs
provisioner: ebs.csi.aws.com
parameters:
  csi.storage.k8s.io/fstype: xfs
allowVolumeExpansion: true
"""
ATTRIBUTES = """
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata:
  name: quick
driverName: ebs.csi.aws.com
parameters:
  iops: "4000"
  throughput: "250"
"""
MIB = 1 << 20


def claim(name: str, size: str = "1Gi", cls: str = "standard", **more: str) -> str:
    lines = "".join(f"  {key}: {value}\n" for key, value in more.items())
    return f"""
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: {cls}
  resources:
    requests:
      storage: {size}
{lines}"""


def pod(name: str, use: str, *, block: bool = False) -> str:
    where = (
        "volumeDevices: [{name: v, devicePath: /dev/data}]"
        if block
        else "volumeMounts: [{name: v, mountPath: /data}]"
    )
    return f"""
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: busybox
      command: [sleep, "10000"]
      {where}
  volumes:
    - name: v
      persistentVolumeClaim:
        claimName: {use}
"""


SNAPSHOT = """
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata:
  name: {name}
spec:
  source:
    persistentVolumeClaimName: {of}
"""


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=2)
    with cluster:
        cluster.apply(XFS)
        yield cluster
        cluster.kubectl("delete", "pods,volumesnapshots,pvc", "--all", "--timeout=60s")
        wait_until("no volume is left", lambda: cluster.kubectl("get", "pv", "-o", "name") == "", 60)
        left = cluster.aws("describe-volumes")["Volumes"], cluster.aws("describe-snapshots")["Snapshots"]
        assert left == ([], [])
    assert cluster.leftovers() == {}


def run(up: Up, name: str, use: str, *, block: bool = False) -> None:
    up.apply(pod(name, use, block=block))
    up.wait_running(name, 60)


def sh(up: Up, name: str, command: str) -> str:
    return up.kubectl("exec", name, "--", "sh", "-c", command).strip()


def write(up: Up, name: str, file: str = "/data/file") -> str:
    """Sixteen random mebibytes; their checksum."""
    sh(up, name, f"head -c {16 * MIB} /dev/urandom > {file} && sync")
    return read(up, name, file)


def read(up: Up, name: str, file: str = "/data/file") -> str:
    return sh(up, name, f"head -c {16 * MIB} {file} | sha256sum").split()[0]


def end(up: Up, *pods: str) -> None:
    up.kubectl("delete", "pod", *pods, "--timeout=60s")


def grow(up: Up, name: str, size: str) -> None:
    patch = f'{{"spec":{{"resources":{{"requests":{{"storage":"{size}"}}}}}}}}'
    up.kubectl("patch", "pvc", name, "-p", patch)


def status(up: Up, name: str) -> dict[str, Any]:
    found: dict[str, Any] = up.get("pvc", name)["status"]
    return found


def has_grown(up: Up, name: str, size: str) -> bool:
    now = status(up, name)
    return bool(now["capacity"]["storage"] == size and not now.get("conditions"))


def mebibytes(up: Up, name: str) -> int:
    """The file system as the pod sees it."""
    return int(sh(up, name, "df -m /data").splitlines()[-1].split()[1])


def ready(up: Up, name: str) -> dict[str, Any]:
    def is_ready() -> bool:
        return bool(up.get("volumesnapshot", name).get("status", {}).get("readyToUse"))

    wait_until(f"snapshot {name} is ready", is_ready, 60)
    found: dict[str, Any] = up.get("volumesnapshot", name)["status"]
    return found


def test_the_driver_brings_its_sidecars_and_its_class(up: Up) -> None:
    (controller, *_) = up.items("pods", "-n", "kube-system", "-l", "app=ebs-csi-controller")
    names = {c["name"] for c in controller["spec"]["containers"]}
    assert {"csi-resizer", "csi-snapshotter"} <= names
    assert all(c["ready"] for c in controller["status"]["containerStatuses"])
    assert "csi-aws-vsc" in up.kubectl("get", "volumesnapshotclass")


def test_a_snapshot_restores_what_was_there_when_it_was_taken(up: Up) -> None:
    up.apply(claim("origin"))
    run(up, "writer", "origin")
    before = write(up, "writer")
    up.apply(SNAPSHOT.format(name="moment", of="origin"))
    reported = ready(up, "moment")
    assert reported["restoreSize"] == "1Gi"
    assert write(up, "writer") != before
    source = "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: moment}"
    up.apply(claim("restored", "2Gi", dataSource=source))
    run(up, "reader", "restored")
    assert read(up, "reader") == before
    assert "moment" in up.kubectl("get", "volumesnapshot")
    end(up, "writer", "reader")
    up.kubectl("delete", "volumesnapshot", "moment", "--timeout=60s")
    assert up.aws("describe-snapshots")["Snapshots"] == []


def test_a_clone_has_the_data_of_its_source_and_a_life_of_its_own(up: Up) -> None:
    up.apply(claim("mother"))
    run(up, "first", "mother")
    before = write(up, "first")
    up.apply(claim("daughter", dataSource="{kind: PersistentVolumeClaim, name: mother}"))
    run(up, "second", "daughter")
    assert read(up, "second") == before
    after = write(up, "second")
    assert after != before
    assert read(up, "first") == before
    end(up, "first", "second")


def test_a_mounted_xfs_volume_grows_under_its_pod(up: Up) -> None:
    up.apply(claim("roomy", cls="xfs"))
    run(up, "grower", "roomy")
    before = write(up, "grower")
    assert mebibytes(up, "grower") < 1024
    grow(up, "roomy", "2Gi")
    wait_until("the claim has grown", lambda: has_grown(up, "roomy", "2Gi"), 60)
    assert mebibytes(up, "grower") > 1500
    assert read(up, "grower") == before
    assert up.get("pod", "grower")["status"]["containerStatuses"][0]["restartCount"] == 0
    reasons = ("ExternalExpanding", "Resizing", "FileSystemResizeRequired", "FileSystemResizeSuccessful")
    up.describe("pvc", "roomy", *reasons)
    end(up, "grower")


def test_an_ext4_volume_grows_while_nobody_uses_it_and_is_bigger_at_its_next_mount(up: Up) -> None:
    up.apply(claim("still"))
    run(up, "before", "still")
    written = write(up, "before")
    end(up, "before")
    grow(up, "still", "2Gi")
    wait_until(
        "the volume has grown",
        lambda: status(up, "still").get("allocatedResourceStatuses") == {"storage": "NodeResizePending"},
        60,
    )
    waiting = {c["type"]: c.get("message") for c in status(up, "still")["conditions"]}
    assert waiting["FileSystemResizePending"] == resizing.WAITING
    run(up, "after", "still")
    wait_until("the claim has grown", lambda: has_grown(up, "still", "2Gi"), 60)
    assert mebibytes(up, "after") > 1500
    assert read(up, "after") == written
    end(up, "after")


@pytest.mark.capability(CAP_SYS_RESOURCE, long=True)
def test_a_mounted_ext4_volume_grows_under_its_pod(up: Up) -> None:
    up.apply(claim("busy"))
    run(up, "busy", "busy")
    before = write(up, "busy")
    grow(up, "busy", "2Gi")
    wait_until("the claim has grown", lambda: has_grown(up, "busy", "2Gi"), 60)
    assert mebibytes(up, "busy") > 1500
    assert read(up, "busy") == before
    end(up, "busy")


def test_a_growth_that_cannot_be_is_given_up_for_a_smaller_one(up: Up) -> None:
    up.apply(claim("greedy", cls="xfs"))
    run(up, "greedy", "greedy")
    before = write(up, "greedy")
    grow(up, "greedy", "100Ti")
    wait_until(
        "it is called infeasible",
        lambda: (
            status(up, "greedy").get("allocatedResourceStatuses") == {"storage": "ControllerResizeInfeasible"}
        ),
        60,
    )
    up.describe("pvc", "greedy", "VolumeResizeFailed")
    refused = up.kubectl("patch", "pvc", "greedy", "-p", _request("1Gi"), check=False)
    assert "field can not be less than status.capacity" in refused
    grow(up, "greedy", "2Gi")
    wait_until("the claim has grown", lambda: has_grown(up, "greedy", "2Gi"), 60)
    assert mebibytes(up, "greedy") > 1500
    assert read(up, "greedy") == before
    end(up, "greedy")


def _request(size: str) -> str:
    return f'{{"spec":{{"resources":{{"requests":{{"storage":"{size}"}}}}}}}}'


def test_a_volume_gets_the_properties_of_another_attributes_class(up: Up) -> None:
    up.apply(ATTRIBUTES)
    up.apply(claim("plain", "10Gi"))
    wait_until("the claim is bound", lambda: status(up, "plain").get("phase") == "Bound", 60)
    up.kubectl("patch", "pvc", "plain", "-p", '{"spec":{"volumeAttributesClassName":"quick"}}')
    wait_until(
        "the volume is modified",
        lambda: status(up, "plain").get("currentVolumeAttributesClassName") == "quick",
        60,
    )
    volume = up.get("pv", up.get("pvc", "plain")["spec"]["volumeName"])
    assert volume["spec"]["volumeAttributesClassName"] == "quick"
    (disk,) = up.aws("describe-volumes", "--volume-ids", volume["spec"]["csi"]["volumeHandle"])["Volumes"]
    assert (disk["Iops"], disk["Throughput"]) == (4000, 250)
    up.describe("pvc", "plain", "VolumeModifySuccessful")


def test_a_raw_device_goes_from_pod_to_pod_with_its_data(up: Up) -> None:
    up.apply(claim("raw", volumeMode="Block"))
    run(up, "one", "raw", block=True)
    sh(up, "one", f"head -c {16 * MIB} /dev/urandom | dd of=/dev/data bs=1M conv=fsync 2>/dev/null")
    before = read(up, "one", "/dev/data")
    end(up, "one")
    run(up, "two", "raw", block=True)
    assert read(up, "two", "/dev/data") == before
    grow(up, "raw", "2Gi")
    wait_until("the claim has grown", lambda: has_grown(up, "raw", "2Gi"), 60)
    assert int(sh(up, "two", "blockdev --getsize64 /dev/data")) == 2 << 30
    assert read(up, "two", "/dev/data") == before
    end(up, "two")


TOGETHER = """
apiVersion: v1
kind: Pod
metadata:
  name: both
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: busybox
      command: [sleep, "10000"]
      volumeMounts: [{name: d, mountPath: /data}, {name: l, mountPath: /log}]
  volumes:
    - {name: d, persistentVolumeClaim: {claimName: db-data}}
    - {name: l, persistentVolumeClaim: {claimName: db-log}}
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata:
  name: db
spec:
  source:
    selector: {matchLabels: {app: db}}
"""
INLINE = """
apiVersion: v1
kind: Pod
metadata:
  name: cache
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: busybox
      command: [sleep, "10000"]
      volumeMounts: [{name: v, mountPath: /data}]
  volumes:
    - name: v
      csi:
        driver: ebs.csi.aws.com
        fsType: xfs
        volumeAttributes: {size: 2Gi, type: gp3}
"""


def test_volumes_that_belong_together_are_taken_together(up: Up) -> None:
    for name in ("db-data", "db-log"):
        up.apply(claim(name).replace(f"name: {name}", f"name: {name}\n  labels: {{app: db}}"))
    bound = lambda: {status(up, name).get("phase") for name in ("db-data", "db-log")} == {"Bound"}  # noqa: E731
    wait_until("both claims are bound", bound, 60)
    runs, taken = TOGETHER.split("---")
    up.apply(runs)
    up.wait_running("both", 60)
    before = write(up, "both"), write(up, "both", "/log/file")
    up.apply(taken)
    wait_until(
        "the group is ready",
        lambda: up.get("volumegroupsnapshot", "db").get("status", {}).get("readyToUse"),
        60,
    )
    members = up.items("volumesnapshots")
    wait_until("its members are ready", lambda: all(ready(up, m["metadata"]["name"]) for m in members), 60)
    assert len(members) == 2
    end(up, "both")
    found = []
    for number, member in enumerate(members):
        source = (
            f"{{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: {member['metadata']['name']}}}"
        )
        up.apply(claim(f"again-{number}", dataSource=source))
        run(up, f"again-{number}", f"again-{number}")
        found.append(read(up, f"again-{number}"))
        end(up, f"again-{number}")
    assert sorted(found) == sorted(before)
    up.kubectl("delete", "volumegroupsnapshot", "db", "--timeout=60s")
    wait_until("its snapshots are gone", lambda: up.aws("describe-snapshots")["Snapshots"] == [], 60)


def test_a_volume_written_into_a_pod_comes_and_goes_with_it(up: Up) -> None:
    known = {v["VolumeId"] for v in up.aws("describe-volumes")["Volumes"]}
    up.apply(INLINE)
    up.wait_running("cache", 60)
    assert " xfs " in sh(up, "cache", "mount | grep ' /data '")
    assert mebibytes(up, "cache") > 1500
    write(up, "cache")
    made = [v for v in up.aws("describe-volumes")["Volumes"] if v["VolumeId"] not in known]
    assert [(v["Size"], v["State"]) for v in made] == [(2, "in-use")]
    assert up.items("volumeattachments") == []
    end(up, "cache")
    gone = lambda: {v["VolumeId"] for v in up.aws("describe-volumes")["Volumes"]} == known  # noqa: E731
    wait_until("its disk is gone", gone, 60)
