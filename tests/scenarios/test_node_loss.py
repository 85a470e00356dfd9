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
    crash = [VOLPLANE, "crash", f"node/{lost}", "--data-dir", str(up.directory)]
    subprocess.run(crash, check=True, capture_output=True, timeout=60)
    up.kubectl("delete", "node", lost)

    def moved() -> bool:
        now = where(up)
        return len(now) == 3 and lost not in now.values() and ready(up)

    wait_until("all replicas run elsewhere", moved, PATIENCE)
    after = where(up)
    for pod in before:
        # Every life of a replica wrote its line to the one volume it has.
        assert lives(up, pod) == [pod] * (2 if before[pod] == lost else 1)
        if before[pod] != lost:
            assert after[pod] == before[pod]
    assert {c["metadata"]["name"]: c["spec"]["volumeName"] for c in up.items("pvc")} == claims
    attached = {a["spec"]["nodeName"] for a in up.items("volumeattachments")}
    assert lost not in attached
    up.kubectl("delete", "statefulset", "disk", "--timeout=60s")
    up.kubectl("delete", "pvc", "--all", "--timeout=60s")
