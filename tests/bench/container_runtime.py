"""(l) The measurements (a) and (d) with containerd, beside the floor: the runtime alone, without a volume.

With the peer `kubelet` also those of upstream's kubelet, as a node of our cluster on the same runtime.

The image is in a registry on loopback. `image: busybox` has the policy Always, so each pod asks the registry.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from tests.bench import claim_to_pod, pods, upstream_kubelet
from tests.bench.cluster_process import ClusterProcess
from tests.bench.report import Figure
from tests.bench.upstream_kubelet import UpstreamKubelet
from tests.support import peers
from tests.support.cri import image
from tests.support.cri.containerd import PAUSE, Containerd, run_containerd
from tests.support.cri.registry import run_registry
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.client import CriClient

KEY = "l"
WARM_UP = 2
UP = "floor up: pull, sandbox, container"
DOWN = "floor down: container, sandbox"
FLOORS = {
    "claim and pod until the container has written": UP,
    "pod deleted until the attachment is gone": DOWN,
}


async def measure(nodes: int, journeys: int, count: int, rounds: int) -> list[Figure]:
    with run_prepared_runtime() as runtime:
        figures = await measure_floor(runtime, journeys)
        arguments = ("--container-runtime-endpoint", runtime.endpoint)
        async with ClusterProcess(nodes, *arguments) as running:
            figures += mark("containerd", await measure_pods(running, journeys, count, rounds))
        if (program := peers.find(upstream_kubelet.PROGRAM)) is not None:
            async with ClusterProcess(1) as running, UpstreamKubelet(running, runtime, program):
                measured = await measure_pods(running, journeys, count, rounds)
                figures += mark("upstream's kubelet", measured)
    return figures


async def measure_pods(running: ClusterProcess, journeys: int, count: int, rounds: int) -> list[Figure]:
    figures = await claim_to_pod.measure(running, journeys)
    return figures + await pods.measure(running, count, rounds)


def mark(kind: str, figures: Iterable[Figure]) -> list[Figure]:
    """Name them as those with a container runtime; the aims are those of processes."""
    return [
        structs.replace(each, key=KEY, name=f"{kind}: {each.name}", aim=None, floor=FLOORS.get(each.name, ""))
        for each in figures
    ]


@contextmanager
def run_prepared_runtime() -> Iterator[Containerd]:
    with run_registry(Path(tempfile.mkdtemp(prefix="registry-"))) as registry:
        registry.push(image.pause(), PAUSE.partition("/")[2])
        registry.push(image.busybox(), "library/busybox:latest")
        with run_containerd({"_default": registry.url}) as runtime:
            yield runtime


async def measure_floor(runtime: Containerd, times: int) -> list[Figure]:
    cri = CriClient(runtime.endpoint)
    try:
        samples = [await _round(cri, runtime, f"floor-{number}") for number in range(times + WARM_UP)]
    finally:
        await cri.close()
    up, down = zip(*samples[WARM_UP:], strict=True)
    return [
        Figure(key=KEY, name=UP, unit="ms", samples=up),
        Figure(key=KEY, name=DOWN, unit="ms", samples=down),
    ]


async def _round(cri: CriClient, runtime: Containerd, name: str) -> tuple[float, float]:
    """Milliseconds until a container has started, and until its sandbox has stopped."""
    metadata = v1.PodSandboxMetadata(name=name, namespace="default", uid=name)
    logs = str(runtime.directory / "logs")
    pod = v1.PodSandboxConfig(metadata=metadata, log_directory=logs, linux=v1.LinuxPodSandboxConfig())
    start = time.monotonic_ns()
    sandbox = await cri.run_sandbox(pod, "")
    spec = v1.ImageSpec(image="docker.io/library/busybox:latest")
    await cri.call("PullImage", v1.PullImageRequest(image=spec, sandbox_config=pod))
    config = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main"),
        image=spec,
        command=["sleep", "infinity"],
        log_path="main.log",
        linux=v1.LinuxContainerConfig(),
    )
    container = await cri.create_container(sandbox, config, pod)
    await cri.start_container(container)
    up = (time.monotonic_ns() - start) / 1e6
    start = time.monotonic_ns()
    await cri.stop_container(container, 0)
    await cri.stop_sandbox(sandbox)
    down = (time.monotonic_ns() - start) / 1e6
    await cri.remove_sandbox(sandbox)
    return up, down
