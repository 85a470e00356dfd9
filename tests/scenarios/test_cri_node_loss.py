"""PostgreSQL and a StatefulSet on nodes with a container runtime survive the loss of a node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cri import image
from tests.support.cri.cluster import CriUp
from tests.support.cri.containerd import Containerd
from tests.support.cri.registry import Registry
from tests.support.up import VOLPLANE

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "crictl"), pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "05-databases" / "postgresql.yaml"
SQL = ("psql", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-h", "/tmp", "-At", "-c")
ROWS = 200

SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: disk}
spec:
  replicas: 2
  serviceName: disk
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: disk}}
  template:
    metadata: {labels: {app: disk}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {matchLabels: {app: disk}}
      containers:
        - name: main
          image: busybox
          command: [sh, -c, "echo $HOSTNAME >> /data/lives; sync; exec sleep infinity"]
          volumeMounts: [{name: disk-pvc, mountPath: /data}]
          readinessProbe: {exec: {command: [grep, -q, disk, /data/lives]}, periodSeconds: 1}
  volumeClaimTemplates:
    - metadata: {name: disk-pvc}
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: gp3
        resources: {requests: {storage: 1Gi}}
"""


@pytest.fixture(scope="module")
def up(containerd: Containerd, registry: Registry) -> Iterator[CriUp]:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("Debian's postgresql is not installed: tools/packages.sh")
    registry.push(image.postgres(), "library/debian:12")  # the image that the example names
    cluster = CriUp(containerd, "--separate", nodes=2)  # of one zone
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def ask(up: CriUp, query: str) -> str:
    return up.exec("postgresql-0", *SQL, query).strip()


def crash(up: CriUp, node: str, *more: str) -> None:
    command = [VOLPLANE, "crash", f"node/{node}", "--data-dir", str(up.directory), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def are_ready(up: CriUp, replicas: int, name: str) -> bool:
    status = up.get("statefulset", name)["status"]
    return bool(status.get("readyReplicas") == status.get("replicas") == replicas)


def find_nodes(up: CriUp) -> dict[str, str]:
    return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in up.items("pods")}


def run_elsewhere(up: CriUp, lost: str) -> bool:
    settled = are_ready(up, 1, "postgresql") and are_ready(up, 2, "disk")
    return settled and lost not in find_nodes(up).values()


def test_what_was_acknowledged_survives_the_loss_of_a_node(up: CriUp) -> None:
    up.kubectl("apply", "-f", str(EXAMPLE))
    up.apply(SET)
    up.wait("the database is ready", lambda: are_ready(up, 1, "postgresql"))
    up.wait("two replicas are ready", lambda: are_ready(up, 2, "disk"))
    before = find_nodes(up)
    assert before["disk-0"] != before["disk-1"]
    ask(up, "CREATE TABLE kept (run text, n int, PRIMARY KEY (run, n))")
    ask(up, f"INSERT INTO kept SELECT 'first', n FROM generate_series(1, {ROWS}) n")
    lost = before["postgresql-0"]
    victims = {each["id"] for each in up.list_cri_containers("--state", "running") if is_on(up, each, lost)}
    assert len(victims) == 2
    crash(up, lost)  # with the last answer just given
    running = {each["id"] for each in up.list_cri_containers("--state", "running")}
    assert not victims & running
    up.kubectl("delete", "node", lost)
    up.wait("everything runs elsewhere", lambda: run_elsewhere(up, lost))
    assert (
        ask(up, "SELECT run, count(*), sum(n) FROM kept GROUP BY run")
        == f"first|{ROWS}|{ROWS * (ROWS + 1) // 2}"
    )
    for name in ("disk-0", "disk-1"):
        lives = up.exec(name, "cat", "/data/lives").split()
        assert lives == [name] * (2 if before[name] == lost else 1)
    crash(up, lost, "--revive")
    up.wait("the node is back", lambda: up.get("csinode", lost)["spec"].get("drivers"))
    for name in ("postgresql", "disk"):
        up.kubectl("delete", "statefulset", name, "--timeout=100s")
    up.kubectl("delete", "pvc", "--all", "--timeout=100s")
    up.wait("no volume is left", lambda: not up.items("pv"))
    up.wait("no container is left", lambda: up.list_cri_containers() == [] or None)


def is_on(up: CriUp, container: dict[str, dict[str, str]], node: str) -> bool:
    pod = container["labels"]["io.kubernetes.pod.name"]
    return find_nodes(up).get(pod) == node
