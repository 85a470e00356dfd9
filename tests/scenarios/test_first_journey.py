"""A claim and a pod as in the first article, seen with kubectl and aws, moved to another node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: my-app-pvc
spec:
  accessModes:
    - ReadWriteOnce
  resources:
    requests:
      storage: 1Gi
  storageClassName: standard
"""

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: my-app-pod
spec:
  containers:
    - name: my-container
      image: nginx
      volumeMounts:
        - name: my-persistent-storage
          mountPath: /usr/share/nginx/html
  volumes:
    - name: my-persistent-storage
      persistentVolumeClaim:
        claimName: my-app-pvc
"""

FILE = "/usr/share/nginx/html/line"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=4)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


@pytest.fixture(scope="module")
def running(up: Up) -> Up:
    up.apply(CLAIM)
    up.apply(POD)
    up.wait_running("my-app-pod")
    return up


def test_the_pod_sees_an_ext4_disk_of_one_gibibyte(running: Up) -> None:
    answer = running.kubectl("exec", "my-app-pod", "--", "df", "-T", "/usr/share/nginx/html")
    device, kind, blocks = answer.splitlines()[-1].split()[:3]
    assert device.startswith("/dev/loop")
    assert kind == "ext4"
    assert 900_000 < int(blocks) <= 1 << 20


def test_describe_and_get_show_what_a_user_expects(running: Up) -> None:
    described = running.describe("pvc", "my-app-pvc", "ProvisioningSucceeded")
    assert "Status:        Bound" in described
    assert "Used By:       my-app-pod" in described
    attachments = running.kubectl("get", "volumeattachment", "-o", "wide")
    assert "ebs.csi.aws.com" in attachments
    assert "true" in attachments
    pods = running.kubectl("get", "pods", "-A", "-o", "wide")
    assert pods.count("ebs-csi-node-") == 4
    assert pods.count("ebs-csi-controller-") == 2
    assert "my-app-pod" in pods
    logs = running.kubectl("logs", "-n", "kube-system", "-l", "app=ebs-csi-controller", "-c", "csi-attacher")
    volume = running.items("pv")[0]
    assert volume["spec"]["csi"]["volumeHandle"] in logs


def test_an_image_that_is_not_here_runs_a_pause_and_says_so(running: Up) -> None:
    running.describe("pod", "my-app-pod", "nginx", "pause")


@pytest.mark.peer("aws")
def test_aws_shows_the_disk_in_use_by_the_nodes_instance(running: Up) -> None:
    handle = running.items("pv")[0]["spec"]["csi"]["volumeHandle"]
    (volume,) = running.aws("describe-volumes", "--volume-ids", handle)["Volumes"]
    assert volume["State"] == "in-use"
    node = running.get("pod", "my-app-pod")["spec"]["nodeName"]
    instance = running.get("node", node)["spec"]["providerID"].rsplit("/", 1)[1]
    assert volume["Attachments"][0]["InstanceId"] == instance


@pytest.mark.peer("aws")
def test_the_pod_moves_to_another_node_of_its_zone_with_its_data(running: Up) -> None:
    up = running
    handle = up.items("pv")[0]["spec"]["csi"]["volumeHandle"]
    up.kubectl("exec", "my-app-pod", "--", "sh", "-c", f"echo hello > {FILE} && sync")
    first = up.get("pod", "my-app-pod")["spec"]["nodeName"]
    up.kubectl("delete", "pod", "my-app-pod")
    wait_until("the attachment is gone", lambda: up.items("volumeattachment") == [] or None)
    wait_until(
        "the disk is available",
        lambda: up.aws("describe-volumes", "--volume-ids", handle)["Volumes"][0]["State"] == "available",
    )
    up.kubectl("cordon", first)
    up.apply(POD)
    up.wait_running("my-app-pod")
    second = up.get("pod", "my-app-pod")["spec"]["nodeName"]
    assert second != first
    zone = "topology.kubernetes.io/zone"
    zones = {n["metadata"]["name"]: n["metadata"]["labels"][zone] for n in up.items("nodes")}
    assert zones[first] == zones[second]
    assert up.kubectl("exec", "my-app-pod", "--", "cat", FILE) == "hello\n"
    up.kubectl("uncordon", first)


@pytest.mark.peer("aws")
def test_deleting_everything_leaves_nothing(running: Up) -> None:
    up = running
    up.kubectl("delete", "pod", "my-app-pod")
    up.kubectl("delete", "pvc", "my-app-pvc")
    wait_until("the volume is gone", lambda: up.items("pv") == [] or None)
    wait_until("the attachment is gone", lambda: up.items("volumeattachment") == [] or None)
    wait_until("the disk is gone", lambda: up.aws("describe-volumes")["Volumes"] == [] or None)
    assert "loop devices" not in up.leftovers()


def test_bad_input_is_answered_as_kubernetes_does(running: Up) -> None:
    up = running
    malformed = up.kubectl("apply", "-f", "-", stdin="a: [", check=False)
    assert "error" in malformed.lower()
    unknown = CLAIM.replace("standard", "nope").replace("my-app-pvc", "waiting")
    up.apply(unknown)
    wait_until(
        "the claim says why it waits",
        lambda: 'storageclass.storage.k8s.io "nope" not found' in up.kubectl("describe", "pvc", "waiting"),
    )
    assert up.get("pvc", "waiting")["status"]["phase"] == "Pending"
    negative = CLAIM.replace("1Gi", "-1Gi").replace("my-app-pvc", "negative")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        up.apply(negative)
    assert "spec.resources[storage]: Invalid value" in refused.value.stderr
    missing = POD.replace("my-app-pvc", "no-such-claim").replace("my-app-pod", "lost")
    up.apply(missing)
    wait_until(
        "the pod says which claim is missing",
        lambda: 'persistentvolumeclaim "no-such-claim" not found' in up.kubectl("describe", "pod", "lost"),
    )
    up.kubectl("delete", "pod", "lost")
    up.kubectl("delete", "pvc", "waiting")
