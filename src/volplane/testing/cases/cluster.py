"""The driver in a cluster: what users do with claims and pods, and what happens on the way.

Each disturbance is put in the way of every call of one life: a claim, a pod that writes, another that reads,
and everything deleted. That a cluster comes to its end in spite of it is the cluster's merit as much as the
driver's; the calls in the report tell who was at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from volplane.cluster.external_driver.workloads import FIRST_NODE
from volplane.csi.call_interceptor import CallRule
from volplane.csi.outcome import Code
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases.lifecycle import (
    CALLS,
    READ,
    checksum_in_pod,
    delete_group,
    expand_claim,
    expect_same_data,
    group_snapshot,
    modify_claim,
    new_group_labels,
    restore_snapshot,
    run_lifecycle,
    snapshot,
    start_writer_pod,
    wait_until_expanded,
    write_in_pod,
)
from volplane.testing.cluster_env import ClusterEnv

case = CaseTable(needs_cluster=True)


@case(
    "cluster/claim and pods",
    "Kubernetes: persistent volumes",
    "A claim is provisioned, a pod writes, the next one reads it, and everything is deleted with the claim.",
    "create",
)
async def claim_and_pods(env: ClusterEnv) -> None:
    await run_lifecycle(env)
    left = await env.mounts_left()
    require(not left, f"mounts are left: {', '.join(left)}")


@case(
    "cluster/moves to another node",
    "Kubernetes: persistent volumes",
    "A pod on another node finds what the first one wrote.",
    "create",
)
async def moves(env: ClusterEnv) -> None:
    claim = await env.claim()
    told = await write_in_pod(env, claim, node="worker-1")
    second = await env.second_node(claim)
    await expect_same_data(env, claim, told, f"on {second}", node=second)
    await expect_same_data(env, claim, told, "back on worker-1", node="worker-1")


@case(
    "cluster/two pods of a node",
    "Kubernetes: ReadWriteOnce is for one node, not for one pod",
    "Two pods of one node use a volume at the same time.",
    "create",
)
async def two_pods(env: ClusterEnv) -> None:
    claim = await env.claim()
    _, told = await start_writer_pod(env, claim, node="worker-1")
    await expect_same_data(env, claim, told, "in the second pod of the node", node="worker-1")


@case(
    "cluster/pods of two nodes",
    "Kubernetes: ReadWriteMany is for many nodes",
    "Pods of two nodes use a volume at the same time, and each finds what the other has written.",
    "create",
    "shared",
)
async def two_nodes(env: ClusterEnv) -> None:
    claim = await env.claim(mode="ReadWriteMany")
    _, told = await start_writer_pod(env, claim, node="worker-1")
    second = await env.second_node(claim)
    await expect_same_data(env, claim, told, f"on {second}, while worker-1 has it", node=second)
    back = await write_in_pod(env, claim, node=second)
    await expect_same_data(env, claim, back, "on worker-1, written by the other node", node="worker-1")


@case(
    "cluster/read-only mount",
    "Kubernetes: readOnly of a volume mount",
    "A container that mounts the volume with readOnly reads it, and cannot write.",
    "create",
)
async def read_only(env: ClusterEnv) -> None:
    claim = await env.claim()
    told = await write_in_pod(env, claim)
    text = f"{READ}; if touch /data/no; then exit 9; else exit 0; fi"
    volume = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    now = await checksum_in_pod(env, text, readonly=True, volume=volume)
    require(now == told, "a read-only mount shows something else")


@case(
    "cluster/fsGroup",
    "Kubernetes: fsGroup of a pod",
    "The volume's files belong to the pod's group, and a user of this group can write.",
    "create",
)
async def fs_group(env: ClusterEnv) -> None:
    driver = env.external.driver
    if driver is not None and driver.spec.fs_group_policy == "None":
        raise NotSupported("its CSIDriver says that fsGroup is not for its volumes")
    claim = await env.claim()
    text = "touch /data/mine && stat -c %g /data/mine > /data/out && cat /data/out > /shelf/{0}"
    env.results.chmod(0o777)
    who = {"fsGroup": 4711, "runAsUser": 1000, "runAsGroup": 1000}
    group = await checksum_in_pod(env, text, claim, securityContext=who)
    require(group == "4711", f"a new file belongs to group {group}, fsGroup is 4711")


@case(
    "cluster/subPath",
    "Kubernetes: subPath of a volume mount",
    "A container that mounts a directory of the volume sees that directory, and its files are in the volume.",
    "create",
)
async def sub_path(env: ClusterEnv) -> None:
    claim = await env.claim()
    told = await write_in_pod(env, claim, sub_path="a/b")
    now = await checksum_in_pod(env, "sha256sum < /data/a/b/f > /shelf/{0}", claim)
    require(now == told, "what was written through subPath is not in the volume's directory")


@case(
    "cluster/block",
    "Kubernetes: volumeMode Block",
    "A raw device is given to a container, and keeps what is written to it.",
    "create",
    "block",
)
async def block(env: ClusterEnv) -> None:
    claim = await env.claim(block=True)
    make = "head -c 1048576 /dev/urandom > /tmp/f && dd if=/tmp/f of=/dev/data bs=1M conv=fsync"
    told = await checksum_in_pod(env, f"{make} && sha256sum < /tmp/f > /shelf/{{0}}", claim, block=True)
    look = "dd if=/dev/data bs=1M count=1 iflag=fullblock | sha256sum > /shelf/{0}"
    now = await checksum_in_pod(env, look, claim, block=True)
    require(told and now == told, "the device has not kept what was written to it")


@case(
    "cluster/expand",
    "Kubernetes: expanding a claim",
    "A claim that asks for more gets more, and its data stays.",
    "create",
    "expand",
)
async def expand(env: ClusterEnv) -> None:
    claim = await env.claim()
    told = await write_in_pod(env, claim)
    await expand_claim(env, claim)
    await expect_same_data(env, claim, told, "after the volume grew")
    await wait_until_expanded(env, claim)


@case(
    "cluster/snapshot and restore",
    "Kubernetes: volume snapshots",
    "A snapshot of a claim becomes ready, and a claim made of it has the data of that moment.",
    "create",
    "snapshot",
)
async def snapshot_and_restore(env: ClusterEnv) -> None:
    claim = await env.claim()
    told = await write_in_pod(env, claim)
    made = await snapshot(env, claim)
    await write_in_pod(env, claim)  # something else
    await expect_same_data(
        env, await restore_snapshot(env, made), told, "in a claim restored from a snapshot"
    )


@case(
    "cluster/group snapshot",
    "Kubernetes: volume group snapshots",
    "A snapshot of two claims at once becomes ready, and a claim made of each part has its data.",
    "create",
    "group-snapshot",
)
async def snapshot_group(env: ClusterEnv) -> None:
    labels = new_group_labels(env)
    claims = [await env.claim(labels=labels) for _ in range(2)]
    told = {claim: await write_in_pod(env, claim) for claim in claims}
    name, members = await group_snapshot(env, labels, set(claims))
    for claim in claims:
        copy = await restore_snapshot(env, members[claim])
        await expect_same_data(env, copy, told[claim], "in a claim restored from a group")
    await delete_group(env, name)


@case(
    "cluster/modify",
    "Kubernetes: volume attributes classes",
    "A claim that names another class while a pod uses it gets the class's parameters, and its data stays.",
    "create",
    "modify-parameters",
)
async def modify(env: ClusterEnv) -> None:
    claim = await env.claim()
    pod, told = await start_writer_pod(env, claim)
    await modify_claim(env, claim)
    await env.remove_pod(pod)
    await expect_same_data(env, claim, told, "after the volume was modified")


@case(
    "cluster/clone",
    "Kubernetes: volume cloning",
    "A claim made of another one has its data.",
    "create",
    "clone",
)
async def clone(env: ClusterEnv) -> None:
    claim = await env.claim()
    told = await write_in_pod(env, claim)
    copy = await env.claim(source={"kind": "PersistentVolumeClaim", "name": claim})
    await expect_same_data(env, copy, told, "in a clone")


@case(
    "cluster/inline",
    "Kubernetes: CSI ephemeral volumes",
    "A volume that stands in a pod's manifest is there while the pod is.",
    "inline",
)
async def inline(env: ClusterEnv) -> None:
    # Some drivers run on the first node alone. A pod that runs is gone when its volumes are.
    pod, _ = await start_writer_pod(env, volume={"csi": {"driver": env.name}}, node=FIRST_NODE)
    await env.remove_pod(pod)
    require(not (left := await env.mounts_left()), f"mounts are left: {left}")


# Without what may happen to a volume on its way: a life of these is short.
LIFECYCLE_CALLS = {
    m: needs for m, needs in CALLS.items() if not any(w in m for w in ("Snapshot", "Expand", "Modify"))
}


async def _run_with_each_call(
    env: ClusterEnv, calls: Mapping[str, Sequence[str]], disturb: Callable[[str], CallRule]
) -> None:
    """A life in which each of the calls that the driver promises is made, with something in its way."""
    promised = [method for method, needs in calls.items() if all(map(env.capabilities.has, needs))]
    rules = [disturb(method) for method in promised]
    await run_lifecycle(env, *promised)
    # What its controller has done to a growing volume may leave nothing to do to the node.
    idle = [rule.method for rule in rules if not rule.met and rule.method != "NodeExpandVolume"]
    require(not idle, f"{', '.join(idle)} was never called: its capability is named in vain")


@case(
    "cluster/every call lost once",
    "Error Scheme",
    "Each call is lost on its way once: the caller comes again, and the volume's life goes on.",
    "create",
)
async def calls_lost(env: ClusterEnv) -> None:
    mine = env.calls_of_this_case()
    await _run_with_each_call(env, CALLS, lambda method: env.tap.cut(method, where=mine))


@case(
    "cluster/every answer lost once",
    "Error Scheme",
    "Each call is done and its answer lost once: the same call again finds it done.",
    "create",
)
async def answers_lost(env: ClusterEnv) -> None:
    mine, late = env.calls_of_this_case(), Code.DEADLINE_EXCEEDED
    await _run_with_each_call(env, CALLS, lambda m: env.tap.cut(m, after=True, code=late, where=mine))
    left = await env.mounts_left()
    require(not left, f"mounts are left: {', '.join(left)}")


@case(
    "cluster/every call twice",
    "Error Scheme",
    "Each call is made twice, and nobody notices.",
    "create",
)
async def calls_twice(env: ClusterEnv) -> None:
    await _run_with_each_call(env, LIFECYCLE_CALLS, lambda method: env.tap.send_twice(method, times=0))


@case(
    "cluster/slow answers",
    "Timeouts",
    "Each call takes its time, and nothing is done twice at once or forgotten.",
    "create",
)
async def slow(env: ClusterEnv) -> None:
    await _run_with_each_call(env, LIFECYCLE_CALLS, lambda method: env.tap.delay(method, 0.3, times=0))


@case(
    "cluster/control plane started again",
    "Kubernetes: everything is in its objects",
    "All of the cluster but the volumes ends and starts again; pods find their data.",
    "create",
)
async def control_plane(env: ClusterEnv) -> None:
    claim = await env.claim()
    told = await write_in_pod(env, claim)
    await env.restart()
    await expect_same_data(env, claim, told, "after the cluster was started again")
