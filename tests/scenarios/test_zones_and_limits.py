"""Disks live in zones, and a node attaches only so many of them: what pods get, and what they are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]
PATIENCE = 120.0
ZONE = "topology.kubernetes.io/zone"
TAIL = "no new claims to deallocate, preemption: 0/3 nodes are available:"

SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: db
spec:
  replicas: 3
  serviceName: db
  podManagementPolicy: Parallel
  selector:
    matchLabels: {app: db}
  template:
    metadata:
      labels: {app: db}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: topology.kubernetes.io/zone
          whenUnsatisfiable: DoNotSchedule
          labelSelector:
            matchLabels: {app: db}
      containers:
        - name: c
          image: busybox
          command: [sleep, "100000"]
          resources:
            requests: {cpu: 200m}
          volumeMounts:
            - {name: data, mountPath: /data}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: gp3
        resources:
          requests: {storage: 1Gi}
"""

FILLER = """
apiVersion: v1
kind: Pod
metadata:
  name: filler
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector:
    kubernetes.io/hostname: {node}
  containers:
    - name: c
      image: busybox
      command: [sleep, "100000"]
      resources:
        requests: {{cpu: {cpu}m}}
"""

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}
  labels: {{test: limits}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: gp3
  resources:
    requests: {{storage: 1Gi}}
---
"""

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector:
    kubernetes.io/hostname: {node}
  containers:
    - name: c
      image: busybox
      command: [sleep, "100000"]
  volumes:
"""
VOLUME = """
    - name: {name}
      persistentVolumeClaim: {{claimName: {name}}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Up]:
    made = Up("--nodes-per-zone", "1", nodes=3)
    with made as up:
        yield up
    assert made.leftovers() == {}


def refusal(up: Up, pod: str) -> str:
    events = up.items("events", "--field-selector", f"involvedObject.name={pod},reason=FailedScheduling")
    return str(events[-1]["message"]) if events else ""


def pod_with(up: Up, name: str, node: str, claims: list[str]) -> None:
    manifest = POD.format(name=name, node=node) + "".join(VOLUME.format(name=c) for c in claims)
    up.apply("".join(CLAIM.format(name=c) for c in claims) + manifest)


def test_volumes_are_made_where_their_pods_go_and_a_full_zone_is_told(cluster: Up) -> None:
    up = cluster
    up.apply(SET)

    def running() -> bool:
        return bool(up.get("statefulset", "db")["status"].get("readyReplicas", 0) == 3)

    wait_until("three replicas run", running, PATIENCE)
    zones = {n["metadata"]["name"]: n["metadata"]["labels"][ZONE] for n in up.items("nodes")}
    chosen = {p["metadata"]["name"]: p["spec"]["nodeName"] for p in up.items("pods", "-l", "app=db")}
    assert sorted(zones[node] for node in chosen.values()) == sorted(zones.values())
    for pod, node in chosen.items():
        volume = up.get("pv", up.get("pvc", f"data-{pod}")["spec"]["volumeName"])
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert {zone for e in term["matchExpressions"] for zone in e["values"]} == {zones[node]}
    # The zone of db-0 fills up while it is away: no other node will do.
    up.kubectl("scale", "statefulset", "db", "--replicas=0")
    wait_until("no replica runs", lambda: not up.items("pods", "-l", "app=db"), PATIENCE)
    cpu = int(float(up.get("node", chosen["db-0"])["status"]["allocatable"]["cpu"].removesuffix("m")) * 1000)
    up.apply(FILLER.format(node=chosen["db-0"], cpu=cpu - 100))
    up.wait_running("filler", PATIENCE)
    up.kubectl("scale", "statefulset", "db", "--replicas=1")
    full = "1 Insufficient cpu, 2 node(s) didn't match PersistentVolume's node affinity."
    reported = f"0/3 nodes are available: {full}"
    why = "1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    wait_until("the pod says why", lambda: refusal(up, "db-0") == f"{reported} {TAIL} {why}", PATIENCE)
    up.kubectl("delete", "pod", "filler", "--timeout=60s")
    up.wait_running("db-0", PATIENCE)
    up.kubectl("delete", "statefulset", "db", "--timeout=60s")
    up.kubectl("delete", "pvc", "-l", "app=db", "--timeout=60s")


def test_the_29th_volume_waits_for_a_slot(cluster: Up) -> None:
    up = cluster
    (driver,) = [
        d for d in up.get("csinode", "worker-1")["spec"]["drivers"] if d["name"] == "ebs.csi.aws.com"
    ]
    assert driver["allocatable"]["count"] == 28
    pod_with(up, "most", "worker-1", [f"c{i}" for i in range(27)])
    pod_with(up, "last", "worker-1", ["c27"])
    up.wait_running("most", PATIENCE)
    up.wait_running("last", PATIENCE)
    pod_with(up, "late", "worker-1", ["c28"])
    reported = (
        "0/3 nodes are available: 1 node(s) exceed max volume count, 2 node(s) didn't match Pod's node "
        f"affinity/selector. {TAIL} 1 No preemption victims found for incoming pod, 2 Preemption is not "
        "helpful for scheduling."
    )
    wait_until("the pod says why", lambda: refusal(up, "late") == reported, PATIENCE)
    up.kubectl("delete", "pod", "last", "--timeout=60s")
    up.wait_running("late", PATIENCE)
    up.kubectl("delete", "pod", "most", "late", "--timeout=60s")
    up.kubectl("delete", "pvc", "-l", "test=limits", "--timeout=60s")
