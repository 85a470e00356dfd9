"""The results of a run. The modules here render them: terminal, JSON and JUnit, HTML, Markdown, badge."""

from __future__ import annotations

import shlex
from collections import defaultdict

from msgspec import Struct

from volplane.csi.call_interceptor import CsiCall
from volplane.testing.known_failures import KnownFailures, UnneededEntry
from volplane.testing.report.comparison import Comparison
from volplane.testing.report.conformance import CapabilityUse, use_by_capability
from volplane.testing.report.findings import Finding, group_by_cause
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
    known_failures: KnownFailures = KnownFailures()
    comparison: Comparison | None = None  # with an earlier run

    @property
    def failed_results(self) -> list[CaseResult]:
        return [r for r in self.results if r.verdict is CaseVerdict.FAILED]

    @property
    def new_failures(self) -> list[CaseResult]:
        """The failures that are not in the file of known failures: these fail the run."""
        return [r for r in self.failed_results if not r.known]

    def unneeded_entries(self) -> list[UnneededEntry]:
        """Entries of the file of known failures that can be removed."""
        return self.known_failures.find_unneeded(self.results, complete=self.complete)

    def capability_uses(self) -> list[CapabilityUse]:
        """What was promised, and what of it was exercised."""
        return use_by_capability(self.capabilities, self.results)

    def findings(self) -> list[Finding]:
        """The failures by cause."""
        return group_by_cause(self.results)

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
