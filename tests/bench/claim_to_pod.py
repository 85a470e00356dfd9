"""(a) A claim of a WaitForFirstConsumer class with its pod: create and delete."""

from __future__ import annotations

import asyncio
import time

from msgspec import Struct

from tests.bench import stages
from tests.bench.cluster_process import ClusterProcess, until
from tests.bench.objects import NAMESPACE, WAITING, claim, pod
from tests.bench.report import Figure
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment

WARM_UP = 2  # rounds that are not counted: the first one imports modules and opens connections


class Times(Struct, frozen=True):
    """Milliseconds."""

    stages: dict[str, float]
    shares: dict[str, float]


async def measure(running: ClusterProcess, times: int) -> list[Figure]:
    await _round(running, WARM_UP, "warm")
    up, down = await _round(running, times, "journey")
    return [
        Figure(
            key="a",
            name="claim and pod until the container has written",
            unit="ms",
            samples=tuple(t.stages["written"] for t in up),
            aim=80,
            upstream=7100,
            stages=stages.columns([u.stages for u in up]),
            shares=stages.columns([u.shares for u in up]),
            floor="floor up: create, attach, stage, publish",
        ),
        Figure(
            key="a",
            name="pod deleted until the attachment is gone",
            unit="ms",
            samples=tuple(t.stages["gone"] for t in down),
            aim=40,
            upstream=3700,
            stages=stages.columns([d.stages for d in down]),
            shares=stages.columns([d.shares for d in down]),
            floor="floor down: unpublish, unstage, detach",
        ),
    ]


async def _round(running: ClusterProcess, times: int, word: str) -> tuple[list[Times], list[Times]]:
    up, down = [], []
    for number in range(times):
        name = f"{word}-{number}"
        up.append(await _up(running, name))
        down.append(await _down(running, name))
        await _clean(running, name)
    return up, down


async def _up(running: ClusterProcess, name: str) -> Times:
    pods = await running.watch(Pod)
    written = running.pipe.line(name)
    start = time.monotonic_ns()
    await running.client.create(claim(name, WAITING))
    await running.client.create(pod(name, name, str(running.signals)))
    await asyncio.wait_for(written, 60)
    end = time.monotonic_ns()
    await until(pods, lambda: _phase(pods.get(name, NAMESPACE)) == "Running", f"{name} runs")
    spans = [s for s in await running.spans(start) if s.start < end]
    reached = {**stages.stage_times(stages.UP, spans, start), "written": (end - start) / 1e6}
    return Times(reached, stages.shares(spans, start, end))


async def _down(running: ClusterProcess, name: str) -> Times:
    attachments = await running.watch(VolumeAttachment)
    start = time.monotonic_ns()
    await running.client.delete(Pod, name, NAMESPACE)
    await until(attachments, lambda: not attachments.all(), f"the attachment of {name} is gone")
    end = time.monotonic_ns()
    spans = await running.spans(start)
    reached = {**stages.stage_times(stages.DOWN, spans, start), "gone": (end - start) / 1e6}
    return Times(reached, stages.shares(spans, start, end))


async def _clean(running: ClusterProcess, name: str) -> None:
    volumes = await running.watch(PersistentVolume)
    await running.client.delete(PersistentVolumeClaim, name, NAMESPACE)
    await until(volumes, lambda: not volumes.all(), f"the volume of {name} is gone")


def _phase(pod: Pod | None) -> str:
    return pod.status.phase if pod is not None else ""
