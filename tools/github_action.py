"""The step of action.yml that tests a driver: runs `volplane test-driver` as root with the action's inputs.

Inputs come in the environment, so that no text of a workflow is part of a script. Writes the reports below
$RUNNER_TEMP, the summary into $GITHUB_STEP_SUMMARY, counts into $GITHUB_OUTPUT, and prints annotations.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

SINGLE = ("DRIVER", "DRIVER_COMMAND", "CHART", "FOCUS", "SKIP", "KNOWN_FAILURES")
SEVERAL = ("MANIFEST", "VALUES", "IMAGE")  # one per line
COUNTS = ("passed", "failed", "skipped", "known_failures")  # in results.json


def main() -> int:
    report = Path(os.environ["RUNNER_TEMP"], "volplane-report")
    report.mkdir(exist_ok=True)
    for old in report.iterdir():  # of an earlier step with this action
        old.unlink()
    notes, summary = report / "annotations.txt", report / "summary.md"
    try:
        words = [*read_inputs(os.environ), *report_options(report)]
    except ValueError as error:
        print(f"::error title=arguments::{error}")
        return 2
    program = [str(Path(sys.executable).with_name("volplane")), "test-driver", *words]
    print(f"[command]{shlex.join(program)}", flush=True)
    code = subprocess.run(as_root(program), check=False).returncode
    if notes.exists():
        sys.stdout.write(notes.read_text())
    elif code:
        print(f"::error title=test-driver::ended with exit code {code} before a case ran; see its output")
    if summary.exists():
        append("GITHUB_STEP_SUMMARY", summary.read_text())
    append("GITHUB_OUTPUT", "".join(f"{line}\n" for line in outputs(report)))
    return code


def read_inputs(env: Mapping[str, str]) -> Iterator[str]:
    """The inputs as words of a command line. Raises ValueError for an open quote in `arguments`."""
    for name in SINGLE:
        if env.get(name):
            yield f"--{name.lower().replace('_', '-')}={env[name]}"
    for name in SEVERAL:
        for line in filter(None, map(str.strip, env.get(name, "").splitlines())):
            yield f"--{name.lower()}={line}"
    yield from shlex.split(env.get("ARGUMENTS", ""))


def report_options(report: Path) -> list[str]:
    files = {
        "html": "report.html",
        "json": "results.json",
        "junit": "results.xml",
        "summary": "summary.md",
        "annotations": "annotations.txt",
    }
    return [f"--{option}={report / name}" for option, name in files.items()]


def as_root(command: list[str]) -> list[str]:
    """With sudo, but in the environment of the job: the driver's command may need its PATH."""
    if os.geteuid() == 0:
        return command
    return ["sudo", "--preserve-env", "env", f"PATH={os.environ['PATH']}", *command]


def outputs(report: Path) -> Iterator[str]:
    results = report / "results.json"
    if not results.exists():
        return
    found = json.loads(results.read_text())
    for name in COUNTS:
        count = found[name] - found["known_failures"] if name == "failed" else found[name]
        yield f"{name.replace('_', '-')}={count}"
    yield f"report={report}"


def append(variable: str, text: str) -> None:
    """To a file that the runner reads after the step."""
    with open(os.environ[variable], "a", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
