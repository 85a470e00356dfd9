"""The GitHub Action: its steps are executed as a runner does, with the files and variables of a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from msgspec import Struct

from tools import archives, lock

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
DRIVER = ROOT / "examples" / "04-your-own-driver" / "driver.py"
PATIENCE = 600
GOOD = f"{sys.executable} {DRIVER} $CSI_ENDPOINT $NODE_ID $SHARED_DIR"
# The same driver with a bug: its node has another id after each start.
BAD = f"""
import asyncio, os, sys
sys.path.insert(0, {str(DRIVER.parent)!r})
from driver import Folders
from volplane import sdk
endpoint, node, root = sys.argv[1:]
asyncio.run(sdk.serve(Folders(root, f"{{node}}-{{os.getpid()}}"), endpoint.removeprefix("unix://")))
"""
BAD_COMMAND = f"{sys.executable} bad.py $CSI_ENDPOINT $NODE_ID $SHARED_DIR"
CASE = "identity/node after restart"

pytestmark = [pytest.mark.root, pytest.mark.slow]


class Job(Struct):
    """A job that uses the action once."""

    place: Path
    inputs: dict[str, str]
    done_before: tuple[str, ...] = ()  # steps
    log: str = ""
    failed: str = ""  # the step
    uploaded: str = ""  # the path that is given to actions/upload-artifact
    outputs: dict[str, str] = {}

    @property
    def summary(self) -> str:
        return (self.place / "summary").read_text()

    def run(self) -> None:
        """Run the steps as a runner does."""
        defaults = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
        self.inputs = {name: self.evaluate(text) for name, text in defaults.items()} | self.inputs
        (self.place / "temp").mkdir(exist_ok=True)
        (self.place / "summary").touch()
        for step in ACTION["runs"]["steps"]:
            if self.is_skipped(step.get("if", "")) or step["name"] in self.done_before:
                continue
            if "uses" in step:
                assert re.fullmatch(r"actions/upload-artifact@v\d+", step["uses"])
                self.uploaded = self.evaluate(step["with"]["path"])
            elif self.execute(step) and not self.failed:
                self.failed = step["name"]

    def is_skipped(self, condition: str) -> bool:
        if not condition:
            return bool(self.failed)
        parts = [part.strip() for part in condition.split("&&")]
        assert parts[0] == "always()"
        for part in parts[1:]:
            found = re.fullmatch(r"(\S+) != ''", part)
            assert found, part
            if not self.evaluate(f"${{{{ {found[1]} }}}}"):
                return True
        return False

    def execute(self, step: dict[str, Any]) -> int:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]  # an input would be part of a script
        output = self.place / "output"
        output.write_text("")
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "RUNNER_TEMP": str(self.place / "temp"),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.place / "summary"),
            **{name: self.evaluate(text) for name, text in step.get("env", {}).items()},
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.evaluate(step.get("working-directory", "")) or self.place / "workspace",
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        self.log += done.stdout
        lines = output.read_text().splitlines()
        self.outputs |= {f"{step.get('id')}.{k}": v for k, _, v in (line.partition("=") for line in lines)}
        return done.returncode

    def evaluate(self, text: str) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: self.value(found[1]), text)

    def value(self, name: str) -> str:
        kind, _, rest = name.partition(".")
        match kind:
            case "inputs":
                return self.inputs[rest]
            case "steps":
                return self.outputs.get(rest.replace(".outputs", ""), "")
        assert name == "github.workspace"  # others are not known to all runners in a default
        return str(self.place / "workspace")

    def result(self, name: str) -> str:
        """An output of the action."""
        return self.evaluate(ACTION["outputs"][name]["value"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a job. Its environment is installed once for all tests, without the network."""
    directory = tmp_path_factory.mktemp("job")
    pinned = directory / "pinned.txt"
    pinned.write_text(
        archives.requirements(archives.PLATFORMS["linux-amd64"]) + lock.select_entries(lock.BUILD)
    )
    archives.download_wheels(str(pinned))
    (directory / "workspace").mkdir()
    (directory / "workspace" / "bad.py").write_text(BAD)
    return directory


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archives.WHEELS))


def run_job(place: Path, **inputs: str) -> Job:
    """Install only once: pip would build the package again."""
    installed = ("Install Volplane",) if (place / "temp" / "volplane" / "bin" / "volplane").exists() else ()
    job = Job(place, {name.replace("_", "-"): value for name, value in inputs.items()}, installed)
    (place / "summary").unlink(missing_ok=True)
    job.run()
    return job


def test_a_correct_driver_passes_and_is_reported(place: Path) -> None:
    arguments = "--seed 7 --skip 'a b|no such case'"
    job = run_job(place, driver_command=GOOD, focus="^identity/", arguments=arguments)
    assert job.failed == "", job.log
    assert int(job.result("passed")) > 3
    assert (job.result("failed"), job.result("known-failures")) == ("0", "0")
    assert job.uploaded == job.result("report") == str(place / "temp" / "volplane-report")
    names = {file.name for file in Path(job.uploaded).iterdir()}
    assert {"report.html", "results.json", "results.xml"} <= names
    suite = ElementTree.parse(Path(job.uploaded) / "results.xml").getroot()
    assert len(list(suite.iter("testcase"))) == int(job.result("passed")) + int(job.result("skipped"))
    assert job.summary.startswith("### ✅ folders.example.com 1.0: CSI driver tests")
    assert "::error" not in job.log
    assert "seed 7" in job.log


def test_failures_are_annotated_and_fail_the_step(place: Path) -> None:
    job = run_job(place, driver_command=BAD_COMMAND, focus=f"^{CASE}$")
    assert job.failed == "Test the driver", job.log
    assert job.result("failed") == "1"
    assert re.search(rf"^::error title={CASE}::", job.log, re.M), job.log
    assert "### ❌" in job.summary
    assert job.uploaded  # the reports of a failed run matter most


def test_known_failures_do_not_fail_the_step(place: Path) -> None:
    (place / "workspace" / "known.txt").write_text(f"{CASE}  # ids have changed before\n")
    job = run_job(place, driver_command=BAD_COMMAND, focus=f"^{CASE}$", known_failures="known.txt")
    assert job.failed == "", job.log
    assert (job.result("failed"), job.result("known-failures")) == ("0", "1")


def test_a_driver_that_does_not_start_is_an_error_without_a_report(place: Path) -> None:
    job = run_job(place, driver_command="/no/such/driver", focus="^identity/")
    assert job.failed == "Test the driver"
    assert "::error title=test-driver::ended with exit code 1 before a case ran" in job.log
    assert job.uploaded == ""


def test_inputs_of_several_lines_are_options_each(place: Path) -> None:
    inputs = {"manifest": "a.yaml\nb.yaml\n", "image": "x=./driver --flag\n"}
    job = run_job(place, **inputs)
    assert "--manifest=a.yaml --manifest=b.yaml '--image=x=./driver --flag'" in job.log
    assert job.failed == "Test the driver"


def test_an_open_quote_is_named(place: Path) -> None:
    job = run_job(place, driver_command=GOOD, arguments="--focus '^identity/")
    assert "::error title=arguments::No closing quotation" in job.log


def test_every_input_is_used() -> None:
    text = yaml.safe_dump(ACTION["runs"])
    assert [name for name in ACTION["inputs"] if f"inputs.{name}" not in text] == []
