"""A run as a whole, and how it is shown: on the terminal, to machines, and as a page for people."""

from __future__ import annotations

import shlex
from collections import defaultdict

from msgspec import Struct

from volplane.csi.call_interceptor import CsiCall
from volplane.testing.runner import CaseResult, CaseVerdict


def is_cleaning(result: CaseResult, call: CsiCall) -> bool:
    """It was made when the case had its verdict, to remove what the case had made."""
    return 0 < result.verdict_at < call.start


class DriverTestRun(Struct):
    driver: str
    version: str
    capabilities: list[str]
    seed: int
    command: list[str]  # the verb with what says which driver, without what says which cases
    seconds: float = 0.0
    nodes: list[str] = []
    results: list[CaseResult] = []
    started: str = ""  # when, as Kubernetes writes it
    complete: bool = False  # nothing has broken it off

    @property
    def failed_results(self) -> list[CaseResult]:
        return [r for r in self.results if r.verdict is CaseVerdict.FAILED]

    def replay(self, result: CaseResult) -> str:
        """The one command that runs just this case, as it was."""
        # The other program is run as a whole.
        name = "sanity/" if result.name.startswith("sanity/") else f"{result.name}$"
        pattern = "^" + name.replace(".", r"\.")
        # What is random differs between rounds.
        rounds = ["--repeat", str(result.round)] if result.round > 1 else []
        return shlex.join([*self.command, "--focus", pattern, "--seed", str(self.seed), *rounds])

    def groups(self) -> dict[str, list[CaseResult]]:
        """By the first part of the cases' names."""
        found: dict[str, list[CaseResult]] = defaultdict(list)
        for result in self.results:
            found[result.name.partition("/")[0]].append(result)
        return found

    def count(self, verdict: CaseVerdict) -> int:
        return sum(r.verdict is verdict for r in self.results)
