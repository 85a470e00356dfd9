"""The GitHub Action in a workflow that `act` runs: a runner for workflows on this machine.

Runs where `make peers PEERS=act` has built it. GitHub's own actions are in no registry: one with the inputs
of actions/upload-artifact copies the files instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_action import BAD, DRIVER
from tests.support import peers
from tools import archives, lock

ROOT = Path(__file__).parents[2]
PATIENCE = 600
UPLOAD = {
    "name": "upload",
    "inputs": {"name": {}, "path": {}},
    "runs": {
        "using": "composite",
        "steps": [
            {
                "shell": "bash",
                "env": {"NAME": "${{ inputs.name }}", "FILES": "${{ inputs.path }}"},
                "run": 'mkdir -p "$UPLOADED/$NAME" && cp -r "$FILES/." "$UPLOADED/$NAME"',
            }
        ],
    },
}

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("act")]


def git(place: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    done = subprocess.run(["git", *identity, *words], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout


def run_workflow(place: Path, driver: str) -> tuple[int, str, Path]:
    """The exit code and the log, and the directory of artifacts."""
    action, upload, project = place / "action", place / "upload", place / "project"
    for name in git(ROOT, "ls-files").splitlines():
        if name.startswith(("src/", "tools/")) or "/" not in name:
            (action / name).parent.mkdir(parents=True, exist_ok=True)
            (action / name).write_bytes((ROOT / name).read_bytes())
    upload.mkdir()
    (upload / "action.yml").write_text(yaml.safe_dump(UPLOAD))
    workflow = project / ".github" / "workflows" / "driver.yaml"
    workflow.parent.mkdir(parents=True)
    (project / "driver.py").write_bytes(DRIVER.read_bytes())
    (project / "bad.py").write_text(BAD)
    command = f"{sys.executable} {driver} $CSI_ENDPOINT $NODE_ID $SHARED_DIR"
    inputs = {"driver-command": command, "focus": "^identity/", "python": sys.executable}
    steps = [
        {"uses": "actions/checkout@v4"},
        {"uses": "volplane/volplane@v0", "id": "test", "with": inputs},
        {"run": 'echo "passed: ${{ steps.test.outputs.passed }}"', "if": "always()"},
    ]
    job = {"runs-on": "ubuntu-latest", "steps": steps}
    workflow.write_text(yaml.safe_dump({"on": ["push"], "jobs": {"driver": job}}))
    git(project, "init", "--quiet")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "-m", "A driver")
    wanted = place / "pinned.txt"
    wanted.write_text(
        archives.requirements(archives.PLATFORMS["linux-amd64"]) + lock.select_entries(lock.BUILD)
    )
    archives.download_wheels(str(wanted))
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(archives.WHEELS), "UPLOADED": str(place / "up")}
    done = subprocess.run(
        [
            *(peers.path("act"), "push", "--platform", "ubuntu-latest=-self-hosted"),
            *("--local-repository", f"volplane/volplane@v0={action}"),
            *("--local-repository", f"actions/upload-artifact@v4={upload}"),
            *(f"--env={name}={value}" for name, value in variables.items()),
        ],
        cwd=project,
        env={**os.environ, "HOME": str(place), "XDG_CACHE_HOME": str(place / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, place / "up" / "volplane-report"


def test_a_correct_driver_passes(tmp_path: Path) -> None:
    code, log, uploaded = run_workflow(tmp_path, "driver.py")
    assert code == 0, log
    assert re.search(r"\| passed: [1-9]", log), log
    assert {"report.html", "results.json", "results.xml"} <= {file.name for file in uploaded.iterdir()}


def test_a_failure_is_annotated_and_its_report_uploaded(tmp_path: Path) -> None:
    code, log, uploaded = run_workflow(tmp_path, "bad.py")
    assert code == 1
    assert re.search(r"::error title=identity/node after restart[^:]*::", log), log
    assert re.search(r"\| passed: [1-9]", log), log
    assert (uploaded / "report.html").exists()
