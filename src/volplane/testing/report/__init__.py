"""The results of a run. The modules here render them: terminal, JSON and JUnit, HTML."""

from __future__ import annotations

import shlex
from collections import defaultdict

from msgspec import Struct

from volplane.csi.call_interceptor import CsiCall
from volplane.testing.runner import CaseResult, CaseVerdict


def is_cleaning(result: CaseResult, call: CsiCall) -> bool:
    """Whether the call was made after the verdict, to clean up."""
    return 0 < result.verdict_at < call.start


class DriverTestRun(Struct):
    driver: str
    version: str
    capabilities: list[str]
    seed: int
    command: list[str]  # the command line with the driver's options, without the selection of cases
    seconds: float = 0.0
    nodes: list[str] = []
    results: list[CaseResult] = []
    started: str = ""  # timestamp as in Kubernetes
    complete: bool = False  # not interrupted

    @property
    def failed_results(self) -> list[CaseResult]:
        return [r for r in self.results if r.verdict is CaseVerdict.FAILED]

    def replay(self, result: CaseResult) -> str:
        """The command that runs only this case, with the same random numbers."""
        # csi-sanity always runs completely.
        name = "sanity/" if result.name.startswith("sanity/") else f"{result.name}$"
        pattern = "^" + name.replace(".", r"\.")
        # Each round has other random numbers.
        rounds = ["--repeat", str(result.round)] if result.round > 1 else []
        return shlex.join([*self.command, "--focus", pattern, "--seed", str(self.seed), *rounds])

    def groups(self) -> dict[str, list[CaseResult]]:
        """The results by the first part of the cases' names."""
        found: dict[str, list[CaseResult]] = defaultdict(list)
        for result in self.results:
            found[result.name.partition("/")[0]].append(result)
        return found

    def count(self, verdict: CaseVerdict) -> int:
        return sum(r.verdict is verdict for r in self.results)
