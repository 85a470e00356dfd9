"""The driver in a cluster: claims and pods as users create them, without and with disturbed calls.

A disturbance affects every call of one lifecycle: a claim, a pod that writes, another that reads, and the
deletion of everything. The calls in the report show whether the cluster or the driver is at fault.
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
    SLEEP,
    checksum_in_pod,
    delete_group,
    expand_claim,
    expect_same_data,
    group_snapshot,
    modify_claim,
    new_group_labels,
    restore_snapshot,
    run_lifecycle,
    skip_if_kernel_cannot_grow,
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
    "A claim is provisioned, a pod writes, the next one reads, and everything is deleted with the claim.",
    "create",
)
async def claim_and_pods(env: ClusterEnv) -> None:
    await run_lifecycle(env)
    left = await env.wait_for_unmounts()
    require(not left, f"mounts are left: {', '.join(left)}")


@case(
    "cluster/moves to another node",
    "Kubernetes: persistent volumes",
    "A pod on another node reads what the first one wrote.",
    "create",
)
async def moves(env: ClusterEnv) -> None:
    claim = await env.claim()
    written = await write_in_pod(env, claim, node="worker-1")
    second = await env.second_node(claim)
    await expect_same_data(env, claim, written, f"on {second}", node=second)
    await expect_same_data(env, claim, written, "back on worker-1", node="worker-1")


@case(
    "cluster/two pods of a node",
    "Kubernetes: ReadWriteOnce is for one node, not for one pod",
    "Two pods on one node use a volume at the same time.",
    "create",
)
async def two_pods(env: ClusterEnv) -> None:
    claim = await env.claim()
    _, written = await start_writer_pod(env, claim, node="worker-1")
    await expect_same_data(env, claim, written, "in the second pod of the node", node="worker-1")


@case(
    "cluster/pods of two nodes",
    "Kubernetes: ReadWriteMany is for many nodes",
    "Pods on two nodes use a volume at the same time, and each reads what the other has written.",
    "create",
    "shared",
)
async def two_nodes(env: ClusterEnv) -> None:
    claim = await env.claim(mode="ReadWriteMany")
    _, written = await start_writer_pod(env, claim, node="worker-1")
    second = await env.second_node(claim)
    await expect_same_data(env, claim, written, f"on {second}, while worker-1 uses it", node=second)
    back = await write_in_pod(env, claim, node=second)
    await expect_same_data(env, claim, back, "on worker-1, written by the other node", node="worker-1")


@case(
    "cluster/read-only mount",
    "Kubernetes: readOnly of a volume mount",
    "A container that mounts the volume with readOnly can read, and cannot write.",
    "create",
)
async def read_only(env: ClusterEnv) -> None:
    claim = await env.claim()
    written = await write_in_pod(env, claim)
    text = f"{READ}; if touch /data/no; then exit 9; else exit 0; fi"
    volume = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    now = await checksum_in_pod(env, text, readonly=True, volume=volume)
    require(now == written, "a read-only mount has other data")


@case(
    "cluster/fsGroup",
    "Kubernetes: fsGroup of a pod",
    "The volume's files belong to the pod's fsGroup, and a user of this group can write.",
    "create",
)
async def fs_group(env: ClusterEnv) -> None:
    driver = env.external.driver
    if driver is not None and driver.spec.fs_group_policy == "None":
        raise NotSupported("its CSIDriver has fsGroupPolicy None")
    claim = await env.claim()
    text = "touch /data/mine && stat -c %g /data/mine > /data/out && cat /data/out > /results/{0}"
    env.results.chmod(0o777)
    who = {"fsGroup": 4711, "runAsUser": 1000, "runAsGroup": 1000}
    group = await checksum_in_pod(env, text, claim, securityContext=who)
    require(group == "4711", f"a new file belongs to group {group}, fsGroup is 4711")


@case(
    "cluster/subPath",
    "Kubernetes: subPath of a volume mount",
    "A container with a subPath sees that directory of the volume.",
    "create",
)
async def sub_path(env: ClusterEnv) -> None:
    claim = await env.claim()
    written = await write_in_pod(env, claim, sub_path="a/b")
    now = await checksum_in_pod(env, "sha256sum < /data/a/b/f > /results/{0}", claim)
    require(now == written, "what was written through subPath is not in the volume's directory")


@case(
    "cluster/block",
    "Kubernetes: volumeMode Block",
    "A container gets a raw device, which keeps its data.",
    "create",
    "block",
)
async def block(env: ClusterEnv) -> None:
    claim = await env.claim(block=True)
    make = "head -c 1048576 /dev/urandom > /tmp/f && dd if=/tmp/f of=/dev/data bs=1M conv=fsync"
    written = await checksum_in_pod(env, f"{make} && sha256sum < /tmp/f > /results/{{0}}", claim, block=True)
    look = "dd if=/dev/data bs=1M count=1 iflag=fullblock | sha256sum > /results/{0}"
    now = await checksum_in_pod(env, look, claim, block=True)
    require(written and now == written, "the device has lost data")


@case(
    "cluster/expand",
    "Kubernetes: expanding a claim",
    "An expanded claim gets its new size and keeps its data.",
    "create",
    "expand",
    "expand-claim",
)
async def expand(env: ClusterEnv) -> None:
    await skip_if_kernel_cannot_grow(env, _expand(env))


async def _expand(env: ClusterEnv) -> None:
    claim = await env.claim()
    written = await write_in_pod(env, claim)
    await expand_claim(env, claim)
    await expect_same_data(env, claim, written, "after the volume grew")
    await wait_until_expanded(env, claim)


@case(
    "cluster/snapshot and restore",
    "Kubernetes: volume snapshots",
    "A snapshot of a claim becomes ready, and a restored claim has the data of that time.",
    "create",
    "snapshot",
)
async def snapshot_and_restore(env: ClusterEnv) -> None:
    claim = await env.claim()
    written = await write_in_pod(env, claim)
    made = await snapshot(env, claim)
    await write_in_pod(env, claim)  # overwrite the data
    await expect_same_data(
        env, await restore_snapshot(env, made), written, "in a claim restored from a snapshot"
    )


@case(
    "cluster/group snapshot",
    "Kubernetes: volume group snapshots",
    "A group snapshot of two claims becomes ready, and claims restored from it have the data.",
    "create",
    "group-snapshot",
)
async def snapshot_group(env: ClusterEnv) -> None:
    labels = new_group_labels(env)
    claims = [await env.claim(labels=labels) for _ in range(2)]
    written = {claim: await write_in_pod(env, claim) for claim in claims}
    name, members = await group_snapshot(env, labels, set(claims))
    for claim in claims:
        copy = await restore_snapshot(env, members[claim])
        await expect_same_data(env, copy, written[claim], "in a claim restored from a group")
    await delete_group(env, name)


@case(
    "cluster/modify",
    "Kubernetes: volume attributes classes",
    "A claim whose VolumeAttributesClass is changed in use gets the parameters and keeps its data.",
    "create",
    "modify-parameters",
)
async def modify(env: ClusterEnv) -> None:
    claim = await env.claim()
    pod, written = await start_writer_pod(env, claim)
    await modify_claim(env, claim)
    await env.remove_pod(pod)
    await expect_same_data(env, claim, written, "after the volume was modified")


@case(
    "cluster/clone",
    "Kubernetes: volume cloning",
    "A clone of a claim has its data.",
    "create",
    "clone",
)
async def clone(env: ClusterEnv) -> None:
    claim = await env.claim()
    written = await write_in_pod(env, claim)
    copy = await env.claim(source={"kind": "PersistentVolumeClaim", "name": claim})
    await expect_same_data(env, copy, written, "in a clone")


@case(
    "cluster/inline",
    "Kubernetes: CSI ephemeral volumes",
    "An inline volume exists as long as its pod.",
    "inline",
)
async def inline(env: ClusterEnv) -> None:
    # Some drivers run on the first node only. A running pod is gone when its volumes are unmounted.
    volume = {"csi": env.given.inline_source(env.name)}
    if env.given.read_only:
        pod = await env.pod(SLEEP, volume=volume, node=FIRST_NODE)
        await env.wait_until_running(pod)
    else:
        pod, _ = await start_writer_pod(env, volume=volume, node=FIRST_NODE)
    await env.remove_pod(pod)
    require(not (left := await env.wait_for_unmounts()), f"mounts are left: {left}")


# The calls of the shortest lifecycle.
LIFECYCLE_CALLS = {
    m: needs for m, needs in CALLS.items() if not any(w in m for w in ("Snapshot", "Expand", "Modify"))
}


async def _run_with_each_call(
    env: ClusterEnv, calls: Mapping[str, Sequence[str]], disturb: Callable[[str], CallRule]
) -> None:
    """Run a lifecycle with each call that the driver supports, and disturb each of them."""
    promised = [method for method, needs in calls.items() if all(map(env.capabilities.has, needs))]
    rules = [disturb(method) for method in promised]
    await skip_if_kernel_cannot_grow(env, run_lifecycle(env, *promised))
    # After ControllerExpandVolume there may be nothing to do on the node.
    idle = [rule.method for rule in rules if not rule.met and rule.method != "NodeExpandVolume"]
    require(not idle, f"{', '.join(idle)} was never called, although the driver has its capability")


@case(
    "cluster/every call lost once",
    "Error Scheme",
    "Each call is lost once: the caller repeats it, and the lifecycle continues.",
    "create",
)
async def calls_lost(env: ClusterEnv) -> None:
    mine = env.calls_of_this_case()
    await _run_with_each_call(env, CALLS, lambda method: env.tap.cut(method, where=mine))


@case(
    "cluster/every answer lost once",
    "Error Scheme",
    "Each call is carried out and its answer is lost once: the repeated call succeeds.",
    "create",
)
async def answers_lost(env: ClusterEnv) -> None:
    mine, late = env.calls_of_this_case(), Code.DEADLINE_EXCEEDED
    await _run_with_each_call(env, CALLS, lambda m: env.tap.cut(m, after=True, code=late, where=mine))
    left = await env.wait_for_unmounts()
    require(not left, f"mounts are left: {', '.join(left)}")


@case(
    "cluster/every call twice",
    "Error Scheme",
    "Each call is made twice, without a visible effect.",
    "create",
)
async def calls_twice(env: ClusterEnv) -> None:
    await _run_with_each_call(env, LIFECYCLE_CALLS, lambda method: env.tap.send_twice(method, times=0))


@case(
    "cluster/slow answers",
    "Timeouts",
    "Each call is slow, and nothing is done twice or forgotten.",
    "create",
)
async def slow(env: ClusterEnv) -> None:
    await _run_with_each_call(env, LIFECYCLE_CALLS, lambda method: env.tap.delay(method, 0.3, times=0))


@case(
    "cluster/control plane started again",
    "Kubernetes: everything is in its objects",
    "The whole cluster except the volumes is restarted; pods find their data.",
    "create",
)
async def control_plane(env: ClusterEnv) -> None:
    claim = await env.claim()
    written = await write_in_pod(env, claim)
    await env.restart()
    await expect_same_data(env, claim, written, "after the cluster was restarted")
