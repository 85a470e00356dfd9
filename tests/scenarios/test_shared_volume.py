"""One directory for several pods on several nodes: the class `efs`, with kubectl."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: efs
  resources: {requests: {storage: 1Gi}}
"""

POD = """
apiVersion: v1
kind: Pod
metadata: {name: writer-%(node)s}
spec:
  nodeName: worker-%(node)s
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: busybox
      command: [sh, -c, "echo %(node)s > /shared/%(node)s; sleep 1000"]
      volumeMounts: [{name: v, mountPath: /shared}]
  volumes:
    - name: v
      persistentVolumeClaim: {claimName: shared}
"""


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=2)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def test_pods_on_two_nodes_share_a_directory(up: Up) -> None:
    up.apply(CLAIM)
    for node in (1, 2):
        up.apply(POD % {"node": node})
    for node in (1, 2):
        up.wait_running(f"writer-{node}", 60)
    wait_until(
        "both see both files",
        lambda: all(
            up.kubectl("exec", f"writer-{n}", "--", "ls", "/shared").split() == ["1", "2"] for n in (1, 2)
        ),
        60,
    )
    assert up.kubectl("get", "volumeattachments", "-o", "name") == ""
    up.kubectl("patch", "pvc", "shared", "-p", '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}')
    wait_until(
        "the claim has grown",
        lambda: up.kubectl("get", "pvc", "shared", "-o", "jsonpath={.status.capacity.storage}") == "2Gi",
        60,
    )
    up.kubectl("delete", "pod", "writer-1", "writer-2")
    up.kubectl("delete", "pvc", "shared")
    wait_until("the volume is gone", lambda: up.kubectl("get", "pv", "-o", "name") == "", 60)
    files = [p for p in (up.directory / "efs").rglob("*") if p.is_file()]
    assert files == []
