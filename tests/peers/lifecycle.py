"""What users do with volumes, for every pairing of sidecars and drivers.

Each function checks what the sidecar leaves on the objects, and reads the data back.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.peers import peer_cluster
from tests.peers.peer_cluster import NODE, PeerCluster

TEXT = "a line that must be found again"
SUM = hashlib.sha256(f"{TEXT}\n".encode()).hexdigest()
WRITE = f"echo '{TEXT}' > /data/line; sync /data/line"
READ = f'test "$(sha256sum < /data/line | cut -d" " -f1)" = {SUM}'
DATA = "/data"


def provision(cluster: PeerCluster, kind: str, driver: str) -> None:
    """A claim gets a volume of its driver, and takes it along when it goes."""
    cluster.claim("made", kind)
    volume = cluster.bound("made")
    name = volume["metadata"]["name"]
    assert volume["spec"]["csi"]["driver"] == driver
    assert volume["spec"]["csi"]["volumeHandle"]
    assert volume["spec"]["capacity"]["storage"] == "1Gi"
    assert volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == driver
    assert "external-provisioner.volume.kubernetes.io/finalizer" in volume["metadata"]["finalizers"]
    cluster.delete("pvc", "made")
    cluster.gone("pv", name)


def mount(cluster: PeerCluster, kind: str, *, node: str = NODE) -> None:
    """What one pod writes the next one reads, on `node`; in between the volume is on no node."""
    cluster.claim("kept", kind)
    cluster.pod("mount-writer", WRITE, {DATA: "kept"})
    name = cluster.bound("kept")["metadata"]["name"]
    assert [a["status"]["attached"] for a in attachments(cluster, name)] == [True]
    cluster.delete("pod", "mount-writer")
    cluster.wait("it is detached", lambda: not attachments(cluster, name))
    cluster.pod("mount-reader", READ, {DATA: "kept"}, node=node)
    assert [a["spec"]["nodeName"] for a in attachments(cluster, name)] == [node]
    remove(cluster, "mount-reader", "kept")


def attach(cluster: PeerCluster, kind: str, driver: str, finalizer: str) -> None:
    """An attachment is the attacher's while it lasts: its finalizers, its word that the volume is there."""
    cluster.claim("moved", kind)
    cluster.pod("attach-holder", WRITE, {DATA: "moved"})
    name = cluster.bound("moved")["metadata"]["name"]
    (made,) = attachments(cluster, name)
    assert made["spec"]["attacher"] == driver
    assert made["status"]["attached"] is True
    assert finalizer in made["metadata"]["finalizers"]
    assert finalizer in cluster.up.get("pv", name)["metadata"]["finalizers"]
    cluster.delete("pod", "attach-holder")
    cluster.gone("volumeattachment", made["metadata"]["name"])
    remove(cluster, "", "moved")
    cluster.gone("pv", name)


def grow(cluster: PeerCluster, kind: str) -> None:
    """A claim in use asks for more, and gets it with its data in place."""
    cluster.claim("grown", kind)
    cluster.pod("grow-user", WRITE, {DATA: "grown"})
    asked = json.dumps({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    cluster.up.kubectl("patch", "pvc", "grown", "--type=merge", "-p", asked)
    cluster.wait("the claim has grown", lambda: _capacity(cluster, "grown") == "2Gi")
    assert not cluster.up.get("pvc", "grown")["status"].get("conditions")
    assert cluster.bound("grown")["spec"]["capacity"]["storage"] == "2Gi"
    cluster.up.kubectl("exec", "grow-user", "-c", "stay", "--", "sh", "-ec", READ)
    remove(cluster, "grow-user", "grown")


def _capacity(cluster: PeerCluster, claim: str) -> str:
    size: str = cluster.up.get("pvc", claim)["status"]["capacity"]["storage"]
    return size


def restore(cluster: PeerCluster, kind: str) -> None:
    """A snapshot is taken, becomes ready, and a new claim starts with what it holds."""
    cluster.claim("original", kind)
    cluster.pod("restore-user", WRITE, {DATA: "original"})
    cluster.apply(peer_cluster.snapshot("kept", "original", of=kind))
    cluster.wait("the snapshot is ready", lambda: _status(cluster, "kept").get("readyToUse"))
    content = cluster.up.get(
        "volumesnapshotcontent", _status(cluster, "kept")["boundVolumeSnapshotContentName"]
    )
    assert content["spec"]["deletionPolicy"] == "Delete"
    assert content["status"]["snapshotHandle"]
    cluster.up.kubectl(
        "exec", "restore-user", "-c", "stay", "--", "sh", "-c", "rm /data/line"
    )  # after the snapshot
    cluster.claim("restored", kind, **peer_cluster.from_snapshot("kept"))
    cluster.pod("restore-reader", READ, {DATA: "restored"})
    remove(cluster, "restore-reader", "restored")
    cluster.delete("volumesnapshot", "kept")
    cluster.gone("volumesnapshotcontent", content["metadata"]["name"])
    remove(cluster, "restore-user", "original")


def _status(cluster: PeerCluster, snapshot: str) -> dict[str, Any]:
    status: dict[str, Any] = cluster.up.get("volumesnapshot", snapshot).get("status", {})
    return status


def clone(cluster: PeerCluster, kind: str) -> None:
    """A claim made of another claim starts with its data and is a volume of its own."""
    cluster.claim("source", kind)
    cluster.pod("clone-user", WRITE, {DATA: "source"})
    remove(cluster, "clone-user", "")
    cluster.claim("copy", kind, **peer_cluster.from_claim("source"))
    cluster.pod("clone-reader", READ, {DATA: "copy"})
    handles = {cluster.bound(claim)["spec"]["csi"]["volumeHandle"] for claim in ("source", "copy")}
    assert len(handles) == 2
    remove(cluster, "clone-reader", "copy")
    remove(cluster, "", "source")


def block(cluster: PeerCluster, kind: str) -> None:
    """A raw device in a pod, of the claim's size, that keeps what is written at its start."""
    cluster.claim("raw", kind, volumeMode="Block")
    write = f"printf '%s' '{TEXT}' | dd of=/dev/raw conv=fsync,notrunc 2>/dev/null"
    read = f"test \"$(dd if=/dev/raw bs={len(TEXT)} count=1 2>/dev/null)\" = '{TEXT}'"
    cluster.pod("block-writer", f"test -b /dev/raw; {write}", {"/dev/raw": "raw"}, block=True)
    remove(cluster, "block-writer", "")
    cluster.pod("block-reader", read, {"/dev/raw": "raw"}, block=True)
    remove(cluster, "block-reader", "raw")


def attachments(cluster: PeerCluster, volume: str) -> list[Any]:
    found = cluster.up.items("volumeattachments")
    return [a for a in found if a["spec"]["source"].get("persistentVolumeName") == volume]


def remove(cluster: PeerCluster, pod: str, claim: str) -> None:
    if pod:
        cluster.delete("pod", pod)
    if claim:
        cluster.delete("pvc", claim)


def refusals(cluster: PeerCluster) -> list[str]:
    """Requests that the API server has refused to anybody, by its own count."""
    reported = cluster.up.kubectl("get", "--raw", "/metrics").splitlines()
    counted = (line for line in reported if line.startswith("apiserver_request_total{"))
    return [line for line in counted if 'code="401"' in line or 'code="403"' in line]
