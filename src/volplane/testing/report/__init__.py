"""A run as a whole, and how it is shown: on the terminal, to machines, and as a page for people."""

from __future__ import annotations

import shlex

from msgspec import Struct

from volplane.testing.runner import Result, Verdict


class Run(Struct):
    driver: str
    version: str
    promises: list[str]
    seed: int
    command: list[str]  # the verb with what says which driver, without what says which cases
    seconds: float = 0.0
    nodes: list[str] = []
    results: list[Result] = []

    @property
    def failed(self) -> list[Result]:
        return [r for r in self.results if r.verdict is Verdict.FAILED]

    def replay(self, result: Result) -> str:
        """The one command that runs just this case, as it was."""
        # The other program is run as a whole.
        name = "sanity/" if result.name.startswith("sanity/") else f"{result.name}$"
        pattern = "^" + name.replace(".", r"\.")
        return shlex.join([*self.command, "--focus", pattern, "--seed", str(self.seed)])

    def count(self, verdict: Verdict) -> int:
        return sum(r.verdict is verdict for r in self.results)
