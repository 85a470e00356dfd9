"""A node is lost, and what ran there runs elsewhere with its data: as an operator does it, with kubectl."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.up import VOLPLANE, Up
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.role_files import RoleFiles

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]
NODES = ("worker-1", "worker-2", "worker-3", "worker-4")

# One pod of a Deployment, as in the seed: it may be moved while its node says nothing.
LONE = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: lone
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: gp3
  resources:
    requests: {storage: 1Gi}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: lone
spec:
  selector:
    matchLabels: {app: lone}
  template:
    metadata:
      labels: {app: lone}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
        - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              preference:
                matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [NODE]}]
      containers:
        - name: c
          image: busybox
          command: [/bin/sh, -c, "echo life >> /data/lives; sync; trap 'exit 0' TERM; sleep 9999 & wait"]
          volumeMounts:
            - {name: data, mountPath: /data}
      volumes:
        - name: data
          persistentVolumeClaim: {claimName: lone}
"""

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
    made = Up("--separate", "--node-monitor-grace-period", "8", nodes=len(NODES))
    with made as up:
        yield up
    assert made.leftovers() == {}


@pytest.fixture
def up(cluster: Up) -> Up:
    """All nodes answer, and three replicas run: whatever an earlier test has left, even one that failed."""
    runs = RoleFiles(DataDirectory(cluster.directory).run)
    for node in NODES:
        if runs.crash_marker(f"node/{node}").exists():
            crash(cluster, node, "--revive")
    cluster.wait("all nodes answer", lambda: all(is_whole(cluster, node) for node in NODES))
    cluster.kubectl("delete", "deployment,pdb,pvc", "lone", "--ignore-not-found", "--timeout=100s")
    cluster.apply(SET)
    cluster.wait("three replicas run", lambda: ready(cluster))
    return cluster


def ready(up: Up) -> bool:
    found = up.get("statefulset", "disk")
    status = found["status"]
    seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return bool(seen and status.get("readyReplicas", 0) == 3 and status.get("replicas") == 3)


def where(up: Up) -> dict[str, str]:
    return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in up.items("pods", "-l", "app=disk")}


