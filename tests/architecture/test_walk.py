"""ARCHITECTURE.md names the functions that a claim passes from POST to mounted: each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
SECTION = "From a claim to a mounted volume"
MAX_HOPS = 12
ROW = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \| .+ \|$", re.MULTILINE)


class Hop(NamedTuple):
    number: int
    file: str
    symbol: str


def read_walk(page: str) -> dict[str, list[Hop]]:
    """The hops of each role, by the heading of the role."""
    section = page.split(f"\n## {SECTION}\n")[1].split("\n## ")[0]
    roles = re.split(r"^### (.+)$", section, flags=re.MULTILINE)[1:]
    return {
        role: [Hop(int(number), file, symbol) for number, file, symbol in ROW.findall(text)]
        for role, text in zip(roles[::2], roles[1::2], strict=True)
    }


def find_problem(hop: Hop) -> str:
    """Why a hop is not true to the code; nothing if it is."""
    path = ROOT / "src" / "volplane" / hop.file
    if not path.is_file():
        return f"there is no file {hop.file}"
    scope: ast.AST = ast.parse(path.read_text())
    for name in hop.symbol.split("."):
        children = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == name]
        if not children:
            return f"{hop.file} has no {hop.symbol}"
        scope = children[0]
    return ""


WALK = read_walk(PAGE.read_text())


@pytest.mark.parametrize("role", WALK)
def test_the_hops_of_a_role_are_numbered_and_few(role: str) -> None:
    assert [hop.number for hop in WALK[role]] == list(range(1, len(WALK[role]) + 1))
    assert len(WALK[role]) <= MAX_HOPS


@pytest.mark.parametrize(
    "hop", [pytest.param(hop, id=f"{hop.file}:{hop.symbol}") for hops in WALK.values() for hop in hops]
)
def test_a_hop_exists(hop: Hop) -> None:
    assert not find_problem(hop)


def test_every_row_of_the_walk_is_read() -> None:
    section = PAGE.read_text().split(f"\n## {SECTION}\n")[1].split("\n## ")[0]
    assert len(re.findall(r"^\| \d", section, re.MULTILINE)) == sum(map(len, WALK.values()))
    assert len(WALK) >= 8


@pytest.mark.parametrize(
    "hop",
    [
        Hop(1, "apiserver/nowhere.py", "create"),
        Hop(1, "apiserver/verbs/create.py", "nothing"),
        Hop(1, "loops/queue.py", "Queue.nothing"),
        Hop(1, "loops/queue.py", "add"),
    ],
)
def test_a_hop_that_does_not_exist_is_found(hop: Hop) -> None:
    assert find_problem(hop)
