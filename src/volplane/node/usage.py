"""What the node and its containers use of CPU and memory, for metrics-server and Prometheus.

Containers without a container runtime have no cgroup of their own: the processes below the container's first
one are added up. Built-in images run inside this process and have no usage.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from volplane.base import clock
from volplane.host import Host

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
KIB = 1024


class ContainerSample(Struct, frozen=True):
    namespace: str
    pod: str
    container: str
    cpu: float  # seconds since the container's start
    memory: int  # bytes that are not easily freed
    started: float  # seconds since the epoch


class NodeSample(Struct, frozen=True):
    time: float  # seconds since the epoch
    cpu: float  # seconds of all processors since the machine's start
    memory: int
    processors: int
    capacity: int  # bytes of memory
    containers: tuple[ContainerSample, ...] = ()


class RunningContainer(Struct, frozen=True):
    """A container as the node knows it."""

    namespace: str
    pod: str
    name: str
    pid: int  # of its first process on this machine


class NodeUsageReader(Protocol):
    async def read(self) -> NodeSample: ...


class ProcessUsageReader:
    """Reads from /proc."""

    def __init__(
        self, host: Host, list_containers: Callable[[], Awaitable[Iterable[RunningContainer]]]
    ) -> None:
        self._host, self._list = host, list_containers

    async def read(self) -> NodeSample:
        return await self._host.call(read_node, tuple(await self._list()))


def read_node(containers: Sequence[RunningContainer] = ()) -> NodeSample:
    memory = _read_memory()
    found = (_read_container(each) for each in containers)
    return NodeSample(
        clock.wall().timestamp(),
        _read_processor_seconds(),
        memory["MemTotal"] - memory["MemAvailable"],
        os.cpu_count() or 1,
        memory["MemTotal"],
        tuple(sample for sample in found if sample is not None),
    )


def _read_memory() -> dict[str, int]:
    found = {}
    with open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * KIB
    return found


def _read_processor_seconds() -> float:
    """Time that processors were not idle."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq + steal) / TICKS


def _read_container(container: RunningContainer) -> ContainerSample | None:
    """None if it has ended."""
    cpu, memory, started = 0.0, 0, 0.0
    for pid in _list_processes(container.pid):
        try:
            fields = _read_stat(pid)
            with open(f"/proc/{pid}/statm") as file:
                resident = int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
        # Its own time, and that of its children that have ended.
        cpu += sum(map(int, fields[11:15])) / TICKS
        memory += resident * PAGE
        if pid == container.pid:
            started = _boot_time() + int(fields[19]) / TICKS
    if not started:
        return None
    return ContainerSample(container.namespace, container.pod, container.name, cpu, memory, started)


def _read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the program's name, which may contain anything."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _list_processes(first: int) -> Iterator[int]:
    """A process and all below it."""
    waiting = [first]
    while waiting:
        pid = waiting.pop()
        yield pid
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    waiting += map(int, file.read().split())
        except OSError:
            continue  # it has ended meanwhile


def _boot_time() -> float:
    with open("/proc/stat") as file:
        return next(float(line.split()[1]) for line in file if line.startswith("btime "))
