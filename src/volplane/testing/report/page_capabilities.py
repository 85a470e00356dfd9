"""The part of the HTML page about capabilities: what was promised, exercised, and with which faults."""

from __future__ import annotations

from html import escape

from volplane.testing.report import DriverTestRun
from volplane.testing.report.conformance import CapabilityUse, describe_counts

INTRODUCTION = (
    "What the driver promises, and what of it was exercised. A case counts for each capability that it needs;"
    " calls that clean up after a case, and those of csi-sanity, do not count."
)


def section(run: DriverTestRun) -> str:
    uses = run.capability_uses()
    missing = ", ".join(escape(use.capability) for use in uses if not use.promised)
    return (
        f"<p class='lead'>{INTRODUCTION}</p>"
        + "".join(_capability(use) for use in uses if use.promised)
        + (f"<p class='section'>Not promised: {missing}</p>" if missing else "")
    )


def _capability(use: CapabilityUse) -> str:
    counts = [f"{use.passed} passed"] * bool(use.passed)
    counts = [f"<b class='failed'>{len(use.failed)} failed</b>"] * bool(use.failed) + counts
    counts += [f"{sum(use.skipped.values())} skipped"] * bool(use.skipped)
    counts += [f"{use.calls} calls"] * bool(use.calls)
    counts += [f"{sum(use.faults.values())} faults"] * bool(use.faults)
    counts += ["<b class='failed'>not exercised</b>"] * (not use.is_exercised)
    return (
        f"<details class='group capability'><summary>{escape(use.capability)}<span>{', '.join(counts)}</span>"
        f"</summary>{_calls(use)}{_list('failed', use.failed)}"
        f"{_list('skipped', [f'{reason} ({times})' for reason, times in use.skipped.items()])}</details>"
    )


def _calls(use: CapabilityUse) -> str:
    if not use.methods:
        return ""
    head = "<tr><th>call</th><th>OK</th><th>errors</th><th>faults</th></tr>"
    rows = "".join(
        f"<tr><td class='call'>{escape(method)}</td><td class='n'>{one.ok}</td>"
        f"<td class='n'>{one.failed}</td><td>{escape(describe_counts(one.faults)) or 'none'}</td></tr>"
        for method, one in use.methods.items()
    )
    return f"<table>{head}{rows}</table>"


def _list(title: str, items: list[str]) -> str:
    return f"<dl><dt>{title}</dt><dd>{'<br>'.join(map(escape, items))}</dd></dl>" if items else ""
