"""The plugin as its users have it: in a pytest of their own, out of the wheel, in several processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "04-your-own-driver"
DEPENDENCIES = sysconfig.get_path("purelib")
PATIENCE = 600  # seconds: other tests may have the machine

pytestmark = [pytest.mark.root, pytest.mark.slow]


def outcome(python: str, *arguments: str) -> tuple[dict[str, int], str]:
    """Of a pytest for the example's driver, which needs the same modules in its container."""
    line = f"PYTHONPATH={DEPENDENCIES} {python} driver.py $CSI_ENDPOINT $NODE_ID $SHARED_DIR"
    flags = ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={EXAMPLE}", "-rA"]
    done = subprocess.run(
        [python, "-m", "pytest", *flags, "--csi-driver-command", line, *arguments],
        cwd=EXAMPLE,
        env={k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1]
    found = re.findall(r"(\d+) (passed|failed|errors?)", last)
    return {what.rstrip("s"): int(n) for n, what in found}, done.stdout


DISORDERLY = """
import os
import subprocess
import time
from pathlib import Path

import pytest

MEETING = Path(__file__).parent

def test_meets_the_other_worker(volplane_cluster, volplane_claim, volplane_pod):
    me = os.environ["PYTEST_XDIST_WORKER"]
    data = volplane_claim()
    volplane_pod(data).write("line", me)
    place = volplane_cluster.cluster.layout.directory
    (MEETING / f"{me}.new").write_text(f"{place} {volplane_cluster.cluster.url}")
    (MEETING / f"{me}.new").rename(MEETING / f"{me}.here")
    end = time.monotonic() + 300
    while len(here := sorted(MEETING.glob("*.here"))) < 2:
        assert time.monotonic() < end, "the other one does not come"
        time.sleep(0.05)
    words = [file.read_text().split() for file in here]
    assert all(len({pair[i] for pair in words}) == 2 for i in range(2)), words
    assert all(Path(directory, "kubeconfig").exists() for directory, _ in words), "both are up now"
    assert volplane_pod(data).read("line") == me

def test_leaves_a_mount(volplane_cluster):
    root = volplane_cluster.cluster.layout.directory
    one = root / "n/1/pods/x/volumes/kubernetes.io~csi/y/mount"
    one.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "left", str(one)], check=True)

def test_leaves_a_claim_to_the_fixture(volplane_claim):
    volplane_claim()

def test_has_a_cluster_in_order(volplane_cluster, volplane_claim, volplane_pod):
    data = volplane_claim()
    volplane_pod(data).write("line", "hello")
    assert volplane_cluster.driver == "folders.example.com"
    assert [c.code for c in volplane_cluster.calls_to("NodePublishVolume")] == ["OK"]
    running = volplane_pod(data)
    with pytest.raises(AssertionError, match="ended with 1"):
        running.read("nothing")
    assert running.exec("sh", "-c", "head -c 1000000 /dev/zero >&2; echo done") == "done\\n"
    assert running.restarts == 0
    running.exec("sh -c 'sleep 0.2; kill 1' > /dev/null 2>&1 &")  # a command ends with its container
    assert running.wait_for_restart().restarts == 1
    assert running.read("line") == "hello"
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Python of a new environment with the wheel in it; what it depends on is that of this one."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(place),
        str(source),
    )
    (wheel,) = place.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(place / "venv"))
    python = str(place / "venv" / "bin" / "python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel))
    site = next((place / "venv").glob("lib/*/site-packages"))
    (site / "dependencies.pth").write_text(DEPENDENCIES)
    yield python
    shutil.rmtree(place, ignore_errors=True)


def run(*command: str) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_brings_the_fixtures_and_workers_of_xdist_run_side_by_side(
    clean: str, tmp_path: Path
) -> None:
    disorderly = tmp_path / "test_disorderly.py"
    disorderly.write_text(DISORDERLY)
    xdist = ("-v", "-n", "2")
    example, text = outcome(clean, *xdist, "test_driver.py")
    assert example == {"passed": 6}, text
    assert re.search(r"\[gw0\].*PASSED", text), text
    assert re.search(r"\[gw1\].*PASSED", text), text
    disorder, words = outcome(clean, *xdist, "--dist=each", str(disorderly))
    assert disorder == {"passed": 8, "error": 2}, words  # the same on both workers
    assert "the test left behind:" in words
    assert "kubernetes.io~csi/y/mount" in words
