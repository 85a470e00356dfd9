"""The driver's controller runs twice; the one that leads is lost in the middle of its calls.

The disk service is told to take its time, so that creating and attaching are under way for certain when the
leader's machine loses power. What it was asked for it does nevertheless, and nobody is there to hear of it:
the other replica asks again, and nothing must be done twice.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pytest

from tests.support.crash import history
from tests.support.up import VOLPLANE, Up
from volplane.cloud.model import Volume
from volplane.cluster.layout import REGION
from volplane.drivers import ebs
from volplane.host import Host
from volplane.sidecars.provisioner.order import INTENT

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

LEASES = ("ebs-csi-aws-com", "external-attacher-leader-ebs.csi.aws.com")  # who provisions, who attaches
DRIVER = ("-n", "kube-system", "-l", "app=ebs-csi-controller")
RETRY = 5  # seconds between two renewals
OLD, NEW = ("old-0", "old-1", "old-2"), ("new-0", "new-1", "new-2")

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: standard
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
  terminationGracePeriodSeconds: 1
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions: [{{key: kubernetes.io/hostname, operator: NotIn, values: [{lost}]}}]
  containers:
    - name: c
      image: busybox
      command: [/bin/sh, -c, "echo life >> /data/lives; sync; trap 'exit 0' TERM; sleep 9999 & wait"]
      volumeMounts:
        - {{name: data, mountPath: /data}}
  volumes:
    - name: data
      persistentVolumeClaim: {{claimName: {name}}}
---
"""


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    made = Up("--separate", "--nodes-per-zone", "3", nodes=3)
    with made as cluster:
        yield cluster
    assert made.leftovers() == {}


def replicas(up: Up) -> dict[str, str]:
    """The driver's ready controllers, and where they run."""
    pods = [p for p in up.items("pods", *DRIVER) if "deletionTimestamp" not in p["metadata"]]
    return {
        p["metadata"]["name"]: p["spec"]["nodeName"]
        for p in pods
        if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))
    }


def scale(up: Up, count: int) -> dict[str, str]:
    up.kubectl("scale", "deployment", "ebs-csi-controller", "-n", "kube-system", f"--replicas={count}")

    def done() -> dict[str, str]:
        found = replicas(up)
        return found if len(found) == len(up.items("pods", *DRIVER)) == count else {}

    found: dict[str, str] = up.wait(f"{count} controllers run", done)
    return found


def leases(up: Up) -> list[dict[str, Any]]:
    return [up.get("lease", name, "-n", "kube-system")["spec"] for name in LEASES]


def holders(up: Up) -> set[str]:
    return {spec["holderIdentity"] for spec in leases(up)}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def slow_down(up: Up, seconds: float) -> None:
    memory = up.memory()
    account = ebs.Account(
        f"http://127.0.0.1:{memory.cloud_port}", REGION, memory.access_key, memory.secret_key
    )
    script = [
        {"action": action, "delay": seconds, "code": "", "times": 3}
        for action in ("CreateVolume", "AttachVolume")
    ]

    async def tell() -> None:
        host = Host()
        ec2 = await ebs.connect(account, host)
        try:
            await ec2.call("SetFaults", {"Script": json.dumps(script)})
        finally:
            await ec2.close()
            await host.close()

    asyncio.run(tell())


def crash(up: Up, node: str, *more: str) -> None:
    command = [VOLPLANE, "crash", f"node/{node}", "--data-dir", str(up.directory), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def are_asked_for(up: Up) -> bool:
    """The leader has written down what it is about to do; the calls follow at once."""
    attachments = up.items("volumeattachments")
    claims = [c for c in up.items("pvc") if c["metadata"]["name"] in NEW]
    return (
        len(attachments) == len(OLD)
        and all(a["metadata"].get("finalizers") for a in attachments)
        and len(claims) == len(NEW)
        and all(INTENT in c["metadata"].get("finalizers", []) for c in claims)
    )


def is_bound(up: Up, names: tuple[str, ...]) -> bool:
    return all(up.get("pvc", name)["status"].get("phase") == "Bound" for name in names)


def test_the_other_replica_goes_on_where_the_leader_was_lost(up: Up) -> None:
    ((leader, lost),) = scale(up, 1).items()
    up.wait("it leads", lambda: holders(up) == {leader})
    other, elsewhere = next(pair for pair in scale(up, 2).items() if pair[0] != leader)
    assert elsewhere != lost
    up.apply("".join(CLAIM.format(name=name) for name in OLD))
    up.wait("the first claims are bound", lambda: is_bound(up, OLD))

    slow_down(up, 6.0)
    up.apply("".join(CLAIM.format(name=name) for name in NEW))
    up.apply("".join(POD.format(name=name, lost=lost) for name in OLD))
    up.wait("creating and attaching are under way", lambda: are_asked_for(up))
    assert holders(up) == {leader}
    before = leases(up)
    crash(up, lost)

    up.wait("the other one leads", lambda: holders(up) == {other})
    for old, new in zip(before, leases(up), strict=True):
        waited = (moment(new["acquireTime"]) - moment(old["renewTime"])).total_seconds()
        period = old["leaseDurationSeconds"]
        assert waited >= period - 0.5  # never two leaders
        assert waited < 2 * period + RETRY  # a period after the last renewal, and what a busy machine adds
        assert new["leaseTransitions"] == old["leaseTransitions"] + 1
    up.wait("the pods run", lambda: all(up.phase(name) == "Running" for name in OLD))
    up.wait("the last claims are bound", lambda: is_bound(up, NEW))
    for name in OLD:
        assert up.kubectl("exec", name, "--", "cat", "/data/lives").split() == ["life"]
    audit(up)

    crash(up, lost, "--revive")
    up.wait("both replicas run again", lambda: len(replicas(up)) == 2)
    assert holders(up) == {other}  # who comes back does not push its way in
    up.kubectl("delete", "pod", *OLD, "--timeout=100s")
    up.kubectl("delete", "pvc", *OLD, *NEW, "--timeout=100s")
    up.wait("nothing is left", lambda: not up.items("pv"))
    audit(up)


def audit(up: Up) -> None:
    """From the disk service's own history: a disk for each claim, and each attached once at most."""
    volumes: set[str] = set()
    attaches: Counter[str] = Counter()
    holder: dict[str, str] = {}
    for key, value in history(up.directory / "cloud" / "state.db", "/cloud/volumes/"):
        volumes.add(key)
        attachment = msgspec.json.decode(value, type=Volume).attachment if value is not None else None
        now = attachment.instance if attachment else ""
        if now and now != holder.get(key, ""):
            attaches[key] += 1
        holder[key] = now
    assert len(volumes) == len(OLD) + len(NEW)
    assert sorted(attaches.values()) == [1] * len(OLD)
