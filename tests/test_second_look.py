"""`--second-look`: what fails twice fails, what fails once is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.support.second_look import pytest_addoption, pytest_configure
"""
UNSTEADY = """
from pathlib import Path

def test_first():
    mark = Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        raise AssertionError("only once")
"""
BROKEN = "def test_{n}():\n    raise AssertionError('always')\n"
LEAKS = """
import pytest

@pytest.fixture
def tidy():
    yield
    raise AssertionError("left behind")

def test_leaks(tidy):
    pass
"""


def judged(directory: Path, text: str, *more: str) -> tuple[int, str]:
    (directory / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--second-look", "2", *more]
    (directory / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_what_passes_alone_is_told_with_its_first_failure(tmp_path: Path, workers: tuple[str, ...]) -> None:
    code, told = judged(tmp_path, UNSTEADY, *workers)
    assert code == 0
    assert "unsteady: test_it.py::test_first" in told
    assert "only once" in told
    assert "1 unsteady" in told.splitlines()[-1]


@pytest.mark.parametrize(
    "text",
    [BROKEN.format(n=1), UNSTEADY + BROKEN.format(n=1), "".join(BROKEN.format(n=n) for n in range(3)), LEAKS],
    ids=["again", "one of two again", "too many", "left behind"],
)
def test_what_fails_again_or_leaves_something_behind_fails(tmp_path: Path, text: str) -> None:
    code, told = judged(tmp_path, text)
    assert code == 1
    assert "unsteady" not in told.splitlines()[-1]
