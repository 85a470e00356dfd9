"""The report as one self-contained HTML page, without scripts, fonts or images.

Failures come first, one part for each cause: its cases with the requirement, what was found, the calls on a
timeline, and the command that reruns the case. All cases are in tables below, one per group.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path

from volplane.csi.call_interceptor import CsiCall
from volplane.testing.case import SPEC
from volplane.testing.report import DriverTestRun, is_cleaning, page_capabilities
from volplane.testing.report.calls import about
from volplane.testing.report.findings import Finding
from volplane.testing.runner import CaseResult, CaseVerdict

SPECIFICATION = "https://github.com/container-storage-interface/spec/blob/master/spec.md"
STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #667085; --paper: #fbfbfc; --card: #fff;
  --line: #e3e6eb; --good: #18794e; --bad: #c4320a; --soft: #f2f4f7; --bar: #7a9cc6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #98a2b3; --paper: #12151b;
  --card: #1a1f27; --line: #2b323d; --good: #4cc38a; --bad: #ff8b5e; --soft: #222934; --bar: #5b7ba6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 12px; }
.lead { color: var(--dim); margin: 4px 0 20px; }
.counts { display: flex; gap: 12px; flex-wrap: wrap; }
.count { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 18px; }
.count b { display: block; font-size: 24px; } .good b { color: var(--good); } .bad b { color: var(--bad); }
article { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--bad);
  border-radius: 8px; padding: 16px 20px; margin: 0 0 16px; }
article h3 { margin: 0; font-size: 16px; } .section { color: var(--dim); font-size: 13px; }
dl { display: grid; grid-template-columns: 90px 1fr; gap: 4px 12px; margin: 12px 0; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; } dd.found { color: var(--bad); }
code, pre { font: 12.5px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { background: var(--soft); border-radius: 6px; padding: 10px 12px; margin: 6px 0; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; } th { overflow-wrap: normal; }
th { color: var(--dim); font-weight: 500; } 
td.n { text-align: right; white-space: nowrap; width: 1%; }
td.time { width: 24%; } td.call { width: 32%; } td.case { width: 26%; }
td.verdict { overflow-wrap: normal; }
.track { position: relative; height: 12px; margin-top: 4px; background: var(--soft);
  border-radius: 3px; } .track i { position: absolute; top: 0; bottom: 0; background: var(--bar);
  border-radius: 3px; min-width: 2px; } .track i.bad { background: var(--bad); }
.passed { color: var(--good); } .failed { color: var(--bad); font-weight: 600; }
.skipped { color: var(--dim); }
.message { font-weight: 400; }
summary { cursor: pointer; color: var(--dim); font-size: 13px; margin-top: 6px; }
a { color: inherit; text-decoration-color: var(--bar); text-underline-offset: 3px; }
ol.wrong { margin: 0 0 20px; padding-left: 22px; } ol.wrong li { margin: 2px 0; }
ol.wrong span { color: var(--dim); font-size: 13px; overflow-wrap: anywhere; }
p.found { color: var(--bad); margin: 0 0 4px; overflow-wrap: anywhere; font-weight: 600; }
pre.again { user-select: all; }
article:target { outline: 2px solid var(--bar); }
details.group { border-bottom: 1px solid var(--line); padding: 6px 0; }
details.group > summary { color: var(--ink); font-size: 14px; margin: 0; }
details.group > summary span { color: var(--dim); font-size: 13px; margin-left: 10px; }
details.group table { margin: 6px 0 10px; }
@media (max-width: 720px) { main { padding: 20px 12px 40px; } article { padding: 12px; }
  dl { grid-template-columns: 1fr; } dt { margin-top: 6px; } .time { display: none; }
  td.call { width: 45%; } td.case { width: 32%; } }
"""


def write(run: DriverTestRun, path: str | Path) -> None:
    Path(path).write_text(page(run), encoding="utf-8")


