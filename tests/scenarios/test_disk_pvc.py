"""A StatefulSet with a claim template `disk-pvc`: how its volume is mounted, and the life of the set.

The first test follows the six steps of the walk-through one by one, each seen from where an operator sees it;
the others are what people then do with such a set. All with kubectl.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import Up

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

SET = """
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{port: 80, name: web}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: web
spec:
  replicas: REPLICAS
  serviceName: web
  selector:
    matchLabels: {app: web}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {partition: PARTITION}
  persistentVolumeClaimRetentionPolicy: {whenScaled: Retain, whenDeleted: DELETED}
  template:
    metadata:
      labels: {app: web}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
        - name: first
          image: busybox
          command: [/bin/sh, -c, "echo first >> /data/lives"]
          volumeMounts: [{name: disk-pvc, mountPath: /data}]
        - name: beside
          image: busybox
          restartPolicy: Always
          command: [/bin/sh, -c, "echo beside; trap 'exit 0' TERM; sleep 9999 & wait"]
      containers:
        - name: nginx
          image: nginx
          env: [{name: VERSION, value: "RELEASE"}]
          command: [/bin/sh, -c, "echo $HOSTNAME $VERSION >> /data/lives; sync; trap 'exit 0' TERM; sleep 9999 & wait"]
          readinessProbe:
            exec: {command: [grep, -q, web, /data/lives]}
            periodSeconds: 1
          volumeMounts: [{name: disk-pvc, mountPath: /data}]
  volumeClaimTemplates:
    - metadata:
        name: disk-pvc
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: gp3
        resources:
          requests: {storage: 1Gi}
"""  # noqa: E501  (a line of YAML)
CLAIMS = ["disk-pvc-web-0", "disk-pvc-web-1"]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    made = Up(nodes=2)
    with made as cluster:
        yield cluster
    assert made.leftovers() == {}


def apply(
    up: Up, *, replicas: int = 2, partition: int = 0, release: str = "one", deleted: str = "Retain"
) -> None:
    text = SET.replace("REPLICAS", str(replicas)).replace("PARTITION", str(partition))
    up.apply(text.replace("RELEASE", release).replace("DELETED", deleted))


def is_settled(up: Up, replicas: int, updated: int) -> bool:
    found = up.get("statefulset", "web")
    status, seen = found["status"], found["metadata"]["generation"]
    counts = [status.get(key, 0) for key in ("replicas", "readyReplicas", "updatedReplicas")]
    return counts == [replicas, replicas, updated] and status["observedGeneration"] == seen


def claims(up: Up) -> dict[str, str]:
    return {c["metadata"]["name"]: c["spec"].get("volumeName", "") for c in up.items("pvc")}


def lives(up: Up, pod: str) -> list[str]:
    return up.kubectl("exec", pod, "-c", "nginx", "--", "cat", "/data/lives").splitlines()


def condition(pod: dict[str, Any], type: str) -> str:
    return next((c["status"] for c in pod["status"].get("conditions", []) if c["type"] == type), "")


def mounted(path: str) -> tuple[str, str]:
    """The device and file system of the mount at this path of the machine."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[4] == path:
            kind, device, *_ = rest.split()
            return device, kind
    raise AssertionError(f"nothing is mounted at {path}")


def test_the_six_steps_of_mounting_a_volume(up: Up) -> None:
    # 1. User creates a Pod that references the PVC.
    apply(up)
    up.wait("both replicas run", lambda: is_settled(up, 2, 2))
    pod = up.get("pod", "web-0")
    (source,) = [v for v in pod["spec"]["volumes"] if v["name"] == "disk-pvc"]
    assert source["persistentVolumeClaim"] == {"claimName": "disk-pvc-web-0"}
    # 2. PV Controller binds the claim to a PV, provisioning a new one if none match.
    claim = up.get("pvc", "disk-pvc-web-0")
    volume = up.get("pv", claim["spec"]["volumeName"])
    assert claim["status"]["phase"] == volume["status"]["phase"] == "Bound"
    assert claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
    assert volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == "ebs.csi.aws.com"
    assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    for aspect in ("volumeMode", "storageClassName", "accessModes"):
        assert volume["spec"][aspect] == claim["spec"][aspect]
    assert volume["spec"]["capacity"]["storage"] == "1Gi"
    # 3. Scheduler assigns the Pod to a Node.
    node = pod["spec"]["nodeName"]
    assert claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == node
    # 4. The AD Controller attaches the remote volume to the node device.
    (attachment,) = [
        a
        for a in up.items("volumeattachments")
        if a["spec"]["source"]["persistentVolumeName"] == volume["metadata"]["name"]
    ]
    assert attachment["spec"]["nodeName"] == node
    assert attachment["status"]["attached"] is True
    device = attachment["status"]["attachmentMetadata"]["devicePath"]
    root = up.directory / "n" / node.removeprefix("worker-")
    disk = (root / device.lstrip("/")).resolve()
    assert disk.is_block_device()
    up.describe("pod", "web-0", "Successfully assigned default/web-0", "SuccessfulAttachVolume")
    # 5. Volume Manager mounts the device, formats it if needed, under a global path.
    status = up.get("node", node)["status"]
    unique = f"kubernetes.io/csi/ebs.csi.aws.com^{volume['spec']['csi']['volumeHandle']}"
    assert unique in [v["name"] for v in status["volumesAttached"]]
    assert unique in status["volumesInUse"]
    (staged,) = [
        place
        for place in (root / "plugins/kubernetes.io/csi/ebs.csi.aws.com").glob("*/globalmount")
        if mounted(str(place))[0] == str(disk)
    ]
    assert mounted(str(staged)) == (str(disk), "ext4")
    # 6. The mount is finally bound into the container's filesystem.
    own = f"pods/{pod['metadata']['uid']}/volumes/kubernetes.io~csi/{volume['metadata']['name']}/mount"
    assert mounted(str(root / own)) == (str(disk), "ext4")
    seen = up.kubectl("exec", "web-0", "-c", "nginx", "--", "cat", "/proc/mounts")
    assert f"{disk} /data ext4 rw" in seen
    assert lives(up, "web-0") == ["first", "web-0 one"]


