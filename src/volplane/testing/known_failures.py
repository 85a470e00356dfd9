"""The file of known failures: cases that may fail without failing the run, for CI.

    # known-failures.txt: one case per line, as `--list` prints it
    list/volumes
    killed during/*          # the state file is written in place

`*` stands for any characters. A `#` at the start of a line, or after a space, begins a comment; the comment
after an entry is its reason, which reports repeat. An entry whose cases no longer fail is reported, and does
not fail the run: a case with a kill at a random moment may pass by chance.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from volplane.testing.runner import CaseResult, CaseVerdict

SANITY = "sanity/"  # its cases are csi-sanity's specs, whose names are known only after a run
_COMMENT = re.compile(r"(?:^|\s)#")


class BadKnownFailures(Exception):
    """The file cannot be used; the message names file, line and reason, one line for each problem."""


class KnownFailure(Struct, frozen=True):
    pattern: str
    place: str  # FILE:LINE
    reason: str = ""

    def matches(self, name: str) -> bool:
        return bool(re.fullmatch(re.escape(self.pattern).replace(r"\*", ".*"), name))

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.reason else self.place


class UnneededEntry(Struct, frozen=True):
    entry: KnownFailure
    why: str

    def __str__(self) -> str:
        return f"{self.entry.place}: {self.entry.pattern} {self.why}"


class KnownFailures(Struct, frozen=True):
    entries: tuple[KnownFailure, ...] = ()
    names: frozenset[str] = frozenset()  # of all cases

    def find(self, name: str) -> KnownFailure | None:
        """The entry that allows this case to fail."""
        return next((entry for entry in self.entries if entry.matches(name)), None)

    def find_unneeded(self, results: Iterable[CaseResult], *, complete: bool = True) -> list[UnneededEntry]:
        """The entries that can be removed: all their cases have run, one has passed, and none failed.

        An entry is not reported if one of its cases was not selected, or if all are skipped: on another
        machine, or with other options, they may run and fail. Nor is one of csi-sanity, unless that ran.
        """
        known = list(results)
        ran = {one.name for one in known}
        sanity_ran = complete and sum(name.startswith(SANITY) for name in ran) > 1
        missing = {name for name in self.names - ran if not (sanity_ran and name.startswith(SANITY))}
        found = []
        for entry in self.entries:
            verdicts = {one.verdict for one in known if entry.matches(one.name)}
            is_open = any(map(entry.matches, missing))
            if CaseVerdict.FAILED in verdicts or is_open:
                continue
            if CaseVerdict.PASSED in verdicts:
                found.append(UnneededEntry(entry, "no longer fails"))
            elif not verdicts and sanity_ran and entry.pattern.startswith(SANITY):
                found.append(UnneededEntry(entry, "names no case"))
        return found


def read(path: str, names: Collection[str]) -> KnownFailures:
    """Read the file; `names` are those of all cases. Raises BadKnownFailures."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadKnownFailures(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadKnownFailures(f"{path} is not a text file: {error}") from error
    entries: list[KnownFailure] = []
    problems = []
    for entry in _parse(path, text):
        if problem := _find_problem(entry, entries, names):
            problems.append(f"{entry.place}: {problem}")
        entries.append(entry)
    if problems:
        raise BadKnownFailures("\n".join(problems))
    return KnownFailures(tuple(entries), frozenset(names))


def _parse(path: str, text: str) -> Iterator[KnownFailure]:
    for number, line in enumerate(text.splitlines(), 1):
        pattern, *comment = _COMMENT.split(line, maxsplit=1)
        if pattern.strip():
            yield KnownFailure(pattern.strip(), f"{path}:{number}", "".join(comment).strip())


def _find_problem(entry: KnownFailure, before: Iterable[KnownFailure], names: Collection[str]) -> str:
    """What is wrong with an entry; "" if nothing is."""
    pattern = entry.pattern
    if first := next((one for one in before if one.pattern == pattern), None):
        return f"{pattern!r} is in line {first.place.rpartition(':')[2]} already"
    if pattern.startswith(SANITY) or any(map(entry.matches, names)):
        return ""
    if "/" not in pattern and pattern != "*":
        return f"{pattern!r} is not the name of a case: GROUP/NAME, as in --list"
    near = difflib.get_close_matches(pattern, names, n=1)
    return f"{pattern!r} names no case; " + (
        f"did you mean {near[0]!r}?" if near else "--list shows all names"
    )
