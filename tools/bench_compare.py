"""Compare this tree with an older commit: run `make bench` on both in turns, and print the ratios.

Machines are noisy, so two runs at different times say little. Here every round measures both trees, one right
after the other, and the order changes from round to round. A ratio below 1 means that this tree is faster or
smaller. The spread shows how far single rounds differ: a change within the spread is not a finding. On a busy
machine, compare the rows with CPU time.

This tree's benchmark measures both trees: it starts the other one's `volplane`. Only what runs in the process
of the benchmark itself (h, i, p) is measured by the other tree's own benchmark.

A round that fails is reported and left out. The table is printed for the rounds that are complete, also after
Ctrl-C; the exit code is 1 if a round failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
Medians = dict[str, float]  # "a1 ms", the first figure of measure a → median
Names = dict[str, str]  # the same → "(a) claim and pod until written [ms]", as this tree names it
KEYS = "abcdefghijkl"  # m, n, o and p only if they are asked for: they take minutes
IN_PROCESS = "hip"  # measures that do not start a process for all that they measure


@contextmanager
def check_out(revision: str) -> Iterator[Path]:
    """A work tree of that commit, removed at the end."""
    place = Path(tempfile.mkdtemp(prefix="vp-compare-")) / "base"
    subprocess.run(
        ["git", "worktree", "add", "--quiet", "--detach", str(place), revision], cwd=HERE, check=True
    )
    try:
        yield place
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=HERE, check=True)
        place.parent.rmdir()


def find_python(tree: Path) -> Path:
    """The interpreter to measure the base with: ours if it has all that the base needs, in these versions."""
    if _read_pins(tree) <= _read_pins(HERE):
        return Path(sys.executable)
    print("the base pins other dependencies: installing them …", file=sys.stderr, flush=True)
    subprocess.run(
        ["make", "--silent", "-C", str(tree), "packages", ".venv/.ready"], check=True, stdout=sys.stderr
    )
    return tree / ".venv/bin/python"


def _read_pins(tree: Path) -> set[str]:
    """`name==version` of each dependency."""
    lines = (tree / "requirements.lock").read_text().splitlines()
    return {line.split()[0] for line in lines if "==" in line}


def measure(tree: Path, python: Path, only: str, options: Sequence[str]) -> tuple[Medians, Names]:
    """Run the benchmark on a tree. Raises CalledProcessError if it fails."""
    medians, names = Medians(), Names()
    own = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = shlex.join(["env", f"PYTHONPATH={tree / 'src'}", str(python), "-m", "volplane"])
    ours = {**os.environ, "VOLPLANE_BENCH_COMMAND": command}
    separate = [key for key in only if key not in IN_PROCESS]
    in_process = [key for key in only if key in IN_PROCESS]
    if separate:
        _run_benchmark(HERE, Path(sys.executable), ours, separate, options, medians, names)
    if in_process:
        _run_benchmark(tree, python, own, in_process, options, medians, names)
    return medians, names


def _run_benchmark(
    tree: Path,
    python: Path,
    environment: Mapping[str, str],
    only: Sequence[str],
    options: Sequence[str],
    medians: Medians,
    names: Names,
) -> None:
    before = set(tree.glob("bench-*.json"))
    command = [str(python), "-m", "tests.bench", "--only", ",".join(only), *options]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    (report,) = set(tree.glob("bench-*.json")) - before
    figures = json.loads(report.read_text())["figures"]
    report.unlink()
    for figure in figures:
        # By its place, because names of figures change between commits.
        number = sum(known.startswith(figure["key"]) for known in medians) + 1
        key = f"{figure['key']}{number} {figure['unit']}"
        medians[key] = figure["median"]
        names[key] = f"({figure['key']}) {figure['name']} [{figure['unit']}]"


def measure_round(
    trees: Sequence[tuple[Path, Path]], only: str, options: Sequence[str], *, reverse: bool
) -> tuple[list[Medians], Names]:
    """The medians of each tree, in the order given, and the names of the last one's figures."""
    found: list[Medians] = [{} for _ in trees]
    names = Names()
    numbers = range(len(trees))
    for number in reversed(numbers) if reverse else numbers:
        found[number], own = measure(*trees[number], only, options)
        if number == numbers[-1]:
            names = own
    return found, names


def print_table(rounds: Sequence[Sequence[Medians]], names: Names) -> None:
    shown = [key for key in names if all(key in medians for one in rounds for medians in one)]
    width = max((len(names[key]) for key in shown), default=0)
    print(f"{'':{width}}  {'base':>9}  {'this':>9}  {'ratio':>6}  spread of {len(rounds)} rounds")
    for key in shown:
        base = statistics.median(base[key] for base, _ in rounds)
        this = statistics.median(this[key] for _, this in rounds)
        ratios = sorted(this[key] / base[key] for base, this in rounds if base[key])
        if ratios:
            middle, spread = statistics.median(ratios), f"{ratios[0]:.3f} … {ratios[-1]:.3f}"
            print(f"{names[key]:{width}}  {base:9.2f}  {this:9.2f}  {middle:6.3f}  {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-compare", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="how often both trees are measured (default 5)")
    parser.add_argument("--only", default=KEYS, help="some of a … p; all but m to p by default")
    chosen, options = parser.parse_known_args()
    only = chosen.only.replace(",", "")
    if chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    rounds: list[list[Medians]] = []
    names = Names()
    failed = 0
    with check_out(chosen.base) as tree, suppress(KeyboardInterrupt):
        trees = [(tree, find_python(tree)), (HERE, Path(sys.executable))]
        for number in range(chosen.rounds):
            print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
            try:
                medians, names = measure_round(trees, only, options, reverse=bool(number % 2))
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"round {number + 1} failed and is left out: {error}", file=sys.stderr, flush=True)
            else:
                rounds.append(medians)
    if rounds:
        print_table(rounds, names)
    sys.exit(1 if failed or not rounds else 0)


if __name__ == "__main__":
    main()
