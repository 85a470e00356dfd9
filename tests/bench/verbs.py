"""(m) CPU time of the verbs that look at a cluster, each a process of its own, from its start to its end."""

from __future__ import annotations

import asyncio
import os
import subprocess

from tests.bench.cluster_process import ClusterProcess, until
from tests.bench.objects import NAMESPACE, WAITING, claim, pod
from tests.bench.report import Figure
from tests.support.up import VOLPLANE
from volplane.api.core import Pod

NAME = "looked-at"
AIM = 300.0  # milliseconds of `volplane explain`
VERBS = {
    f"explain pvc/{NAME}": ("explain", f"pvc/{NAME}"),
    f"explain pod/{NAME}": ("explain", f"pod/{NAME}"),
    f"journey pod/{NAME}": ("journey", f"pod/{NAME}"),
    "world": ("world",),
}


async def measure(running: ClusterProcess, times: int) -> list[Figure]:
    pods = await running.watch(Pod)
    written = running.pipe.line(NAME)
    await running.client.create(claim(NAME, WAITING))
    await running.client.create(pod(NAME, NAME, str(running.signals)))
    await asyncio.wait_for(written, 60)
    await until(pods, lambda: _is_running(pods.get(NAME, NAMESPACE)), f"{NAME} runs")
    figures = []
    for name, words in VERBS.items():
        command = [VOLPLANE, *words, "--kubeconfig", str(running.directory / "kubeconfig")]
        # The first one compiles byte code.
        samples = [await asyncio.to_thread(_cpu_milliseconds, command) for _ in range(times + 1)][1:]
        aim = AIM if words[0] == "explain" else None
        title = f"CPU time of volplane {name}"
        figures.append(Figure(key="m", name=title, unit="ms", samples=tuple(samples), aim=aim))
    await running.client.delete(Pod, NAME, NAMESPACE)
    return figures


def _is_running(found: Pod | None) -> bool:
    return found is not None and found.status.phase == "Running"


def _cpu_milliseconds(command: list[str]) -> float:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1000
