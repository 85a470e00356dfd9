"""Every role a process with a name of its own: each may do its work, and nobody is refused anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: s
spec:
  replicas: 2
  serviceName: s
  selector:
    matchLabels:
      app: s
  template:
    metadata:
      labels:
        app: s
    spec:
      containers:
        - name: c
          image: busybox
          command: [sleep, "1000"]
          volumeMounts:
            - name: data
              mountPath: /data
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        resources:
          requests:
            storage: 1Gi
"""

SNAPSHOT = """
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata:
  name: moment
spec:
  source:
    persistentVolumeClaimName: data-s-0
"""
GROWN = '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'


def test_a_story_of_separate_roles_ends_without_a_refusal() -> None:
    cluster = Up("--separate", nodes=2)
    with cluster as up:
        up.apply(SET)
        wait_until("both pods run", lambda: _ready(up) == 2, 60)
        up.apply(SNAPSHOT)
        wait_until("the snapshot is ready", lambda: _is_ready(up), 60)
        up.kubectl("delete", "volumesnapshot", "moment", "--timeout=60s")
        up.kubectl("delete", "statefulset", "s", "--timeout=60s")
        up.kubectl("patch", "pvc", "data-s-0", "-p", GROWN)
        wait_until("the volume has grown", lambda: _has_grown(up), 60)
        up.kubectl("delete", "pvc", "--all", "--timeout=60s")
        wait_until("no volume is left", lambda: up.kubectl("get", "pv", "-o", "name") == "", 60)
        reported = up.kubectl("get", "--raw", "/metrics").splitlines()
        refused = [line for line in reported if "apiserver_request_total{" in line and _is_refusal(line)]
        assert refused == []
        roles = {"system:kube-scheduler", "system:kube-controller-manager", "system:node:worker-1"}
        for role in sorted(roles):
            groups = ["--as-group=system:nodes"] if role.startswith("system:node:") else []
            answer = up.kubectl("auth", "can-i", "*", "*", f"--as={role}", *groups, check=False)
            assert answer.strip() == "no"
    assert cluster.leftovers() == {}


def _is_ready(up: Up) -> bool:
    return bool(up.get("volumesnapshot", "moment").get("status", {}).get("readyToUse"))


def _has_grown(up: Up) -> bool:
    status = up.get("pvc", "data-s-0")["status"]
    return bool(status.get("allocatedResourceStatuses") == {"storage": "NodeResizePending"})


def _is_refusal(line: str) -> bool:
    return 'code="401"' in line or 'code="403"' in line


def _ready(up: Up) -> int:
    found: dict[str, Any] = json.loads(up.kubectl("get", "statefulset", "s", "-o", "json"))
    count: int = found["status"].get("readyReplicas", 0)
    return count
