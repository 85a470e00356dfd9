"""Compare this tree with an older commit: run `make bench` on both in turns, and print the ratios.

Machines are noisy, so two runs at different times say little. Here every round measures both trees, one right
after the other, and the order changes from round to round. A ratio below 1 means that this tree is faster or
smaller. The spread shows how far single rounds differ: a change within the spread is not a finding.
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
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
Medians = dict[str, float]  # "(a) claim and pod until written" → median


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


def measure(tree: Path, python: Path, options: Sequence[str]) -> Medians:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    before = set(tree.glob("bench-*.json"))
    command = [str(python), "-m", "tests.bench", *options]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    (report,) = set(tree.glob("bench-*.json")) - before
    figures = json.loads(report.read_text())["figures"]
    report.unlink()
    return {f"({figure['key']}) {figure['name']} [{figure['unit']}]": figure["median"] for figure in figures}


def print_table(rounds: Sequence[tuple[Medians, Medians]]) -> None:
    names = [name for name in rounds[0][1] if all(name in base for base, _ in rounds)]
    width = max(map(len, names))
    print(f"{'':{width}}  {'base':>9}  {'this':>9}  {'ratio':>6}  spread of {len(rounds)} rounds")
    for name in names:
        base = statistics.median(base[name] for base, _ in rounds)
        this = statistics.median(this[name] for _, this in rounds)
        ratios = sorted(this[name] / base[name] for base, this in rounds if base[name])
        if ratios:
            middle = statistics.median(ratios)
            print(
                f"{name:{width}}  {base:9.2f}  {this:9.2f}  {middle:6.3f}  {ratios[0]:.3f} … {ratios[-1]:.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-compare", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="how often both trees are measured (default 5)")
    chosen, options = parser.parse_known_args()
    if chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    rounds: list[tuple[Medians, Medians]] = []
    with check_out(chosen.base) as tree:
        python = find_python(tree)
        for number in range(chosen.rounds):
            print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
            if number % 2:
                this = measure(HERE, Path(sys.executable), options)
                base = measure(tree, python, options)
            else:
                base = measure(tree, python, options)
                this = measure(HERE, Path(sys.executable), options)
            rounds.append((base, this))
    print_table(rounds)


if __name__ == "__main__":
    main()
