"""What the plugin says to whoever has said something wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
def test_one(volplane_claim):
    volplane_claim()

def test_two(volplane_pod):
    volplane_pod
"""

pytestmark = [pytest.mark.root]


OWN_DRIVER = """
import pytest

@pytest.fixture(scope="session")
def csi_driver():
    return "./no-such-driver"
"""
OLD_NAMES = """
def test_one(claim):
    claim()

def test_two(pod):
    pod
"""


def run_pytest(place: Path, *words: str, tests: str = TESTS, conftest: str = "", ini: str = "") -> str:
    """What a pytest with the plugin prints."""
    (place / "test_it.py").write_text(tests)
    (place / "conftest.py").write_text(conftest)
    (place / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    flags = ["-p", "no:cacheprovider", "-p", "volplane.testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, *words, "test_it.py"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--csi-driver-command", "./no-such-driver"),
            "the cluster did not start: the driver's command `./no-such-driver`: {place}/no-such-driver"
            " does not exist",
        ),
        (
            ("--csi-driver", "no.yaml"),
            "the cluster did not start: {place}/no.yaml: no such file",
        ),
        (
            ("--csi-driver", "a", "--csi-driver-command", "b"),
            "use either csi-driver or csi-driver-command, not both",
        ),
        (("--csi-nodes", "many"), "csi-nodes must be a positive number, not 'many'"),
    ],
    ids=["command", "file", "both", "nodes"],
)
def test_it_is_said_in_a_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    shown = run_pytest(tmp_path, *words)
    assert "2 errors" in shown, shown
    assert said.format(place=tmp_path) in shown


def test_a_test_with_an_old_name_gets_the_new_one(tmp_path: Path) -> None:
    shown = run_pytest(tmp_path, tests=OLD_NAMES)
    assert "fixture 'claim' not found" in shown
    for old, new in (("claim", "volplane_claim"), ("pod", "volplane_pod")):
        assert f"If {old} is meant to be the fixture of volplane: it is called {new} now." in shown
    assert "set volplane_short_names = true in pytest's configuration" in shown


def test_a_driver_that_is_chosen_by_the_old_name_is_not_replaced_by_another(tmp_path: Path) -> None:
    shown = run_pytest(tmp_path, conftest=OWN_DRIVER)
    assert "2 errors" in shown, shown
    assert "the fixture csi_driver has no effect." in shown
    assert "it is called volplane_driver now" in shown


def test_short_names_are_there_on_request_with_an_own_driver(tmp_path: Path) -> None:
    shown = run_pytest(tmp_path, conftest=OWN_DRIVER, tests=OLD_NAMES, ini="volplane_short_names = true")
    assert "2 errors" in shown, shown
    assert "the cluster did not start: the driver's command `./no-such-driver`" in shown
    assert "not found" not in shown


def test_fixtures_of_others_with_these_names_are_left_alone(tmp_path: Path) -> None:
    others = "import pytest\n\n@pytest.fixture\ndef claim():\n    return 7\n"
    shown = run_pytest(tmp_path, conftest=others, tests="def test_one(claim):\n    assert claim == 7\n")
    assert "1 passed" in shown, shown
