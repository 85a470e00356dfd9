"""JSON and JUnit: the same results for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from volplane.csi.tap import Call
from volplane.testing.report import DriverTestRun, is_cleaning
from volplane.testing.runner import Result, Verdict

FORBIDDEN = {i: None for i in range(32) if i not in (9, 10, 13)}  # of XML


def write_json(run: DriverTestRun, path: str | Path) -> None:
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(plain(run)), indent=2))


def plain(run: DriverTestRun) -> dict[str, Any]:
    return {
        "driver": run.driver,
        "version": run.version,
        "promises": run.promises,
        "nodes": run.nodes,
        "seed": run.seed,
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "complete": run.complete,
        "passed": run.count(Verdict.PASSED),
        "failed": run.count(Verdict.FAILED),
        "skipped": run.count(Verdict.SKIPPED),
        "cases": [_case(run, result) for result in run.results],
    }


def _case(run: DriverTestRun, result: Result) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": result.name,
        "section": result.section,
        "demands": result.demands,
        "verdict": result.verdict,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "round": result.round,
        "repeated": result.repeated,
    }
    if result.verdict is Verdict.FAILED:
        made["replay"] = run.replay(result)
        made["calls"] = [_call(call, result) for call in result.calls]
        made["logs"] = result.logs
    return made


def _call(call: Call, result: Result) -> dict[str, Any]:
    return {
        "method": call.method,
        "caller": call.caller,
        "address": call.address,
        "at": round(call.start - result.began, 4),
        "seconds": round(call.seconds, 4),
        "code": call.code,
        "message": call.message,
        "note": call.note,
        "cleaning": is_cleaning(result, call),
        "request": call.request,
        "response": call.response,
    }


def write_junit(run: DriverTestRun, path: str | Path) -> None:
    suite = ElementTree.Element(
        "testsuite",
        name=f"volplane test-driver: {run.driver}",
        tests=str(len(run.results) + (not run.complete)),
        failures=str(run.count(Verdict.FAILED)),
        skipped=str(run.count(Verdict.SKIPPED)),
        errors=str(int(not run.complete)),
        time=f"{run.seconds:.3f}",
        timestamp=run.started,
    )
    for result in run.results:
        suite.append(_testcase(run, result))
    if not run.complete:
        early = ElementTree.SubElement(suite, "testcase", classname=run.driver, name="whole run")
        ElementTree.SubElement(early, "error", message="stopped before its end")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _testcase(run: DriverTestRun, result: Result) -> ElementTree.Element:
    group, _, name = result.name.partition("/")
    again = f" (round {result.round})" if result.round > 1 else ""
    made = ElementTree.Element(
        "testcase",
        classname=f"{run.driver}.{group}",
        name=(name or group) + again,
        time=f"{result.seconds:.3f}",
    )
    if result.verdict is Verdict.SKIPPED:
        ElementTree.SubElement(made, "skipped", message=_clean(result.reason))
    if result.verdict is Verdict.FAILED:
        failed = ElementTree.SubElement(made, "failure", message=_clean(result.reason), type=result.section)
        failed.text = _clean("\n".join(_words(run, result)))
        said = "\n\n".join(f"{who}:\n{text}" for who, text in result.logs.items() if text)
        ElementTree.SubElement(made, "system-err").text = _clean(said)
    return made


def _words(run: DriverTestRun, result: Result) -> Sequence[str]:
    calls = [
        f"{c.start - result.began:8.3f} s  {c.method} {c.code} {c.seconds * 1000:.1f} ms {c.message}"
        for c in result.calls
    ]
    return [result.section, f"demanded: {result.demands}", f"again: {run.replay(result)}", *calls]


def _clean(text: str) -> str:
    return text.translate(FORBIDDEN)