def test_the_objects_and_the_deployment_that_stand_behind_it(up: Up) -> None:
    """VolumeAttachment, CSIDriver and CSINode; a Deployment of two replicas, a DaemonSet on every node."""
    assert up.get("csidriver", "ebs.csi.aws.com")["spec"]["attachRequired"] is True
    for node in ("worker-1", "worker-2"):
        drivers = {d["name"]: d for d in up.get("csinode", node)["spec"]["drivers"]}
        assert drivers["ebs.csi.aws.com"]["nodeID"].startswith("i-")
        assert drivers["ebs.csi.aws.com"]["topologyKeys"]
    assert up.get("deployment", "ebs-csi-controller", "-n", "kube-system")["spec"]["replicas"] == 2
    up.kubectl("rollout", "status", "deployment/ebs-csi-controller", "-n", "kube-system", "--timeout=100s")
    up.kubectl("rollout", "status", "daemonset/ebs-csi-node", "-n", "kube-system", "--timeout=100s")
    assert up.get("daemonset", "ebs-csi-node", "-n", "kube-system")["status"]["numberReady"] == 2


def test_a_replica_that_is_deleted_comes_back_to_its_disk(up: Up) -> None:
    apply(up)
    up.wait("both replicas run", lambda: is_settled(up, 2, 2))
    before, held = lives(up, "web-1"), claims(up)
    uid = up.get("pod", "web-1")["metadata"]["uid"]
    up.kubectl("delete", "pod", "web-1", "--timeout=100s")
    up.wait("another one is ready", lambda: _is_another(up, "web-1", uid))
    assert lives(up, "web-1") == [*before, "first", "web-1 one"]
    assert claims(up) == held


def test_an_update_stops_at_its_partition_and_the_data_stay(up: Up) -> None:
    apply(up)
    up.wait("both replicas run", lambda: is_settled(up, 2, 2))
    before, held = {pod: lives(up, pod) for pod in ("web-0", "web-1")}, claims(up)
    apply(up, partition=1, release="two")
    up.wait("the last replica is new", lambda: is_settled(up, 2, 1))
    assert lives(up, "web-1") == [*before["web-1"], "first", "web-1 two"]
    assert lives(up, "web-0") == before["web-0"]
    apply(up, release="two")
    up.kubectl("rollout", "status", "statefulset/web", "--timeout=100s")
    up.wait("all are new", lambda: is_settled(up, 2, 2))
    assert lives(up, "web-0") == [*before["web-0"], "first", "web-0 two"]
    assert claims(up) == held


def test_claims_outlive_replicas_and_go_with_the_set_when_it_says_so(up: Up) -> None:
    apply(up, release="two")
    up.wait("both replicas run", lambda: is_settled(up, 2, 2))
    before, held = lives(up, "web-1"), claims(up)
    assert sorted(held) == CLAIMS
    up.kubectl("scale", "statefulset", "web", "--replicas=1")
    up.wait("one is left", lambda: is_settled(up, 1, 1))
    assert claims(up) == held
    up.kubectl("scale", "statefulset", "web", "--replicas=2")
    up.wait("both replicas run again", lambda: is_settled(up, 2, 2))
    assert lives(up, "web-1") == [*before, "first", "web-1 two"]
    apply(up, release="two", deleted="Delete")
    up.wait("the claims belong to the set", lambda: all(_owner(c) == "web" for c in up.items("pvc")))
    up.kubectl("delete", "statefulset", "web", "--timeout=100s")
    up.wait("claims and volumes are gone", lambda: not up.items("pvc") and not up.items("pv"))


def test_the_pods_of_a_job_work_on_one_claim_one_after_the_other(up: Up) -> None:
    up.apply(JOB)
    up.kubectl("wait", "--for=condition=complete", "job/sum", "--timeout=100s")
    assert sorted(up.kubectl("logs", "-l", "job-name=sum").split()) == ["1", "2", "3"]
    up.kubectl("delete", "job,pvc", "sum", "--timeout=100s")
    up.wait("its volume is gone", lambda: not up.items("pv"))


JOB = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: sum}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: gp3
  resources: {requests: {storage: 1Gi}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: sum}
spec:
  completions: 3
  parallelism: 1
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: c
          image: busybox
          command: [/bin/sh, -c, "echo x >> /data/tries; sync; wc -l < /data/tries"]
          volumeMounts: [{name: data, mountPath: /data}]
      volumes:
        - name: data
          persistentVolumeClaim: {claimName: sum}
"""


def _is_another(up: Up, name: str, uid: str) -> bool:
    pod = up.get("pod", name)
    return bool(pod["metadata"]["uid"] != uid and condition(pod, "Ready") == "True")


def _owner(claim: dict[str, Any]) -> str:
    return "".join(o["name"] for o in claim["metadata"].get("ownerReferences", []))
