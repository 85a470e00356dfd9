"""The cluster is killed around the driver: the node's process, and the whole control plane.

Each role dies twice in a life, by kill -9: at the step before its effect, and, started again, at the same
step after it. What it had under way, the driver is asked again; and containers go on meanwhile.
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
# The calls of a node, and what a driver must promise for each to be made.
NODE_CALLS = {
    "NodeStageVolume": ("stage",),
    "NodePublishVolume": (),
    "NodeUnpublishVolume": (),
    "NodeUnstageVolume": ("stage",),
}
POD_DELETED = "write:delete:pods"
IGNORE_TERM = "trap '' TERM; sleep 3600 & wait; wait"
# What the control plane is at when it dies: the write that ends the step, and what a driver must promise.
STEPS = {
    "a claim is provisioned": ("CreateVolume", "write:create:persistentvolumes", ()),
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
                told = await lifecycle.write_in_pod(env, claim, node=NODE)
                await lifecycle.expect_same_data(
                    env, claim, told, f"after its node was killed at {method}", node=NODE
                )
                await env.delete_created()
                left = env.failpoints_not_reached(f"node/{NODE}")
                require(not left, f"the node was never at {', '.join(left)}: {method} is not called")
                await witness.check()
            when = f"in a volume that was in use while its node was killed at {method}"
            await lifecycle.expect_same_data(env, witness.claim, witness.told, when, node=NODE)

    return body


def _control_plane_killed_at(place: str) -> CaseBody:
    async def body(env: ProcessEnv) -> None:
        env.livelock.limit = SHORT_LIMIT
        async with lifecycle.expect_nothing_left(env):
            claim = await env.claim()
            if place == POD_DELETED:
                pod, told = await lifecycle.start_writer_pod(env, claim, script=IGNORE_TERM)
                await env.delete(Pod, pod)  # its container has a second left
                _kill_control_plane_at(env, place)
                await env.remove_pod(pod)
            else:
                _kill_control_plane_at(env, place)
                told = await lifecycle.write_in_pod(env, claim)
            await lifecycle.expect_same_data(env, claim, told, "after the control plane was killed")
            await env.delete_created()
            left = env.failpoints_not_reached("apiserver")
            require(not left, f"the API server was never at {', '.join(left)}")

    return body


def _kill_control_plane_at(env: ProcessEnv, place: str) -> None:
    env.cluster.kill_together(*CONTROL_PLANE)
    env.kill_at_failpoints("apiserver", *before_and_after(place))


for _method, _needs in NODE_CALLS.items():
    case.add(
        f"cluster/node killed at {_method}",
        _method,
        "A node's process that is killed before the call, and after it, asks again; containers go on.",
        _node_killed_at(_method),
        "create",
        *_needs,
    )
for _what, (_method, _place, _needs) in STEPS.items():
    case.add(
        f"cluster/control plane killed while {_what}",
        _method,
        "API server, controllers and scheduler die before what was done is stored, and after it: it goes on.",
        _control_plane_killed_at(_place),
        "create",
        *_needs,
    )
