"""The driver's controller runs twice; one that leads is asked to end, and the next is lost in mid-call.

The disk service is told to take its time, so that creating and attaching are under way for certain when the
leader's machine loses power. What it was asked for it does nevertheless, and nobody is there to hear of it:
the other replica asks again, and nothing must be done twice.

When who led is read from every version of the leases that the store has kept, by their own stamps.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest

from tests.support.crash import history
from tests.support.up import VOLPLANE, Up
from volplane.api import codec
from volplane.api.coordination import Lease, LeaseSpec
from volplane.api.finalizers import PROVISIONING_INTENT_FINALIZER
from volplane.base import clock
from volplane.cloud.model import CloudVolume
from volplane.cluster.data_directory import REGION
from volplane.drivers import ebs
from volplane.host import Host

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

LEASES = ("ebs-csi-aws-com", "external-attacher-leader-ebs-csi-aws-com")  # who provisions, who attaches
DRIVER = ("-n", "kube-system", "-l", "app=ebs-csi-controller")
PERIOD, RETRY = 15, 5.0  # seconds: how long a lease is good, and how often it is renewed
ALLOWED = (
    1.0  # seconds from a renewal's stamp until it is heard of, and from the timer to the stamp of the next
)
Call = tuple[str, str]  # a method of the driver, and the volume by its name or its handle
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


def the_other_one(found: dict[str, str], one: str) -> tuple[str, str]:
    (other,) = set(found) - {one}
    return other, found[other]


def holders(up: Up) -> set[str]:
    return {up.get("lease", name, "-n", "kube-system")["spec"]["holderIdentity"] for name in LEASES}


def records(up: Up, lease: str) -> list[LeaseSpec]:
    """All that was ever written to a lease."""
    key = f"/registry/leases.coordination.k8s.io/kube-system/{lease}"
    kept = history(up.directory / "state.db", key)
    return [codec.load(Lease, value, 1).spec for _, value in kept if value is not None]


def between(old: str | None, new: str | None) -> float:
    assert old is not None
    assert new is not None
    return (clock.parse(new) - clock.parse(old)).total_seconds()


def turn(specs: list[LeaseSpec], old: str, new: str) -> tuple[LeaseSpec, LeaseSpec]:
    """The last word of one holder, and the first of the next, who came right after it."""
    (found,) = (
        pair for pair in pairwise(specs) if (pair[0].holder_identity, pair[1].holder_identity) == (old, new)
    )
    return found


def allowed(specs: list[LeaseSpec]) -> float:
    """What the machine adds, by the stamps: a renewal that was late shows how late things are here."""
    pairs = [(a, b) for a, b in pairwise(specs) if a.holder_identity == b.holder_identity != ""]
    late = max((between(a.renew_time, b.renew_time) for a, b in pairs), default=RETRY) - RETRY
    return ALLOWED + 2 * max(0.0, late)  # two requests lie between a lost leader's last word and the next


def check_that_it_took_over_in_time(up: Up, leader: str, other: str) -> None:
    for lease in LEASES:
        specs = records(up, lease)
        old, new = turn(specs, leader, other)
        waited = between(old.renew_time, new.acquire_time)
        assert old.lease_duration_seconds == PERIOD
        assert waited >= PERIOD - 0.1  # never two leaders; two clocks of one machine may differ a little
        assert waited <= PERIOD + allowed(specs), f"{lease}: {waited} s after the last renewal"
        assert new.lease_transitions == (old.lease_transitions or 0) + 1


def check_that_it_was_handed_over(up: Up, leader: str, other: str) -> None:
    """Who is asked to end gives the lease back, and nobody waits for it to run out."""
    for lease in LEASES:
        specs = records(up, lease)
        _, given = turn(specs, leader, "")
        _, taken = turn(specs, "", other)
        waited = between(given.renew_time, taken.acquire_time)
        assert 0 <= waited < RETRY + allowed(specs), f"{lease}: {waited} s after it was given back"


def calls(up: Up, pod: str) -> Counter[Call]:
    """What a replica's driver was called for, as it has written it down itself."""
    found: Counter[Call] = Counter()
    for file in up.directory.glob(f"n/*/**/kube-system_{pod}_*/ebs-plugin/*.log"):
        for method, reported in re.findall(r"(\w+): called args=(\{.*\})", file.read_text()):
            request = json.loads(reported)
            found[method, request.get("name") or request.get("volume_id", "")] += 1
    return found


