"""Kill the node's process, and the whole control plane.

Each role is killed twice in a lifecycle (SIGKILL): before the effect of a step and, after its restart, after
the effect of the same step. It repeats the calls that were in flight; containers continue meanwhile.
"""

from __future__ import annotations

from volplane.api.core import Pod
from volplane.testing.case import CaseBody, CaseTable, require
from volplane.testing.cases import lifecycle
from volplane.testing.cluster_env import ClusterEnv
from volplane.testing.livelock import SHORT_LIMIT
from volplane.testing.process_env import CONTROL_PLANE, ProcessEnv

case = CaseTable(needs_cluster=True, needs_processes=True)

NODE = "worker-1"
# The calls of a node, and the capabilities that each needs.
NODE_CALLS = {
    "NodeStageVolume": ("stage",),
    "NodePublishVolume": (),
    "NodeUnpublishVolume": (),
    "NodeUnstageVolume": ("stage",),
}
POD_DELETED = "write:delete:pods"
# Ends when the file {0} is there, and not by SIGTERM.
UNTIL_RELEASED = "trap '' TERM; until [ -e /results/{0} ]; do sleep 0.05; done"
# The step at which the control plane is killed: the write that ends it, and the capabilities that it needs.
STEPS = {
    "a claim is provisioned": ("CreateVolume", "write:create:persistentvolumes", ("provision",)),
    "a volume is attached": (
        "ControllerPublishVolume",
        "write:patch:volumeattachments.storage.k8s.io/status",
        ("attach",),
    ),
    "a pod is deleted": ("NodeUnpublishVolume", POD_DELETED, ()),
}


def before_and_after(place: str) -> tuple[str, str]:
    return f"{place}:before", f"{place}:after"


async def _start_survivor(env: ClusterEnv) -> tuple[str, str, str]:
    claim = await env.claim()
    return claim, *await lifecycle.start_writer_pod(env, claim, node=NODE)


def _node_killed_at(method: str) -> CaseBody:
    async def body(env: ProcessEnv) -> None:
        env.livelock.limit = SHORT_LIMIT
        async with env.survivor_pod(_start_survivor) as witness:
            async with lifecycle.expect_nothing_left(env):
                env.kill_at_failpoints(f"node/{NODE}", *before_and_after(f"rpc:{method}"))
                claim = await env.claim()
                written = await lifecycle.write_in_pod(env, claim, node=NODE)
                await lifecycle.expect_same_data(
                    env, claim, written, f"after its node was killed at {method}", node=NODE
                )
                await env.delete_created()
                left = env.failpoints_not_reached(f"node/{NODE}")
                require(not left, f"the node never reached {', '.join(left)}: {method} is not called")
                await witness.check()
            when = f"in a volume that was in use while its node was killed at {method}"
            await lifecycle.expect_same_data(env, witness.claim, witness.written, when, node=NODE)

    return body


def _control_plane_killed_at(place: str) -> CaseBody:
    async def body(env: ProcessEnv) -> None:
        env.livelock.limit = SHORT_LIMIT
        async with lifecycle.expect_nothing_left(env):
            claim = await env.claim()
            if place == POD_DELETED:
                released = env.new_name("released")
                pod, written = await lifecycle.start_writer_pod(
                    env, claim, script=UNTIL_RELEASED.format(released), terminationGracePeriodSeconds=3600
                )
                await env.delete(Pod, pod)
                _kill_control_plane_at(env, place)
                (env.results / released).touch()  # the container exits, and the kubelet deletes the pod
                await env.remove_pod(pod)
            else:
                _kill_control_plane_at(env, place)
                written = await lifecycle.write_in_pod(env, claim)
            await lifecycle.expect_same_data(env, claim, written, "after the control plane was killed")
            await env.delete_created()
            left = env.failpoints_not_reached("apiserver")
            require(not left, f"the API server never reached {', '.join(left)}")

    return body


def _kill_control_plane_at(env: ProcessEnv, place: str) -> None:
    env.cluster.kill_together(*CONTROL_PLANE)
    env.kill_at_failpoints("apiserver", *before_and_after(place))


for _method, _needs in NODE_CALLS.items():
    case.add(
        f"cluster/node killed at {_method}",
        _method,
        "A node that is killed before and after the call repeats it; containers continue.",
        _node_killed_at(_method),
        "create",
        *_needs,
    )
for _what, (_method, _place, _needs) in STEPS.items():
    case.add(
        f"cluster/control plane killed while {_what}",
        _method,
        "API server, controllers and scheduler recover from a kill before and after the result is stored.",
        _control_plane_killed_at(_place),
        "create",
        *_needs,
    )
