"""What users do with volumes, told once for every pairing of sidecars and drivers.

Each story says what the sidecar in question leaves on the objects, and checks the data with its own eyes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.peers import stage as stages
from tests.peers.stage import NODE, Stage

TEXT = "a line that must be found again"
SUM = hashlib.sha256(f"{TEXT}\n".encode()).hexdigest()
WRITE = f"echo '{TEXT}' > /data/line; sync /data/line"
READ = f'test "$(sha256sum < /data/line | cut -d" " -f1)" = {SUM}'
DATA = "/data"


def provision(stage: Stage, kind: str, driver: str) -> None:
    """A claim gets a volume of its driver, and takes it along when it goes."""
    stage.claim("made", kind)
    volume = stage.bound("made")
    name = volume["metadata"]["name"]
    assert volume["spec"]["csi"]["driver"] == driver
    assert volume["spec"]["csi"]["volumeHandle"]
    assert volume["spec"]["capacity"]["storage"] == "1Gi"
    assert volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == driver
    assert "external-provisioner.volume.kubernetes.io/finalizer" in volume["metadata"]["finalizers"]
    stage.delete("pvc", "made")
    stage.gone("pv", name)


def mount(stage: Stage, kind: str, *, node: str = NODE) -> None:
    """What one pod writes the next one reads, on `node`; in between the volume is on no node."""
    stage.claim("kept", kind)
    stage.pod("mount-writer", WRITE, {DATA: "kept"})
    name = stage.bound("kept")["metadata"]["name"]
    assert [a["status"]["attached"] for a in attachments(stage, name)] == [True]
    stage.delete("pod", "mount-writer")
    stage.wait("it is detached", lambda: not attachments(stage, name))
    stage.pod("mount-reader", READ, {DATA: "kept"}, node=node)
    assert [a["spec"]["nodeName"] for a in attachments(stage, name)] == [node]
    remove(stage, "mount-reader", "kept")


def attach(stage: Stage, kind: str, driver: str, finalizer: str) -> None:
    """An attachment is the attacher's while it lasts: its finalizers, its word that the volume is there."""
    stage.claim("moved", kind)
    stage.pod("attach-holder", WRITE, {DATA: "moved"})
    name = stage.bound("moved")["metadata"]["name"]
    (made,) = attachments(stage, name)
    assert made["spec"]["attacher"] == driver
    assert made["status"]["attached"] is True
    assert finalizer in made["metadata"]["finalizers"]
    assert finalizer in stage.up.get("pv", name)["metadata"]["finalizers"]
    stage.delete("pod", "attach-holder")
    stage.gone("volumeattachment", made["metadata"]["name"])
    remove(stage, "", "moved")
    stage.gone("pv", name)


def grow(stage: Stage, kind: str) -> None:
    """A claim in use asks for more, and gets it with its data in place."""
    stage.claim("grown", kind)
    stage.pod("grow-user", WRITE, {DATA: "grown"})
    asked = json.dumps({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    stage.up.kubectl("patch", "pvc", "grown", "--type=merge", "-p", asked)
    stage.wait("the claim has grown", lambda: _capacity(stage, "grown") == "2Gi")
    assert not stage.up.get("pvc", "grown")["status"].get("conditions")
    assert stage.bound("grown")["spec"]["capacity"]["storage"] == "2Gi"
    stage.up.kubectl("exec", "grow-user", "-c", "stay", "--", "sh", "-ec", READ)
    remove(stage, "grow-user", "grown")


def _capacity(stage: Stage, claim: str) -> str:
    size: str = stage.up.get("pvc", claim)["status"]["capacity"]["storage"]
    return size


def restore(stage: Stage, kind: str) -> None:
    """A snapshot is taken, becomes ready, and a new claim starts with what it holds."""
    stage.claim("original", kind)
    stage.pod("restore-user", WRITE, {DATA: "original"})
    stage.apply(stages.snapshot("kept", "original", of=kind))
    stage.wait("the snapshot is ready", lambda: _status(stage, "kept").get("readyToUse"))
    content = stage.up.get("volumesnapshotcontent", _status(stage, "kept")["boundVolumeSnapshotContentName"])
    assert content["spec"]["deletionPolicy"] == "Delete"
    assert content["status"]["snapshotHandle"]
    stage.up.kubectl(
        "exec", "restore-user", "-c", "stay", "--", "sh", "-c", "rm /data/line"
    )  # after the snapshot
    stage.claim("restored", kind, **stages.from_snapshot("kept"))
    stage.pod("restore-reader", READ, {DATA: "restored"})
    remove(stage, "restore-reader", "restored")
    stage.delete("volumesnapshot", "kept")
    stage.gone("volumesnapshotcontent", content["metadata"]["name"])
    remove(stage, "restore-user", "original")


def _status(stage: Stage, snapshot: str) -> dict[str, Any]:
    status: dict[str, Any] = stage.up.get("volumesnapshot", snapshot).get("status", {})
    return status


def clone(stage: Stage, kind: str) -> None:
    """A claim made of another claim starts with its data and is a volume of its own."""
    stage.claim("source", kind)
    stage.pod("clone-user", WRITE, {DATA: "source"})
    remove(stage, "clone-user", "")
    stage.claim("copy", kind, **stages.from_claim("source"))
    stage.pod("clone-reader", READ, {DATA: "copy"})
    handles = {stage.bound(claim)["spec"]["csi"]["volumeHandle"] for claim in ("source", "copy")}
    assert len(handles) == 2
    remove(stage, "clone-reader", "copy")
    remove(stage, "", "source")


def block(stage: Stage, kind: str) -> None:
    """A raw device in a pod, of the claim's size, that keeps what is written at its start."""
    stage.claim("raw", kind, volumeMode="Block")
    write = f"printf '%s' '{TEXT}' | dd of=/dev/raw conv=fsync,notrunc 2>/dev/null"
    read = f"test \"$(dd if=/dev/raw bs={len(TEXT)} count=1 2>/dev/null)\" = '{TEXT}'"
    stage.pod("block-writer", f"test -b /dev/raw; {write}", {"/dev/raw": "raw"}, block=True)
    remove(stage, "block-writer", "")
    stage.pod("block-reader", read, {"/dev/raw": "raw"}, block=True)
    remove(stage, "block-reader", "raw")


def attachments(stage: Stage, volume: str) -> list[Any]:
    found = stage.up.items("volumeattachments")
    return [a for a in found if a["spec"]["source"].get("persistentVolumeName") == volume]


def remove(stage: Stage, pod: str, claim: str) -> None:
    if pod:
        stage.delete("pod", pod)
    if claim:
        stage.delete("pvc", claim)


def refusals(stage: Stage) -> list[str]:
    """Requests that the API server has refused to anybody, by its own count."""
    reported = stage.up.kubectl("get", "--raw", "/metrics").splitlines()
    counted = (line for line in reported if line.startswith("apiserver_request_total{"))
    return [line for line in counted if 'code="401"' in line or 'code="403"' in line]
