"""A node is lost, and what ran there runs elsewhere with its data: an operator's story, with kubectl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.support.up import VOLPLANE, Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]
PATIENCE = 120.0

SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: disk
spec:
  replicas: 3
  serviceName: disk
  podManagementPolicy: Parallel
  selector:
    matchLabels: {app: disk}
  template:
    metadata:
      labels: {app: disk}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {app: disk}
      containers:
        - name: c
          image: busybox
          command: [/bin/sh, -c, "echo $HOSTNAME >> /data/lives; sync; trap 'exit 0' TERM; sleep 9999 & wait"]
          volumeMounts:
            - {name: disk-pvc, mountPath: /data}
          readinessProbe:
            exec: {command: [grep, -q, disk, /data/lives]}
            periodSeconds: 1
  volumeClaimTemplates:
    - metadata:
        name: disk-pvc
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: gp3
        resources:
          requests: {storage: 1Gi}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Up]:
    made = Up("--separate", "--node-monitor-grace-period", "8", nodes=4)
    with made as up:
        yield up
    assert made.leftovers() == {}


def ready(up: Up) -> bool:
    status = up.get("statefulset", "disk")["status"]
    return bool(status.get("readyReplicas", 0) == 3 and status.get("replicas") == 3)


def where(up: Up) -> dict[str, str]:
    return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in up.items("pods", "-l", "app=disk")}


def crash(up: Up, node: str, *more: str) -> None:
    command = [VOLPLANE, "crash", f"node/{node}", "--data-dir", str(up.directory), *more]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def is_ready(up: Up, node: str) -> bool:
    conditions = up.get("node", node)["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def fenced(up: Up, node: str) -> bool:
    taints = up.get("node", node)["spec"].get("taints", [])
    return "node.kubernetes.io/out-of-service" in {t["key"] for t in taints}


def moved(up: Up, lost: str) -> bool:
    now = where(up)
    return len(now) == 3 and lost not in now.values() and ready(up)


def lives(up: Up, pod: str) -> list[str]:
    return up.kubectl("exec", pod, "--", "cat", "/data/lives").split()


def test_three_replicas_outlive_a_crashed_node_whose_object_is_deleted(cluster: Up) -> None:
    """The seed's stuck scenario and its fix: no six minutes, and nobody writes to a disk twice."""
    up = cluster
    up.apply(SET)
    wait_until("three replicas run", lambda: ready(up), PATIENCE)
    before = where(up)
    claims = {c["metadata"]["name"]: c["spec"]["volumeName"] for c in up.items("pvc")}
    assert sorted(claims) == ["disk-pvc-disk-0", "disk-pvc-disk-1", "disk-pvc-disk-2"]
    lost = before["disk-0"]
    crash(up, lost)
    up.kubectl("delete", "node", lost)
    wait_until("all replicas run elsewhere", lambda: moved(up, lost), PATIENCE)
    after = where(up)
    for pod in before:
        # Every life of a replica wrote its line to the one volume it has.
        assert lives(up, pod) == [pod] * (2 if before[pod] == lost else 1)
        if before[pod] != lost:
            assert after[pod] == before[pod]
    assert {c["metadata"]["name"]: c["spec"]["volumeName"] for c in up.items("pvc")} == claims
    assert lost not in {a["spec"]["nodeName"] for a in up.items("volumeattachments")}
    crash(up, lost, "--revive")
    wait_until("the node is back", lambda: is_ready(up, lost), PATIENCE)


def test_a_node_out_of_service_gives_its_pods_up_and_comes_back_clean(cluster: Up) -> None:
    up = cluster
    if not up.items("statefulsets"):
        up.apply(SET)
    wait_until("three replicas run", lambda: ready(up), PATIENCE)
    before = where(up)
    lost = before["disk-1"]
    count = {pod: len(lives(up, pod)) for pod in before}
    crash(up, lost)
    wait_until("the node is known to be lost", lambda: not is_ready(up, lost), PATIENCE)
    up.kubectl("taint", "node", lost, "node.kubernetes.io/out-of-service=down:NoExecute")
    wait_until("all replicas run elsewhere", lambda: moved(up, lost), PATIENCE)
    for pod, node in before.items():
        assert len(lives(up, pod)) == count[pod] + (node == lost)
    crash(up, lost, "--revive")
    wait_until("the node is back", lambda: is_ready(up, lost), PATIENCE)
    up.kubectl("taint", "node", lost, "node.kubernetes.io/out-of-service-")
    wait_until("it holds nothing any more", lambda: not _volumes(up, lost), PATIENCE)


@pytest.mark.peer("aws")
def test_a_node_whose_instance_is_off_is_fenced_without_anybodys_word(cluster: Up) -> None:
    up = cluster
    if not up.items("statefulsets"):
        up.apply(SET)
    wait_until("three replicas run", lambda: ready(up), PATIENCE)
    before = where(up)
    lost = before["disk-2"]
    count = {pod: len(lives(up, pod)) for pod in before}
    drivers = up.get("csinode", lost)["spec"]["drivers"]
    (instance,) = [d["nodeID"] for d in drivers if d["name"] == "ebs.csi.aws.com"]
    crash(up, lost)
    up.aws("stop-instances", "--instance-ids", instance)
    wait_until("all replicas run elsewhere", lambda: moved(up, lost), PATIENCE)
    assert fenced(up, lost)
    for pod, node in before.items():
        assert len(lives(up, pod)) == count[pod] + (node == lost)
    up.aws("start-instances", "--instance-ids", instance)
    crash(up, lost, "--revive")
    wait_until("the node is back", lambda: is_ready(up, lost) and not fenced(up, lost), PATIENCE)


def test_a_drained_node_is_left_one_by_one_as_the_budget_allows(cluster: Up) -> None:
    up = cluster
    if not up.items("statefulsets"):
        up.apply(SET)
    wait_until("three replicas run", lambda: ready(up), PATIENCE)
    up.kubectl("create", "poddisruptionbudget", "disk", "--selector=app=disk", "--min-available=2")
    wait_until("the budget has counted", lambda: _allowed(up) == 1, PATIENCE)
    left = where(up)["disk-0"]
    up.kubectl("drain", left, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s")
    wait_until("all replicas run elsewhere", lambda: moved(up, left), PATIENCE)
    up.kubectl("uncordon", left)
    up.kubectl("delete", "poddisruptionbudget", "disk")
    up.kubectl("delete", "statefulset", "disk", "--timeout=60s")
    up.kubectl("delete", "pvc", "--all", "--timeout=60s")


def _allowed(up: Up) -> int:
    allowed: int = up.get("poddisruptionbudget", "disk")["status"]["disruptionsAllowed"]
    return allowed


def _volumes(up: Up, node: str) -> list[str]:
    status = up.get("node", node)["status"]
    return [*status.get("volumesInUse", []), *status.get("volumesAttached", [])]
