"""Two stories of claims on a real cluster, seen with kubectl and aws: a disk made by hand becomes a
volume, and a volume outlives its claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

PATIENCE = 60.0
ZONE = "topology.ebs.csi.aws.com/zone"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=4)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def pod(name: str, claim: str, zone: str = "") -> str:
    selector = f"  nodeSelector: {{topology.kubernetes.io/zone: {zone}}}\n" if zone else ""
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
{selector}  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: busybox
      command: ["sleep", "86400"]
      volumeMounts: [{{name: data, mountPath: /data}}]
  volumes:
    - name: data
      persistentVolumeClaim: {{claimName: {claim}}}
"""


def phase(up: Up, kind: str, name: str) -> str:
    status: dict[str, Any] = up.get(kind, name)["status"]
    return str(status.get("phase", ""))


def gone(up: Up, kind: str, name: str) -> None:
    def is_gone() -> bool:
        return not up.kubectl("get", kind, name, "--ignore-not-found")

    wait_until(f"{kind} {name} is gone", is_gone, PATIENCE)


@pytest.mark.peer("aws")
def test_a_disk_made_by_hand_becomes_a_static_volume(up: Up) -> None:
    zone = "us-east-1b"
    disk = up.aws("create-volume", "--size", "2", "--availability-zone", zone, "--volume-type", "gp3")[
        "VolumeId"
    ]
    up.apply(f"""
apiVersion: v1
kind: PersistentVolume
metadata: {{name: by-hand}}
spec:
  capacity: {{storage: 2Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  csi:
    driver: ebs.csi.aws.com
    volumeHandle: {disk}
    fsType: ext4
    volumeAttributes: {{partition: ""}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{{key: {ZONE}, operator: In, values: [{zone}]}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: wants-by-hand}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: by-hand
  resources: {{requests: {{storage: 2Gi}}}}
""")
    wait_until("it is bound", lambda: phase(up, "pvc", "wants-by-hand") == "Bound", PATIENCE)
    assert phase(up, "pv", "by-hand") == "Bound"
    up.apply(pod("reads-by-hand", "wants-by-hand"))
    up.wait_running("reads-by-hand", PATIENCE)
    node = up.get("pod", "reads-by-hand")["spec"]["nodeName"]
    assert up.get("node", node)["metadata"]["labels"]["topology.kubernetes.io/zone"] == zone
    up.kubectl("exec", "reads-by-hand", "--", "sh", "-c", "echo hello > /data/line && sync")
    shown = up.aws("describe-volumes", "--volume-ids", disk)["Volumes"][0]
    assert shown["State"] == "in-use"
    assert shown["Attachments"][0]["State"] == "attached"
    up.kubectl("delete", "pod", "reads-by-hand", "--wait=false")
    gone(up, "pod", "reads-by-hand")
    up.kubectl("delete", "pvc", "wants-by-hand", "--wait=false")
    gone(up, "pvc", "wants-by-hand")
    wait_until("it is released", lambda: phase(up, "pv", "by-hand") == "Released", PATIENCE)
    # What Retain is for: the claimRef is cleared by hand, and the next claim finds the data.
    up.kubectl("patch", "pv", "by-hand", "--type=merge", "-p", '{"spec":{"claimRef":null}}')
    up.apply("""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: again}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  resources: {requests: {storage: 1Gi}}
""")
    wait_until("it is bound again", lambda: phase(up, "pvc", "again") == "Bound", PATIENCE)
    up.apply(pod("reads-again", "again"))
    up.wait_running("reads-again", PATIENCE)
    assert up.kubectl("exec", "reads-again", "--", "cat", "/data/line").strip() == "hello"
    up.kubectl("delete", "pod", "reads-again", "--wait=false")
    gone(up, "pod", "reads-again")
    up.kubectl("delete", "pvc", "again", "--wait=false")
    gone(up, "pvc", "again")
    up.kubectl("delete", "pv", "by-hand", "--wait=false")
    gone(up, "pv", "by-hand")
    assert up.aws("describe-volumes", "--volume-ids", disk)["Volumes"][0]["State"] == "available"
    up.aws("delete-volume", "--volume-id", disk)


