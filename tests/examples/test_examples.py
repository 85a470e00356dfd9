"""Every example runs as its README says."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.up import Up, wait_until

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=2)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def test_every_example_has_a_readme() -> None:
    assert [e.name for e in EXAMPLES.iterdir() if not (e / "README.md").exists()] == []


def test_a_claim_and_a_pod(up: Up) -> None:
    example = str(EXAMPLES / "01-claim-and-pod")
    up.kubectl("apply", "-f", example)
    up.wait_running("my-app-pod")
    answer = up.kubectl("exec", "my-app-pod", "--", "df", "-T", "/usr/share/nginx/html")
    expected = (EXAMPLES / "01-claim-and-pod" / "README.md").read_text()
    assert answer.splitlines()[0] in expected
    assert " ext4 " in answer
    up.kubectl("delete", "-f", example)
    wait_until("nothing is left", lambda: up.items("pv") == [] or None)


@pytest.mark.parametrize(
    "name",
    [
        "02-snapshot-and-restore",
        "03-shared-volume",
        pytest.param("05-databases", marks=pytest.mark.peer("redis-server", "pg_isready")),
    ],
)
def test_the_commands_print_what_the_readme_says(up: Up, name: str) -> None:
    example = EXAMPLES / name
    readme = (example / "README.md").read_text()
    commands, expected = readme.split("```")[1], readme.split("```")[3].strip()
    last = ""
    for line in filter(None, commands.splitlines()):
        words = shlex.split(line.replace(f"examples/{name}", str(example)))
        last = up.kubectl(*words[1:])
    assert last.strip() == expected
    up.kubectl("delete", "-f", str(example), "--timeout=60s")
    up.kubectl("delete", "pvc", "--all", "--timeout=60s")  # a set leaves its claims
    wait_until("nothing is left", lambda: up.items("pv") == [] or None)
