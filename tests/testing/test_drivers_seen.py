"""Drivers that others wrote: whole runs, in which exactly the documented cases fail.

The files in `drivers_seen/` list these cases (`--known-failures`); docs/drivers-seen.md explains each. A case
whose comment ends with "by chance" need not fail, because its failure depends on the moment of a kill or on
timing. The descriptions of the drivers are in `tests/support/drivers_seen/`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import peers
from volplane.testing import known_failures
from volplane.testing.cases import ALL_CASES

ROOT = Path(__file__).parents[2]
DESCRIPTIONS = ROOT / "tests" / "support" / "drivers_seen"
FILES = Path(__file__).parent / "drivers_seen"
PAGE = ROOT / "docs" / "drivers-seen.md"
BY_CHANCE = "by chance"
TIMEOUT = 1200.0  # seconds for a whole run on a busy machine


class SeenDriver(NamedTuple):
    name: str
    programs: dict[str, str]  # variable in the description → peer
    options: tuple[str, ...] = ()


SEEN = (
    SeenDriver("nfs", {"NFSPLUGIN": "nfsplugin"}),
    SeenDriver(
        "smb",
        {"SMBPLUGIN": "smbplugin"},
        ("--inline-attribute", "source=//smb.example.com/share", "--inline-attribute", "mountOptions=guest"),
    ),
    SeenDriver("democratic", {"DEMOCRATIC_CSI": "democratic-csi"}),
    SeenDriver("spiffe", {"SPIFFE_CSI_DRIVER": "spiffe-csi-driver"}, ("--inline", "--read-only")),
)


def case_names() -> list[str]:
    return [case.name for case in ALL_CASES]


@pytest.mark.parametrize("file", sorted(FILES.glob("*.txt")), ids=lambda file: file.stem)
def test_every_known_failure_is_a_case_and_is_explained(file: Path) -> None:
    entries = known_failures.read(str(file), case_names()).entries
    page = PAGE.read_text()
    assert [entry.pattern for entry in entries if not entry.reason] == []
    assert [entry.pattern for entry in entries if f"`{entry.pattern}`" not in page] == []


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("driver", SEEN, ids=lambda driver: driver.name)
def test_exactly_the_explained_cases_fail(driver: SeenDriver, tmp_path: Path) -> None:
    for peer in driver.programs.values():
        peers.require(peer)
    results, known = tmp_path / "results.json", FILES / f"{driver.name}.txt"
    programs = {name: os.path.realpath(peers.path(peer)) for name, peer in driver.programs.items()}
    described = ["--driver", str(DESCRIPTIONS / f"{driver.name}.yaml"), *driver.options]
    options = [*described, "--known-failures", str(known), "--json", str(results)]
    done = subprocess.run(
        [sys.executable, "-m", "volplane", "test-driver", *options],
        env={**os.environ, **programs},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    report = json.loads(results.read_text())
    assert report["complete"]
    always = {
        e.pattern for e in known_failures.read(str(known), case_names()).entries if BY_CHANCE not in e.reason
    }
    unneeded = {one["entry"] for one in report["unneeded_known_failures"]}
    assert always & unneeded == set()
