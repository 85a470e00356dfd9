"""`make bench`: measures everything that the README promises, prints one table, writes one file.

Clients go through HTTPS as a user's do; the cluster is a process of its own. Times are medians on a machine
that should have nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

import volplane
from tests.bench import claims, floor, journeys, memory, pods, starting
from tests.bench.report import Figure, document, machine, table
from tests.bench.running import Running

KEYS = "abcdefg"


class Sizes:
    """How much of everything."""

    def __init__(self, *, quick: bool) -> None:
        self.journeys, self.singles, self.floor = (5, 10, 5) if quick else (20, 50, 20)
        self.claims, self.pods = (50, 10) if quick else (200, 50)
        self.rounds, self.starts = (1, 1) if quick else (3, 5)
        self.held = 200 if quick else 1000


async def measure(only: str, nodes: int, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    if "e" in only:
        _say("e: start-up")
        figures += await starting.measure(nodes, sizes.starts)
    # Memory is measured on a cluster that has done nothing yet.
    if "f" in only:
        _say("f: memory")
        async with Running(nodes) as running:
            figures += await memory.measure(running, sizes.held)
    if set(only) & set("abcdg"):
        async with Running(nodes) as running:
            figures += await _on_one(running, only, sizes)
    return sorted(figures, key=lambda figure: KEYS.index(figure.key))


async def _on_one(running: Running, only: str, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    if "g" in only:
        _say("g: the floor")
        figures += await floor.measure(running, sizes.floor)
    if "a" in only:
        _say("a: journeys")
        figures += await journeys.measure(running, sizes.journeys)
    if "b" in only:
        _say("b: single claims")
        figures += await claims.one_by_one(running, sizes.singles)
    if "c" in only:
        _say("c: many claims")
        figures += await claims.at_once(running, sizes.claims, sizes.rounds)
    if "d" in only:
        _say("d: many pods")
        figures += await pods.measure(running, sizes.pods, sizes.rounds)
    return figures


def _say(text: str) -> None:
    print(f"measuring {text} …", file=sys.stderr, flush=True)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", default=KEYS, help="some of a,b,c,d,e,f,g")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    chosen = parser.parse_args(given)
    chosen.only = chosen.only.replace(",", "")
    if unknown := set(chosen.only) - set(KEYS):
        parser.error(f"--only knows {', '.join(KEYS)}, not {', '.join(sorted(unknown))}")
    return chosen


def main(given: Sequence[str] | None = None) -> None:
    chosen = _arguments(given)
    # As an installed package: its byte code is there, and no start-up pays for compiling.
    compileall.compile_dir(str(Path(volplane.__file__).parent), quiet=2)
    facts = machine()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure(chosen.only, chosen.nodes, Sizes(quick=chosen.quick)))
    print(table(figures))
    file = Path(f"bench-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json")
    file.write_bytes(document(figures, facts | {"nodes": chosen.nodes, "quick": chosen.quick}))
    print(f"\nload at the start {facts['load'][0]:.1f} on {facts['cpus']} CPUs; everything in {file}")


if __name__ == "__main__":
    main()