def page(run: DriverTestRun) -> str:
    name = escape(f"{run.driver} {run.version}".strip())
    failures = "".join(_finding(run, finding, number) for number, finding in enumerate(run.findings(), 1))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{name}: driver test</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{name}</h1><p class='lead'>{_summary(run)}</p>{_counts(run)}"
        + (f"<h2>Failures</h2>{_contents(run)}{failures}" if failures else "")
        + _changes(run)
        + f"<h2>Capabilities</h2>{page_capabilities.section(run)}"
        f"<h2>All cases</h2>{_cases(run)}</main></body></html>"
    )


def _summary(run: DriverTestRun) -> str:
    nodes = f" on {_number(len(run.nodes), 'node')}" if run.nodes else ""
    early = "" if run.complete else "; <b class='failed'>interrupted</b>"
    text = f"{run.started}: {_number(len(run.results))} in {run.seconds:.1f} s{nodes}, seed {run.seed}"
    return f"{text.removeprefix(': ')}{early}"


def _number(count: int, what: str = "case") -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _counts(run: DriverTestRun) -> str:
    def box(verdict: CaseVerdict, kind: str) -> str:
        return f"<div class='count {kind}'><b>{run.count(verdict)}</b>{verdict}</div>"

    new = len(run.new_failures)
    known = len(run.failed_results) - new
    boxes = f"<div class='count {'bad' * bool(new)}'><b>{new}</b>{CaseVerdict.FAILED}</div>"
    boxes += f"<div class='count'><b>{known}</b>known failures</div>" * bool(known)
    boxes += box(CaseVerdict.PASSED, "good") + box(CaseVerdict.SKIPPED, "")
    return f"<div class='counts'>{boxes}</div>"


def _contents(run: DriverTestRun) -> str:
    """A table of contents, if there are several findings."""
    findings = run.findings()
    if len(findings) < 2:
        return ""
    rows = (
        f"<li><a href='#wrong-{number}'>{escape(_shorten(one.cause))}</a>"
        f" <span>{_count_cases(one)}</span></li>"
        for number, one in enumerate(findings, 1)
    )
    return f"<ol class='wrong'>{''.join(rows)}</ol>"


def _count_cases(finding: Finding) -> str:
    known = "known, " * finding.is_known
    return known + (_number(len(finding.names)) if len(finding.names) > 1 else escape(finding.names[0]))


def _changes(run: DriverTestRun) -> str:
    """The comparison with an earlier run, and entries of the file of known failures that can be removed."""
    parts = []
    if run.comparison is not None:
        rows = "".join(
            f"<dt>{heading}</dt><dd>{'<br>'.join(map(escape, names))}</dd>"
            for heading, names in run.comparison.lines()
        )
        parts.append(
            f"<h2>Compared with {escape(run.comparison.before)}</h2>"
            + (f"<dl>{rows}</dl>" if rows else "<p>No change.</p>")
        )
    if unneeded := run.unneeded_entries():
        items = "".join(f"<li>{escape(str(one))}</li>" for one in unneeded)
        parts.append(f"<h2>Known failures that can be removed</h2><ul>{items}</ul>")
    return "".join(parts)


def _title(result: CaseResult) -> str:
    return escape(result.name) + (f" (round {result.round})" if result.round > 1 else "")


def _shorten(text: str, most: int = 140) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= most else f"{line[:most]}…"


def _section(section: str) -> str:
    """A section of the CSI specification is a link to its heading."""
    source, _, heading = section.partition(": ")
    if source != SPEC:
        return escape(section)
    anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    return f"<a href='{SPECIFICATION}#{anchor}'>{escape(section)}</a>"


def _finding(run: DriverTestRun, finding: Finding, number: int) -> str:
    """A cause with its cases; the first is open."""
    first, *others = finding.results
    known = f"<p class='section'>known failure, {escape(first.known)}</p>" if finding.is_known else ""
    if not others:
        return f"<article id='wrong-{number}'>{known}{_failure(run, first)}</article>"
    more = "".join(
        f"<details class='group'><summary>{_title(one)}<span>{escape(_shorten(one.reason))}</span></summary>"
        f"{_failure(run, one)}</details>"
        for one in others
    )
    return (
        f"<article id='wrong-{number}'><p class='found'>{escape(finding.cause)}</p>"
        f"<p class='section'>{_number(len(finding.names))} with this cause</p>"
        f"{known}{_failure(run, first)}{more}</article>"
    )


