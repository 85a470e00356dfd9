"""A scheduler and kubelets without containers: pods get a node, run, and end when a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from volplane.api.core import Pod
from volplane.base import clock
from volplane.client.client import Client
from volplane.loops.controller import Controller
from volplane.rules.pods import has_ended


class ServePod(Struct, frozen=True):
    """Bind the pod, show it as running, or remove it."""


class Kubelets(Controller[str, Pod, ServePod]):
    """Binds every pod to one of `nodes` and makes it Ready at once; `unready` and `hung` name exceptions."""

    name = "test-kubelets"

    def __init__(self, client: Client, *nodes: str) -> None:
        super().__init__(client)
        self.nodes = nodes or ("n",)
        self.unready: set[str] = set()  # run, and are never ready
        self.hung: set[str] = set()  # do not end when they are deleted
        self.dead: set[str] = set()  # nodes that do nothing any more
        self.turn = 0

    def setup(self) -> None:
        self.pods = self.watch(Pod, lambda old, new: [new.key] if new else [])

    def view(self, key: str) -> Pod | None:
        return self.pods.at(key)

    def plan(self, view: Pod) -> Iterator[ServePod]:
        yield ServePod()

    async def act(self, key: str, view: Pod, step: ServePod) -> None:
        pod = view
        if not pod.spec.node_name:
            alive = [n for n in self.nodes if n not in self.dead]
            self.turn += 1
            if not pod.is_deleting and alive:
                await self.client.bind(pod, alive[self.turn % len(alive)])
        elif pod.spec.node_name in self.dead:
            return
        elif pod.is_deleting:
            if pod.name not in self.hung:
                await self.client.delete(Pod, pod.name, pod.namespace, grace=0, uid=pod.uid, missing_ok=True)
        elif not has_ended(pod):
            await self.show(pod, phase="Running", ready=pod.name not in self.unready)

    async def show(self, pod: Pod, *, phase: str, ready: bool = False, **more: Any) -> None:
        status = "True" if ready else "False"
        held = {c.type: c.status for c in pod.status.conditions}
        if (pod.status.phase, held.get("Ready")) == (phase, status):
            return
        others = [{"type": t, "status": s} for t, s in held.items() if t != "Ready"]
        condition = {"type": "Ready", "status": status, "lastTransitionTime": clock.stamp()}
        await self.client.patch(
            Pod,
            pod.name,
            pod.namespace,
            merge={"status": {"phase": phase, "conditions": [*others, condition], **more}},
            subresource="status",
            uid=pod.uid,
            missing_ok=True,
        )

    def look_again(self, *names: str, namespace: str = "default") -> None:
        for name in names:
            self.queue.add(f"{namespace}/{name}")