@pytest.mark.peer("aws")
def test_a_hundred_gibibytes_that_outlive_their_claim(up: Up) -> None:
    up.apply("""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: ledger}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: gp3-retain
  resources: {requests: {storage: 100Gi}}
""")
    # claim: Pending, until a pod is scheduled
    reported = wait_until("it waits", lambda: events(up, "ledger", "WaitForFirstConsumer"), PATIENCE)
    assert reported == ["waiting for first consumer to be created before binding"]
    assert phase(up, "pvc", "ledger") == "Pending"
    assert up.aws("describe-volumes")["Volumes"] == []
    up.apply(pod("books", "ledger", zone="us-east-1b"))
    up.wait_running("books", PATIENCE)
    # claim: Pending → Bound; volume: Available → Bound
    mine = up.get("pvc", "ledger")
    assert mine["status"]["phase"] == "Bound"
    assert mine["status"]["capacity"] == {"storage": "100Gi"}
    volume = mine["spec"]["volumeName"]
    assert volume == f"pvc-{mine['metadata']['uid']}"
    held = up.get("pv", volume)
    assert held["status"]["phase"] == "Bound"
    assert held["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    disk = held["spec"]["csi"]["volumeHandle"]
    # attachment: created → attached
    (attachment,) = [
        a for a in up.items("volumeattachment") if a["spec"]["source"]["persistentVolumeName"] == volume
    ]
    assert attachment["status"]["attached"] is True
    (shown,) = up.aws("describe-volumes", "--volume-ids", disk)["Volumes"]
    assert (shown["Size"], shown["VolumeType"], shown["AvailabilityZone"]) == (100, "gp3", "us-east-1b")
    assert shown["State"] == "in-use"
    # the pod ends: the claim stays Bound, the attachment goes
    up.kubectl("delete", "pod", "books", "--wait=false")
    gone(up, "pod", "books")
    gone(up, "volumeattachment", attachment["metadata"]["name"])
    assert phase(up, "pvc", "ledger") == "Bound"
    assert phase(up, "pv", volume) == "Bound"
    # the claim is deleted: the volume is Released, and the disk stays
    up.kubectl("delete", "pvc", "ledger", "--wait=false")
    gone(up, "pvc", "ledger")
    wait_until("it is released", lambda: phase(up, "pv", volume) == "Released", PATIENCE)
    assert up.aws("describe-volumes", "--volume-ids", disk)["Volumes"][0]["State"] == "available"
    # with the policy Delete, the disk goes too
    patch = '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}'
    up.kubectl("patch", "pv", volume, "--type=merge", "-p", patch)
    gone(up, "pv", volume)
    assert up.aws("describe-volumes")["Volumes"] == []


def events(up: Up, about: str, reason: str) -> list[str]:
    found = up.items("events", "--field-selector", f"involvedObject.name={about},reason={reason}")
    return [e["message"] for e in found]


def test_a_claim_that_waits_is_explained_and_then_waits_no_more(up: Up) -> None:
    up.apply("""
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: asked}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: gp3
  resources: {requests: {storage: 1Gi}}
""")
    code, reported = up.explain("pvc/asked")
    assert (code, reported.partition(", and")[0]) == (3, "pvc/default/asked waits: no pod uses the claim yet")
    assert "Not known" not in reported
    up.apply(pod("asks", "asked", zone="nowhere"))
    up.describe("pod", "asks", "FailedScheduling")
    for what in ("pvc/asked", "pod/asks"):
        code, reported = up.explain(what)
        assert code == 3
        assert "worker-1, worker-2, worker-3, worker-4: node(s) didn't match Pod's node affinity" in reported
    _explained_to_others(up)
    up.kubectl("delete", "pod", "asks")
    up.apply(pod("asks", "asked"))
    up.wait_running("asks")
    assert up.explain("pvc/asked")[0] == up.explain("pod/asks")[0] == up.explain("node/worker-1")[0] == 0
    up.kubectl("delete", "pod,pvc", "asks", "asked", "--ignore-not-found", "--wait=true")


def _explained_to_others(up: Up) -> None:
    """Somebody who may read one namespace, from anywhere: less is known, and that is said."""
    up.kubectl("create", "serviceaccount", "reader")
    up.kubectl("create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader")
    token = up.kubectl("create", "token", "reader").strip()
    away = up.directory / "away"
    away.mkdir()
    config = str(away / "config")
    (away / "config").write_text(up.kubectl("config", "view", "--raw", "--flatten"))
    up.kubectl("config", "set-credentials", "reader", f"--token={token}", "--kubeconfig", config)
    up.kubectl("config", "set-context", "--current", "--user=reader", "--kubeconfig", config)
    up.describe("pvc", "asked", "waiting for pod asks to be scheduled")  # all that a reader has to go by
    code, reported = up.explain("pvc/asked", "--kubeconfig", config)
    assert code == 3
    assert "waiting for pod asks to be scheduled" in reported
    assert "Not known - persistentvolumes: " in reported
    assert "timers, backoff and mounts" in reported
    code, reported = up.explain("pod/asks", "--kubeconfig", config)
    assert code == 3
    assert "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector" in reported
    assert up.explain("pvc/nix", "--kubeconfig", config) == (
        1,
        'volplane: persistentvolumeclaims "nix" not found',
    )
    assert up.explain("pvc/asked", "--kubeconfig", "/nowhere")[0] == 1
    assert up.explain("thing/asked", "--kubeconfig", config)[0] == 2