def _failure(run: DriverTestRun, result: CaseResult) -> str:
    logs = "".join(
        f"<details><summary>log of {escape(name)}</summary><pre>{escape(text)}</pre></details>"
        for name, text in result.logs.items()
        if text
    )
    return (
        f"<h3>{_title(result)}</h3>"
        f"<div class='section'>{_section(result.section)}</div><dl>"
        f"<dt>required</dt><dd>{_prose(result.demands)}</dd>"
        f"<dt>found</dt><dd class='found'>{escape(result.reason)}</dd>"
        f"<dt>rerun</dt><dd><pre class='again'>{escape(run.replay(result))}</pre></dd></dl>"
        f"{_calls(result)}{logs}"
    )


def _calls(result: CaseResult) -> str:
    if not result.calls:
        return ""
    whole = max((c.end or c.start) - result.began for c in result.calls) or 1.0
    done = [_call(call, result.began, whole) for call in result.calls if not is_cleaning(result, call)]
    more = [_call(call, result.began, whole) for call in result.calls if is_cleaning(result, call)]
    if more:
        done.append("<tr><td colspan='5' class='skipped'>Cleanup after the case.</td></tr>")
    rows = "".join([*done, *more])
    head = "<tr><th>at</th><th>took</th><th>call</th><th>answer</th><th class='time'>timeline</th></tr>"
    return f"<table>{head}{rows}</table>"


def _call(call: CsiCall, began: float, whole: float) -> str:
    at = call.start - began
    left, width = 100 * at / whole, 100 * call.seconds / whole
    bad = "" if call.code == "OK" else " class='bad'"
    answer = escape(call.code or "in flight")
    answer += f"<div class='message'>{escape(call.message)}</div>" if call.message else ""
    note = f" <em>{escape(call.note)}</em>" if call.note else ""
    words = (
        f"{call.caller} → {call.address}\n{_one_field_per_line(call.request)}\n"
        f"→ {_one_field_per_line(call.response or call.message)}"
    )
    said = f"<details><summary>{escape(about(call))}</summary><pre>{escape(words)}</pre></details>"
    return (
        f"<tr><td class='n'>{at:.3f} s</td><td class='n'>{call.seconds * 1000:.0f} ms</td>"
        f"<td class='call'>{escape(call.method)}{note}{said}</td><td class='{_kind(call)}'>{answer}</td>"
        f"<td class='time'><div class='track'><i{bad} style='left:{left:.2f}%;width:{width:.2f}%'></i></div>"
        "</td></tr>"
    )


def _one_field_per_line(text: str) -> str:
    """A message with one field per line; other text unchanged."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def _prose(text: str) -> str:
    """Text of ours with names of fields in backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _kind(call: CsiCall) -> str:
    return "passed" if call.code == "OK" else "failed"


def _cases(run: DriverTestRun) -> str:
    return "".join(_group(name, results) for name, results in run.groups().items())


def _group(name: str, results: list[CaseResult]) -> str:
    """A group of cases; open if one has failed."""
    counts = [
        (sum(r.verdict is v for r in results), v)
        for v in (CaseVerdict.FAILED, CaseVerdict.PASSED, CaseVerdict.SKIPPED)
    ]
    text = ", ".join(
        f"<b class='{v}'>{n} {v}</b>" if v is CaseVerdict.FAILED else f"{n} {v}" for n, v in counts if n
    )
    head = "<tr><th>case</th><th>verdict</th><th>seconds</th><th>section</th></tr>"
    return (
        f"<details class='group'{' open' * bool(counts[0][0])}><summary>{escape(name)}"
        f"<span>{text} in {sum(r.seconds for r in results):.1f} s</span></summary>"
        f"<table>{head}{''.join(map(_row, results))}</table></details>"
    )


def _row(result: CaseResult) -> str:
    why = f"<br><span class='skipped'>{escape(result.reason)}</span>" if result.reason else ""
    return (
        f"<tr><td class='case'>{_title(result)}</td>"
        f"<td class='verdict {result.verdict}'>{'known' if result.known else result.verdict}</td>"
        f"<td class='n'>{result.seconds:.2f}</td><td>{_section(result.section)}{why}</td></tr>"
    )
