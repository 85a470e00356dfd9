"""Every example runs as its README says."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.up import Up, wait_until

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=2)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def run_commands(up: Up, commands: str, example: Path) -> str:
    """What the last of the commands prints."""
    last = ""
    for line in filter(None, commands.splitlines()):
        words = shlex.split(line.replace(f"examples/{example.name}", str(example)))
        last = up.kubectl(*words[1:])
    return last.strip()


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
    commands, expected = readme.split("```")[1:4:2]
    assert run_commands(up, commands, example) == expected.strip()
    up.kubectl("delete", "-f", str(example), "--timeout=60s")
    up.kubectl("delete", "pvc", "--all", "--timeout=60s")  # a set leaves its claims
    wait_until("nothing is left", lambda: up.items("pv") == [] or None)


def test_flexvolume_drivers_are_attached_expanded_and_shared() -> None:
    example = EXAMPLES / "06-flexvolume"
    started, disk, sizes, directory, line = (example / "README.md").read_text().split("```")[1::2]
    flags = shlex.split(started.replace("examples/06-flexvolume", str(example)))[4:]
    with Up(*flags, nodes=2) as up:
        try:
            assert run_commands(up, disk, example) == sizes.strip()
            mounted = up.kubectl("exec", "flex-disk", "--", "df", "--output=fstype,size", "-B1M", "/data")
            assert mounted.split()[-2] == "xfs"
            assert int(mounted.split()[-1]) > 900
            assert run_commands(up, directory, example) == line.strip()
            manifests = [f"--filename={example / name}" for name in ("disk.yaml", "directory.yaml")]
            up.kubectl("delete", "--timeout=60s", *manifests)
            wait_until("nothing is attached", lambda: up.items("volumeattachments") == [] or None)
            assert machine.loop_devices(Path("/var/lib/flex-disks")) == []
        finally:
            for directory_made in ("/var/lib/flex-disks", "/var/lib/flex-shares"):
                shutil.rmtree(directory_made, ignore_errors=True)
    assert up.leftovers() == {}
