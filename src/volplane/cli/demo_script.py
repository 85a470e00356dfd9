"""The steps of the demo, through the API and with watches, as a user would take them.

A pod writes a line to a new volume and is deleted; a second pod reads it on another node.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from volplane.api.core import (
    Container,
    Event,
    HostPathVolumeSource,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
    VolumeResourceRequirements,
)
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.storage import VolumeAttachment
from volplane.cli.error import CommandError
from volplane.client.client import Client
from volplane.explain.result import ExplainResult

T = TypeVar("T", bound=Resource)

CLAIM, WRITER, READER, NAMESPACE = "demo-data", "demo-writer", "demo-reader", "default"
WAIT_TIMEOUT, LOOK_INTERVAL = 60.0, 2.0  # seconds
FAILURES = ("FailedMount", "FailedAttachVolume", "ProvisioningFailed")
FAILED_TIMES = 3  # of an operation, until the demo gives up


class DemoScript:
    def __init__(
        self,
        client: Client,
        directory: Path,
        explain: Callable[[str], Awaitable[ExplainResult]],
        *,
        storage_class: str = "gp3",
    ) -> None:
        """`explain` says what a pod waits for."""
        self.client, self._explain = client, explain
        self.storage_class = storage_class
        self.claim, self.writer = f"{NAMESPACE}/{CLAIM}", f"{NAMESPACE}/{WRITER}"
        self.results = directory / "results"  # a host directory to which the containers write results
        self.results.mkdir(mode=0o755)
        secret = hashlib.sha256(str(time.time_ns()).encode()).hexdigest()[:12]
        self.line = f"volplane was here, {secret}"
        self.read = ""
        self.first_node = self.second_node = ""
        self.began = self.written = 0  # time.monotonic_ns
        self.moved_in = 0.0

    # --- steps

    async def write(self) -> None:
        """Create claim and pod, and wait until the container has written to the volume."""
        await self._caches()
        self.began = time.monotonic_ns()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.client.create(self._claim()))
            group.create_task(
                self.client.create(self._pod(WRITER, f"echo '{self.line}' > /data/line && sync"))
            )
        pod = await self._wait_for_completion(WRITER)
        self.written = time.monotonic_ns()
        self.first_node = pod.spec.node_name

    async def move(self) -> None:
        """Cordon the first node, and read the line in a pod on another node."""
        await self.client.patch(Node, self.first_node, merge={"spec": {"unschedulable": True}})
        began = time.monotonic()
        await self.client.delete(Pod, WRITER, NAMESPACE)
        await self.client.create(self._pod(READER, "cat /data/line > /results/read"))
        pod = await self._wait_for_completion(READER)
        self.moved_in = time.monotonic() - began
        self.second_node = pod.spec.node_name
        self.read = (self.results / "read").read_text().strip()

    async def clean_up(self) -> list[str]:
        """Delete pods and claim, and wait until volume and attachment are gone."""
        claim = await self.client.get(PersistentVolumeClaim, CLAIM, NAMESPACE)
        volume = claim.spec.volume_name
        handle = await self._handle(volume)
        await self.client.delete(Pod, READER, NAMESPACE, missing_ok=True)
        await self.client.delete(PersistentVolumeClaim, CLAIM, NAMESPACE)
        await self._until(Pod, lambda: not self._pods(), "the pods are gone")
        await self._until(VolumeAttachment, lambda: not self.client.cache(VolumeAttachment).all(), "detached")
        await self._until(
            PersistentVolume, lambda: not self.client.cache(PersistentVolume).all(), "no volume is left"
        )
        await self.client.patch(Node, self.first_node, merge={"spec": {"unschedulable": None}})
        return [f"pods {WRITER} and {READER}", f"claim {CLAIM}", f"volume {volume}", f"disk {handle}"]

    async def _handle(self, volume: str) -> str:
        found = await self.client.get(PersistentVolume, volume)
        return found.spec.csi.volume_handle if found.spec.csi else ""

    # --- wait with watches

    async def _caches(self) -> None:
        for kind in (Pod, PersistentVolume, VolumeAttachment):
            await self.client.cache(kind).wait_synced()

    def _pods(self) -> list[Pod]:
        return [p for p in self.client.cache(Pod).namespace(NAMESPACE) if p.name in (WRITER, READER)]

    async def _wait_for_completion(self, name: str) -> Pod:
        """Wait until the pod has succeeded."""

        def phase() -> str:
            pod = self.client.cache(Pod).get(name, NAMESPACE)
            return pod.status.phase if pod else ""

        what = f"pod {name} has done its work"
        await self._until(Pod, lambda: phase() in ("Succeeded", "Failed"), what, pod=name)
        pod = self.client.cache(Pod).get(name, NAMESPACE)
        if pod is None or pod.status.phase != "Succeeded":
            raise CommandError(f"pod {name} failed: {pod.status.message if pod else 'it is gone'}")
        return pod

    async def _until(self, kind: type[T], holds: Callable[[], bool], what: str, *, pod: str = "") -> None:
        """Wait; with a pod, end early with the reason if the cluster fails again and again."""
        changed, began = asyncio.Event(), time.monotonic()
        end = self.client.cache(kind).subscribe(lambda old, new: changed.set())
        try:
            while not holds():
                changed.clear()
                try:
                    async with asyncio.timeout(LOOK_INTERVAL):
                        await changed.wait()
                except TimeoutError:
                    await self._check_wait(pod, what, time.monotonic() - began)
        finally:
            end()

    async def _check_wait(self, pod: str, what: str, seconds: float) -> None:
        """Raise CommandError if nothing will change, or after WAIT_TIMEOUT."""
        late = seconds >= WAIT_TIMEOUT
        if pod and (late or await self._fails_again(pod)):
            found = await self._explain(pod)
            advice = "".join(f"\n  - {line}" for line in found.advice)
            raise CommandError(f"{found.subject} waits: {found.answer}{advice}")
        if late:
            raise CommandError(f"timed out after {WAIT_TIMEOUT:g} s waiting for: {what}")

    async def _fails_again(self, pod: str) -> bool:
        """Whether an operation for the pod or the claim has failed more than once."""
        events = [
            event
            for event in await self.client.list(Event, NAMESPACE)
            if event.type == "Warning"
            and event.reason in FAILURES
            and event.involved_object.name in (pod, CLAIM)
        ]
        return sum(max(event.count, 1) for event in events) >= FAILED_TIMES

    def _claim(self) -> PersistentVolumeClaim:
        return PersistentVolumeClaim(
            metadata=ObjectMeta(name=CLAIM, namespace=NAMESPACE),
            spec=PersistentVolumeClaimSpec(
                access_modes=("ReadWriteOnce",),
                storage_class_name=self.storage_class,
                resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
            ),
        )

    def _pod(self, name: str, script: str) -> Pod:
        mounts = (
            VolumeMount(name="data", mount_path="/data"),
            VolumeMount(name="results", mount_path="/results"),
        )
        claim = PersistentVolumeClaimVolumeSource(claim_name=CLAIM)
        return Pod(
            metadata=ObjectMeta(name=name, namespace=NAMESPACE),
            spec=PodSpec(
                restart_policy="Never",
                termination_grace_period_seconds=1,
                automount_service_account_token=False,
                containers=(
                    Container(
                        name="main", image="busybox", command=("sh", "-c", script), volume_mounts=mounts
                    ),
                ),
                volumes=(
                    Volume(name="data", persistent_volume_claim=claim),
                    Volume(name="results", host_path=HostPathVolumeSource(path=str(self.results))),
                ),
            ),
        )
