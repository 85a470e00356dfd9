"""Results as JSON and JUnit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from volplane.csi.call_interceptor import CsiCall
from volplane.testing.known_failures import UnneededEntry
from volplane.testing.report import DriverTestRun, is_cleaning
from volplane.testing.report.calls import about, subject
from volplane.testing.report.conformance import CapabilityUse
from volplane.testing.report.findings import Finding
from volplane.testing.runner import CaseResult, CaseVerdict

CONTROL_CHARACTERS = {i: None for i in range(32) if i not in (9, 10, 13)}  # not allowed in XML


def write_json(run: DriverTestRun, path: str | Path) -> None:
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(to_dict(run)), indent=2))


def to_dict(run: DriverTestRun) -> dict[str, Any]:
    return {
        "driver": run.driver,
        "version": run.version,
        "promises": run.capabilities,
        "nodes": run.nodes,
        "seed": run.seed,
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "complete": run.complete,
        "passed": run.count(CaseVerdict.PASSED),
        "failed": run.count(CaseVerdict.FAILED),
        "known_failures": len(run.failed_results) - len(run.new_failures),
        "skipped": run.count(CaseVerdict.SKIPPED),
        "findings": [_finding(finding) for finding in run.findings()],
        "unneeded_known_failures": [_entry_row(one) for one in run.unneeded_entries()],
        **({"comparison": msgspec.to_builtins(run.comparison)} if run.comparison is not None else {}),
        "capabilities": [_capability(use) for use in run.capability_uses()],
        "cases": [_case(run, result) for result in run.results],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "cause": finding.cause,
        "section": finding.section,
        "known": finding.is_known,
        "cases": finding.names,
    }


def _capability(use: CapabilityUse) -> dict[str, Any]:
    return {
        "capability": use.capability,
        "promised": use.promised,
        "exercised": use.is_exercised,
        "passed": use.passed,
        "failed": use.failed,
        "skipped": use.skipped,
        "calls": msgspec.to_builtins(use.methods),
    }


def _entry_row(one: UnneededEntry) -> dict[str, str]:
    return {"place": one.entry.place, "entry": one.entry.pattern, "why": one.why}


def _case(run: DriverTestRun, result: CaseResult) -> dict[str, Any]:
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
    if result.verdict is CaseVerdict.FAILED:
        made["known"] = result.known
        made["replay"] = run.replay(result)
        made["calls"] = [_call(call, result) for call in result.calls]
        made["logs"] = result.logs
    return made


def _call(call: CsiCall, result: CaseResult) -> dict[str, Any]:
    return {
        "method": call.method,
        "volume": subject(call),
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
        failures=str(len(run.new_failures)),
        skipped=str(len(run.results) - len(run.new_failures) - run.count(CaseVerdict.PASSED)),
        errors=str(int(not run.complete)),
        time=f"{run.seconds:.3f}",
        timestamp=run.started,
    )
    for result in run.results:
        suite.append(_testcase(run, result))
    if not run.complete:
        early = ElementTree.SubElement(suite, "testcase", classname=run.driver, name="whole run")
        ElementTree.SubElement(early, "error", message="interrupted")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _testcase(run: DriverTestRun, result: CaseResult) -> ElementTree.Element:
    group, _, name = result.name.partition("/")
    again = f" (round {result.round})" if result.round > 1 else ""
    made = ElementTree.Element(
        "testcase",
        classname=f"{run.driver}.{group}",
        name=(name or group) + again,
        time=f"{result.seconds:.3f}",
    )
    if result.verdict is CaseVerdict.SKIPPED:
        ElementTree.SubElement(made, "skipped", message=_strip_control_characters(result.reason))
    if result.known:
        # Not a failure for CI, and not a success.
        text = f"known failure, {result.known}: {result.reason}"
        ElementTree.SubElement(made, "skipped", message=_strip_control_characters(text))
    elif result.verdict is CaseVerdict.FAILED:
        failed = ElementTree.SubElement(
            made, "failure", message=_strip_control_characters(result.reason), type=result.section
        )
        failed.text = _strip_control_characters("\n".join(_failure_text(run, result)))
        logs = "\n\n".join(f"{who}:\n{text}" for who, text in result.logs.items() if text)
        ElementTree.SubElement(made, "system-err").text = _strip_control_characters(logs)
    return made


def _failure_text(run: DriverTestRun, result: CaseResult) -> Sequence[str]:
    calls = [
        f"{c.start - result.began:8.3f} s  {c.method} {about(c)} {c.code} {c.seconds * 1000:.1f} ms"
        f" {c.message}"
        for c in result.calls
    ]
    return [result.section, f"demanded: {result.demands}", f"again: {run.replay(result)}", *calls]


def _strip_control_characters(text: str) -> str:
    return text.translate(CONTROL_CHARACTERS)
