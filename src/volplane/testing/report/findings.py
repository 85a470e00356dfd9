"""Findings: failed cases grouped by their cause, so that one bug of a driver is reported once.

The cause is read from the reason of a failure. An error of the driver counts by its code and message, in
whichever call and case; other reasons count by their text. Ids, paths, numbers and random names differ
between cases and are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from volplane.csi.outcome import Code
from volplane.testing.runner import CaseResult, CaseVerdict

OK = Code.OK.name
_CODES = "|".join(code.name for code in Code)
_SANITY = re.compile(r"^csi-sanity: (.*?)(?: \([\w.]+:\d+\))?$", re.DOTALL)
# "NodeStageVolume called again: INTERNAL (no disk), expected OK", also of calls that a cluster has repeated
_ERROR = re.compile(
    r"^(?:cleanup failed: )?(?:(?P<method>[A-Z]\w+)[^:]*: )?"
    rf"(?P<code>{_CODES})(?: \((?P<message>.*?)\))?(?:, expected (?P<expected>.*))?$",
    re.DOTALL,
)
_GO_ERROR = re.compile(r"rpc error: code = (?P<code>\w+) desc = (?P<message>[^\n]*)")
_GO_CODES = {code.go_name: code.name for code in Code}
_IGNORED = (
    (re.compile(r"\bnot (?:within|finished after) [\d.]+ s: "), ""),
    (re.compile(r"\bafter \w+ was disturbed(?:, on the next node)?"), "after a disturbed call"),
    (re.compile(r"…?(?:/[^\s/'\",;:()]+)+/"), "/"),  # directories of a path
    (re.compile(r"\b(?:[a-z]+-)*[0-9a-f]{8,}(?:-[0-9a-f]+)*\b"), "#"),  # random names and ids
    (re.compile(r"\d+(?:\.\d+)?"), "#"),
    (re.compile(r"\s+"), " "),
)
_LONG_PATH = re.compile(r"(?:/[^\s/'\",;:()]+){3,}/")
MAX_CAUSE = 200  # characters


class Finding(Struct, frozen=True):
    """One cause, and the failed cases that have it, in the order of the run."""

    cause: str
    results: list[CaseResult]

    @property
    def section(self) -> str:
        return self.results[0].section

    @property
    def is_known(self) -> bool:
        """Whether its cases are in the file of known failures."""
        return bool(self.results[0].known)

    @property
    def names(self) -> list[str]:
        """The names of its cases, without rounds."""
        return list(dict.fromkeys(result.name for result in self.results))


class _Cause(Struct, frozen=True):
    key: tuple[str, ...]
    method: str = ""
    text: str = ""


def group_by_cause(results: Iterable[CaseResult]) -> list[Finding]:
    """The failures among the results by cause: known ones last, the cause with most cases first."""
    found: dict[tuple[str, ...], list[tuple[_Cause, CaseResult]]] = {}
    for result in results:
        if result.verdict is CaseVerdict.FAILED:
            cause = _read_cause(result.reason)
            key = (*cause.key, "known" * bool(result.known))
            found.setdefault(key, []).append((cause, result))
    made = [
        Finding(_describe([c for c, _ in members]), [r for _, r in members]) for members in found.values()
    ]
    return sorted(made, key=lambda finding: (finding.is_known, -len(finding.names)))


def _read_cause(reason: str) -> _Cause:
    if sanity := _SANITY.match(reason):
        reason = sanity[1]
    if error := _ERROR.match(reason):
        method, code, message = error["method"] or "", error["code"], error["message"] or ""
        expected = error["expected"] or OK
        text = f"{code} ({message})" if message else code
        text += f", expected {expected}" if expected != OK else ""
        # A message tells the cause; a code alone does not, so that each call is a cause of its own.
        return _Cause((code, _general(message) if message else method, expected), method, text)
    if error := _GO_ERROR.search(reason):
        code = _GO_CODES.get(error["code"], error["code"])
        return _Cause((code, _general(error["message"]), OK), "", f"{code} ({error['message']})")
    return _Cause((_general(reason),), "", reason)


def _general(text: str) -> str:
    """The text without what differs between cases."""
    for pattern, replacement in _IGNORED:
        text = pattern.sub(replacement, text)
    return text.strip()


def _describe(causes: list[_Cause]) -> str:
    methods = ", ".join(dict.fromkeys(cause.method for cause in causes if cause.method))
    text = next((cause.text for cause in causes if cause.method), causes[0].text)
    line = _LONG_PATH.sub("…/", text.strip().partition("\n")[0])
    line = line if len(line) <= MAX_CAUSE else f"{line[:MAX_CAUSE]}…"
    return f"{methods}: {line}" if methods else line
