"""(n) One process or many: claims at once, and claims with pods at once.

All roles in one process, against each role in a process of its own (`up --separate`). Both are measured in
turns. A ratio below 1 means that several processes are faster.
"""

from __future__ import annotations

import statistics

from tests.bench import claims, pods
from tests.bench.cluster_process import ClusterProcess
from tests.bench.report import Figure

ONE, MANY = "all roles in one process", "each role in its own process"


async def measure(nodes: int, claim_count: int, pod_count: int, rounds: int) -> list[Figure]:
    names = (f"{claim_count} claims at once until Bound", f"{pod_count} pods at once until written")
    found: dict[tuple[str, str], list[float]] = {}
    costs: dict[str, list[float]] = {ONE: [], MANY: []}
    for _ in range(rounds):
        for how, options in ((ONE, ()), (MANY, ("--separate",))):
            async with ClusterProcess(nodes, *options) as running:
                await running.warm()
                await claims.create_bound(running, claim_count // 10, "warm")
                await claims.delete_all(running)
                before = running.cpu_seconds()
                took = await claims.create_bound(running, claim_count, "many")
                await claims.delete_all(running)
                costs[how].append((running.cpu_seconds() - before) * 1000 / claim_count)
                (started, *_) = await pods.measure(running, pod_count, 1)
            found.setdefault((names[0], how), []).append(took)
            found.setdefault((names[1], how), []).append(started.median)
    figures = []
    for name in names:
        one, many = found[name, ONE], found[name, MANY]
        figures += [_figure(f"{name}, {ONE}", "s", one), _figure(f"{name}, {MANY}", "s", many)]
        ratios = [own / shared for own, shared in zip(many, one, strict=True)]
        figures.append(_figure(f"{name}, ratio", "x", [statistics.median(ratios)]))
    figures += [_figure(f"CPU time per claim, create and delete, {how}", "ms", costs[how]) for how in costs]
    return figures


def _figure(name: str, unit: str, samples: list[float]) -> Figure:
    return Figure(key="n", name=name, unit=unit, samples=tuple(samples))
