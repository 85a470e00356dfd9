"""`make bench`: measure, print one table, write one file.

Clients use HTTPS like a user's; the cluster is a separate process. Times are medians; the machine should be
idle.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvloop
from msgspec import Struct

import volplane
from tests.bench import (
    api,
    claim_burst,
    claim_to_pod,
    claims,
    container_runtime,
    cpu,
    csi_baseline,
    hollow_nodes,
    many_volumes,
    memory,
    pods,
    scheduler_throughput,
    separate_roles,
    startup,
    verbs,
)
from tests.bench.cluster_process import ClusterProcess
from tests.bench.report import Figure, document, machine, table
from tests.support.cri.containerd import NEEDED

KEYS = "abcdefghijklmnop"


class Sizes:
    """The sizes of the measurements."""

    def __init__(self, *, quick: bool) -> None:
        self.journeys, self.singles, self.floor = (5, 10, 5) if quick else (20, 50, 20)
        self.claims, self.pods = (50, 10) if quick else (200, 50)
        self.rounds, self.starts = (1, 1) if quick else (3, 5)
        self.held = 200 if quick else 1000
        self.crowds = (100,) if quick else (100, 1000, 5000)
        self.burst = 100 if quick else 1000
        self.volumes, self.hollow = (300, 50) if quick else (10_000, 1000)
        self.seconds, self.writes = (0.3, 20) if quick else (2.0, 200)


Tables = dict[str, str]  # measurements with their own table
Waits = dict[str, float]  # measurement → share of its time that the cluster waited for a CPU


async def measure(only: str, nodes: int, sizes: Sizes, waits: Waits, tables: Tables) -> list[Figure]:
    figures: list[Figure] = []
    if "e" in only:
        _say("e: start-up")
        figures += await startup.measure(nodes, sizes.starts)
    # Memory is measured on a cluster that has done nothing yet.
    if "f" in only:
        _say("f: memory")
        async with ClusterProcess(nodes) as running:
            figures += await memory.measure(running, sizes.held)
    if "h" in only:
        _say("h: many nodes")
        figures += await scheduler_throughput.measure(sizes.crowds)
    if "j" in only:
        _say("j: the API server" + (", and its peer" if api.PEER else ""))
        more, tables["j"] = await api.measure(sizes.seconds, sizes.writes)
        figures += more
    if "k" in only:
        _say("k: CPU time of claims")
        figures += await cpu.measure(nodes, sizes.claims, sizes.rounds)
    if set(only) & set("abcdgi"):
        async with ClusterProcess(nodes) as running:
            figures += await _on_one(running, only, sizes, waits)
    if "m" in only:
        _say("m: verbs that look at a cluster")
        async with ClusterProcess(1) as running:
            figures += await verbs.measure(running, sizes.starts)
    if "i" in only:
        figures += await claim_burst.alone(sizes.burst)
    if "n" in only:
        _say("n: one process or many")
        figures += await separate_roles.measure(nodes, sizes.claims, sizes.pods, sizes.rounds)
    if "o" in only:
        _say("o: many volumes")
        figures += await many_volumes.measure(nodes, sizes.volumes)
    if "p" in only:
        _say("p: hollow nodes")
        figures += await hollow_nodes.measure(sizes.hollow, sizes.rounds)
    if "l" in only:
        if missing := [name for name in NEEDED if shutil.which(name) is None]:
            _say(f"l: nothing, because {', '.join(missing)} is not installed (tools/packages.sh)")
        else:
            _say("l: a container runtime")
            figures += await container_runtime.measure(nodes, sizes.journeys, sizes.pods, sizes.rounds)
    return sorted(figures, key=lambda figure: KEYS.index(figure.key))


class Step(Struct, frozen=True):
    """One measurement on a running cluster."""

    name: str
    measure: Callable[[], Awaitable[list[Figure]]]
    subject: str = ""  # of the CPU time; "": the CPU time is not shown
    count: int = 0  # number of subjects, those to warm up included


async def _on_one(running: ClusterProcess, only: str, sizes: Sizes, waits: Waits) -> list[Figure]:
    journeys, singles = sizes.journeys + claim_to_pod.WARM_UP, sizes.singles + claims.WARM_UP
    many, crowd = sizes.claims * sizes.rounds, sizes.pods * sizes.rounds
    steps = {
        "g": Step("the floor", lambda: csi_baseline.measure(running, sizes.floor)),
        "a": Step("journeys", lambda: claim_to_pod.measure(running, sizes.journeys), "journey", journeys),
        "b": Step("single claims", lambda: claims.one_by_one(running, sizes.singles), "claim", singles),
        "c": Step("many claims", lambda: claims.at_once(running, sizes.claims, sizes.rounds), "claim", many),
        "d": Step("many pods", lambda: pods.measure(running, sizes.pods, sizes.rounds), "pod", crowd),
        "i": Step("a burst of claims", lambda: claim_burst.measure(running, sizes.burst)),
    }
    figures: list[Figure] = []
    for key, step in steps.items():
        if key in only:
            _say(f"{key}: {step.name}")
            before, cpu_before = running.cpu_times(), running.cpu_seconds()
            figures += await step.measure()
            run, delayed = (now - then for now, then in zip(running.cpu_times(), before, strict=True))
            waits[key] = delayed / (run + delayed)
            if step.subject:
                each = (running.cpu_seconds() - cpu_before) * 1000 / step.count
                name = f"CPU time per {step.subject}, create and delete"
                figures.append(Figure(key=key, name=name, unit="ms", samples=(each,)))
    return figures


def _say(text: str) -> None:
    print(f"measuring {text} …", file=sys.stderr, flush=True)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", default=KEYS, help="some of a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    chosen = parser.parse_args(given)
    chosen.only = chosen.only.replace(",", "")
    if unknown := set(chosen.only) - set(KEYS):
        parser.error(f"--only knows {', '.join(KEYS)}, not {', '.join(sorted(unknown))}")
    return chosen


def main(given: Sequence[str] | None = None) -> None:
    chosen = _arguments(given)
    # Compile first, as for an installed package, so that no start-up includes compiling.
    compileall.compile_dir(str(Path(volplane.__file__).parent), quiet=2)
    facts, waits, tables = machine(), Waits(), Tables()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sizes = Sizes(quick=chosen.quick)
        figures = runner.run(measure(chosen.only, chosen.nodes, sizes, waits, tables))
    plain = [figure for figure in figures if figure.key not in tables]
    print(f"{facts['python']}, {facts['cpus']} CPUs; ratio: how many times better than upstream\n")
    print("\n\n".join([*([table(plain)] if plain else []), *tables.values()]))
    file = Path(f"bench-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json")
    facts |= {"nodes": chosen.nodes, "quick": chosen.quick, "waited_for_cpu": waits}
    file.write_bytes(document(figures, facts))
    shown = ", ".join(f"{key} {part:.0%}" for key, part in waits.items())
    print(f"\nshare of the time that the cluster waited for a CPU: {shown or 'not measured'}")
    print("(beyond a few percent the machine was busy, and the times are too long)")
    print(f"everything in {file}")


if __name__ == "__main__":
    main()
