"""Compare this tree with an older commit: run `make bench` on both in turns, and print the ratios.

Machines are noisy, so two runs at different times say little. Here every round measures both trees, one right
after the other, and the order changes from round to round. A ratio below 1 means that this tree is faster or
smaller. The spread shows how far single rounds differ: a change within the spread is not a finding.

A round that fails is reported and left out. The table is printed for the rounds that are complete, also after
Ctrl-C; the exit code is 1 if a round failed.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
Medians = dict[str, float]  # "a1 ms", the first figure of measure a → median
Names = dict[str, str]  # the same → "(a) claim and pod until written [ms]", as this tree names it


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
    """The interpreter to measure the base with: ours if both trees pin the same dependencies."""
    if filecmp.cmp(tree / "requirements.lock", HERE / "requirements.lock", shallow=False):
        return Path(sys.executable)
    print("the base pins other dependencies: installing them …", file=sys.stderr, flush=True)
    subprocess.run(
        ["make", "--silent", "-C", str(tree), "packages", ".venv/.ready"], check=True, stdout=sys.stderr
    )
    return tree / ".venv/bin/python"


def measure(tree: Path, python: Path, options: Sequence[str]) -> tuple[Medians, Names]:
    """Run the benchmark of a tree. Raises CalledProcessError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    before = set(tree.glob("bench-*.json"))
    command = [str(python), "-m", "tests.bench", *options]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    (report,) = set(tree.glob("bench-*.json")) - before
    figures = json.loads(report.read_text())["figures"]
    report.unlink()
    medians, names = Medians(), Names()
    for figure in figures:
        # By its place, because names of figures change between commits.
        number = sum(known.startswith(figure["key"]) for known in medians) + 1
        key = f"{figure['key']}{number} {figure['unit']}"
        medians[key] = figure["median"]
        names[key] = f"({figure['key']}) {figure['name']} [{figure['unit']}]"
    return medians, names


def measure_round(
    trees: Sequence[tuple[Path, Path]], options: Sequence[str], *, reverse: bool
) -> tuple[list[Medians], Names]:
    """The medians of each tree, in the order given, and the names of the last one's figures."""
    found: list[Medians] = [{} for _ in trees]
    names = Names()
    numbers = range(len(trees))
    for number in reversed(numbers) if reverse else numbers:
        found[number], own = measure(*trees[number], options)
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
    chosen, options = parser.parse_known_args()
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
                medians, names = measure_round(trees, options, reverse=bool(number % 2))
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