def crash(up: Up, node: str, *more: str) -> None:
    command = [VOLPLANE, "crash", f"node/{node}", "--data-dir", str(up.directory), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def is_ready(up: Up, node: str) -> bool:
    conditions = up.get("node", node)["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_whole(up: Up, node: str) -> bool:
    """It answers, nothing keeps pods away from it, and it has its driver."""
    drivers = up.get("csinode", node)["spec"].get("drivers") or []
    free = is_ready(up, node) and not up.get("node", node)["spec"].get("taints")
    return free and "ebs.csi.aws.com" in [d["name"] for d in drivers]


def fenced(up: Up, node: str) -> bool:
    taints = up.get("node", node)["spec"].get("taints", [])
    return "node.kubernetes.io/out-of-service" in {t["key"] for t in taints}


def moved(up: Up, lost: str) -> bool:
    now = where(up)
    return len(now) == 3 and lost not in now.values() and ready(up)


def lives(up: Up, pod: str) -> list[str]:
    return up.kubectl("exec", pod, "--", "cat", "/data/lives").split()


def lone(up: Up) -> list[tuple[str, str]]:
    """The pods of the Deployment that are not on their way out: name and node."""
    pods = [p for p in up.items("pods", "-l", "app=lone") if "deletionTimestamp" not in p["metadata"]]
    return [(p["metadata"]["name"], p["spec"].get("nodeName", "")) for p in pods]


def is_running(up: Up, pod: str) -> bool:
    return up.phase(pod) == "Running"


def test_the_common_stuck_scenario_and_its_fix(
    up: Up, record_property: Callable[[str, object], None]
) -> None:
    """As the seed tells it, for a Deployment's pod and for three replicas with their disks."""
    before = where(up)
    claims = {c["metadata"]["name"]: c["spec"]["volumeName"] for c in up.items("pvc")}
    assert sorted(claims) == ["disk-pvc-disk-0", "disk-pvc-disk-1", "disk-pvc-disk-2"]
    count = {pod: lives(up, pod) for pod in before}
    lost = before["disk-0"]
    up.apply(LONE.replace("NODE", lost))
    up.wait("the Deployment's pod runs", lambda: is_running(up, lone(up)[0][0]))
    assert [node for _, node in lone(up)] == [lost]
    volume = up.get("pvc", "lone")["spec"]["volumeName"]
    # Node-A crashes (not gracefully drained).
    began = time.monotonic()
    crash(up, lost)
    # → Pod moved to node-B by NodeLifecycleController
    up.wait("the pod is to run elsewhere", lambda: lone(up) and lone(up)[0][1] not in ("", lost))
    ((pod, chosen),) = lone(up)
    # → Multi-Attach error — cannot force detach while node appears registered
    up.describe("pod", pod, f'Multi-Attach error for volume "{volume}"')
    assert attached(up, volume) == {lost: True}
    # What keeps it, and what to do about it, without looking through five logs:
    code, reported = up.explain(f"pod/{pod}")
    assert code == 3
    assert (
        f"pod/default/{pod} waits: cannot attach the volume to {chosen}: it is attached to {lost}. "
        f"{lost} has been unreachable" in reported
    )
    assert f"counts as running there until {lost} is ready again, is deleted, or is tainted" in reported
    assert "not fenced: " in reported
    assert f"kubectl delete node {lost}" in reported
    # Fix: kubectl delete node node-a
    up.kubectl("delete", "node", lost)
    # → AD controller sees no node-A → deletes VA for node-A → external-attacher can now attach to node-B
    up.wait("the pod runs on the other node", lambda: is_running(up, pod))
    assert attached(up, volume) == {chosen: True}
    assert up.explain(f"pod/{pod}")[0] == 0
    up.wait("all replicas run elsewhere", lambda: moved(up, lost))
    _tell(record_property, "from the crash until all run elsewhere, by hand", began)
    assert up.kubectl("exec", pod, "--", "cat", "/data/lives").split() == ["life", "life"]
    after = where(up)
    for name in before:
        # Every life of a replica wrote its line to the one volume it has.
        assert lives(up, name) == [*count[name], *([name] if before[name] == lost else [])]
        if before[name] != lost:
            assert after[name] == before[name]
    held = {c["metadata"]["name"]: c["spec"]["volumeName"] for c in up.items("pvc")}
    assert held == {**claims, "lone": volume}
    assert lost not in {a["spec"]["nodeName"] for a in up.items("volumeattachments")}
    crash(up, lost, "--revive")
    up.wait("the node is back", lambda: is_whole(up, lost))


def attached(up: Up, volume: str) -> dict[str, bool]:
    """Node → attached, as the seed's jq prints it."""
    of_it = [
        a for a in up.items("volumeattachments") if a["spec"]["source"]["persistentVolumeName"] == volume
    ]
    return {a["spec"]["nodeName"]: a["status"]["attached"] for a in of_it}


def test_a_node_out_of_service_gives_its_pods_up_and_comes_back_clean(up: Up) -> None:
    before = where(up)
    lost = before["disk-1"]
    count = {pod: len(lives(up, pod)) for pod in before}
    crash(up, lost)
    up.wait("the node is known to be lost", lambda: not is_ready(up, lost))
    volume = up.get("pvc", "disk-pvc-disk-1")["spec"]["volumeName"]
    _explained(up, "disk-1", volume, lost)
    up.kubectl("taint", "node", lost, "node.kubernetes.io/out-of-service=down:NoExecute")
    try:
        up.wait("all replicas run elsewhere", lambda: moved(up, lost))
        (name,) = _attachments(up, volume)
        for what in ("pod/disk-1", f"volumeattachment/{name}", "pvc/disk-pvc-disk-1"):
            assert up.explain(what)[0] == 0
        for pod, node in before.items():
            assert len(lives(up, pod)) == count[pod] + (node == lost)
        crash(up, lost, "--revive")
        up.wait("the node is back", lambda: is_ready(up, lost))
    finally:
        up.kubectl("taint", "node", lost, "node.kubernetes.io/out-of-service-")
    up.wait("it holds nothing any more", lambda: not _volumes(up, lost))


def _explained(up: Up, pod: str, volume: str, lost: str) -> None:
    """Its pod is taken away by force: now the six minutes run, and can be read, from every side."""
    (name,) = _attachments(up, volume)
    up.kubectl("delete", "pod", pod, "--force")
    up.wait("it is to run elsewhere", lambda: up.get("pod", pod)["spec"].get("nodeName", lost) != lost)
    up.describe("pod", pod, f'Multi-Attach error for volume "{volume}"')
    for what in (f"pod/{pod}", f"volumeattachment/{name}", f"node/{lost}"):
        code, reported = up.explain(what)
        assert code == 3
        assert f"{lost} is not ready and may still have the volume mounted" in reported, reported
        assert re.search(r"forced detach in (\dm )?\d+s", reported), reported
        assert "instance i-" in reported, reported  # which is not known to be stopped
        assert f"kubectl taint node {lost} node.kubernetes.io/out-of-service" in reported, reported


def _attachments(up: Up, volume: str) -> list[str]:
    found = up.items("volumeattachments")
    return [a["metadata"]["name"] for a in found if a["spec"]["source"]["persistentVolumeName"] == volume]


@pytest.mark.peer("aws")
def test_a_node_whose_instance_is_off_is_fenced_without_anybodys_word(
    up: Up, record_property: Callable[[str, object], None]
) -> None:
    before = where(up)
    lost = before["disk-2"]
    count = {pod: len(lives(up, pod)) for pod in before}
    drivers = up.get("csinode", lost)["spec"]["drivers"]
    (instance,) = [d["nodeID"] for d in drivers if d["name"] == "ebs.csi.aws.com"]
    began = time.monotonic()
    crash(up, lost)
    try:
        up.aws("stop-instances", "--instance-ids", instance)
        up.wait("all replicas run elsewhere", lambda: moved(up, lost))
        _tell(record_property, "from the crash until all run elsewhere, by itself", began)
        assert fenced(up, lost)
        code, reported = up.explain(f"node/{lost}")
        assert (code, "by the fencer, because its instance is stopped" in reported) == (3, True), reported
        for pod, node in before.items():
            assert len(lives(up, pod)) == count[pod] + (node == lost)
    finally:
        up.aws("start-instances", "--instance-ids", instance)
        crash(up, lost, "--revive")
    up.wait("the node is back", lambda: is_ready(up, lost) and not fenced(up, lost))


def test_a_drained_node_is_left_one_by_one_as_the_budget_allows(up: Up) -> None:
    up.kubectl("create", "poddisruptionbudget", "lone", "--selector=app=disk", "--min-available=2")
    up.wait("the budget has counted", lambda: _allowed(up) == 1)
    left = where(up)["disk-0"]
    try:
        up.kubectl("drain", left, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s")
        up.wait("all replicas run elsewhere", lambda: moved(up, left))
    finally:
        up.kubectl("uncordon", left)
    up.kubectl("delete", "poddisruptionbudget", "lone")
    up.kubectl("delete", "statefulset", "disk", "--timeout=100s")
    up.kubectl("delete", "pvc", "--all", "--timeout=100s")


def _allowed(up: Up) -> int:
    allowed: int = up.get("poddisruptionbudget", "lone")["status"]["disruptionsAllowed"]
    return allowed


def _volumes(up: Up, node: str) -> list[str]:
    status = up.get("node", node)["status"]
    return [*status.get("volumesInUse", []), *status.get("volumesAttached", [])]


def _tell(record_property: Callable[[str, object], None], what: str, began: float) -> None:
    """For whoever reads the report; nothing is asserted about it."""
    seconds = round(time.monotonic() - began, 1)
    record_property(what, seconds)
    print(f"{what}: {seconds} s")