def slow_down(up: Up, seconds: float) -> None:
    memory = up.memory()
    account = ebs.AwsAccount(
        f"http://127.0.0.1:{memory.cloud_port}", REGION, memory.access_key, memory.secret_key
    )
    script = [
        {"action": action, "delay": seconds, "code": "", "times": 3}
        for action in ("CreateVolume", "AttachVolume")
    ]

    async def tell() -> None:
        host = Host()
        ec2 = await ebs.connect_ec2(account, host)
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
    """The leader has written down what it is about to do; the calls follow."""
    attachments = up.items("volumeattachments")
    claims = [c for c in up.items("pvc") if c["metadata"]["name"] in NEW]
    return (
        len(attachments) == len(OLD)
        and all(a["metadata"].get("finalizers") for a in attachments)
        and len(claims) == len(NEW)
        and all(PROVISIONING_INTENT_FINALIZER in c["metadata"].get("finalizers", []) for c in claims)
    )


def is_bound(up: Up, names: tuple[str, ...]) -> bool:
    return all(up.get("pvc", name)["status"].get("phase") == "Bound" for name in names)


def test_the_other_replica_goes_on_where_the_leader_was_lost(up: Up) -> None:
    (first,) = scale(up, 1)
    up.wait("it leads", lambda: holders(up) == {first})
    leader, lost = the_other_one(scale(up, 2), first)
    up.kubectl("delete", "pod", first, "-n", "kube-system", "--timeout=100s")
    up.wait("the second one leads", lambda: holders(up) == {leader})
    check_that_it_was_handed_over(up, first, leader)

    other, elsewhere = the_other_one(scale(up, 2), leader)
    assert elsewhere != lost
    up.apply("".join(CLAIM.format(name=name) for name in OLD))
    up.wait("the first claims are bound", lambda: is_bound(up, OLD))

    slow_down(up, 12.0)
    up.apply("".join(CLAIM.format(name=name) for name in NEW))
    up.apply("".join(POD.format(name=name, lost=lost) for name in OLD))
    up.wait("creating and attaching are asked for", lambda: are_asked_for(up))
    up.wait("they are under way", lambda: unanswered(up) <= set(calls(up, leader)))
    assert holders(up) == {leader}
    crash(up, lost)
    left = unanswered(up)

    up.wait("the other one leads", lambda: holders(up) == {other})
    check_that_it_took_over_in_time(up, leader, other)
    up.wait("the pods run", lambda: all(up.phase(name) == "Running" for name in OLD))
    up.wait("the last claims are bound", lambda: is_bound(up, NEW))
    for name in OLD:
        assert up.kubectl("exec", name, "--", "cat", "/data/lives").split() == ["life"]
    audit(up)
    check_calls(up, leader, other, left)

    crash(up, lost, "--revive")
    up.wait("both replicas run again", lambda: len(replicas(up)) == 2)
    assert holders(up) == {other}  # who comes back does not push its way in
    up.kubectl("delete", "pod", *OLD, "--timeout=100s")
    up.kubectl("delete", "pvc", *OLD, *NEW, "--timeout=100s")
    up.wait("nothing is left", lambda: not up.items("pv"))
    audit(up)


def unanswered(up: Up) -> set[Call]:
    """What the leader was asked for and has not lived to write down."""
    handles = {v["metadata"]["name"]: v["spec"]["csi"]["volumeHandle"] for v in up.items("pv")}
    asked = {f"pvc-{c['metadata']['uid']}" for c in up.items("pvc")}
    waiting = [a for a in up.items("volumeattachments") if not a.get("status", {}).get("attached")]
    attaching = {handles[a["spec"]["source"]["persistentVolumeName"]] for a in waiting}
    return {("CreateVolume", name) for name in asked - set(handles)} | {
        ("ControllerPublishVolume", handle) for handle in attaching
    }


def check_calls(up: Up, leader: str, other: str, left: set[Call]) -> None:
    """Nothing lost: what was under way is asked for again. Nothing doubled: what was done is not.

    On a machine so slow that all was done before the crash came, the next one asks for nothing.
    """
    assert left <= set(calls(up, leader))
    changing = ("Create", "Delete", "ControllerPublish", "ControllerUnpublish")
    assert {call for call in calls(up, other) if call[0].startswith(changing)} == left


def audit(up: Up) -> None:
    """From the disk service's own history: a disk for each claim, and each attached once at most."""
    volumes: set[str] = set()
    attaches: Counter[str] = Counter()
    holder: dict[str, str] = {}
    for key, value in history(up.directory / "cloud" / "state.db", "/cloud/volumes/"):
        volumes.add(key)
        attachments = msgspec.json.decode(value, type=CloudVolume).attachments if value is not None else ()
        now = ",".join(sorted(a.instance for a in attachments))
        if now and now != holder.get(key, ""):
            attaches[key] += 1
        holder[key] = now
    assert len(volumes) == len(OLD) + len(NEW)
    assert sorted(attaches.values()) == [1] * len(OLD)
