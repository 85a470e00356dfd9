"""Errors of compiling and evaluating an expression."""

from __future__ import annotations


class CelCompileError(Exception):
    """The expression cannot be compiled."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.text = text
        self.at = at

    def format(self, source: str) -> str:
        """Format the error as cel-go does: the source line with a mark under the position."""
        before = source[: self.at]
        line, column = before.count("\n"), self.at - (before.rfind("\n") + 1)
        snippet = source.split("\n")[line]
        return f"ERROR: <input>:{line + 1}:{column + 1}: {self.text}\n | {snippet}\n | {'.' * column}^"


class CelEvaluationError(Exception):
    """Evaluation failed: a missing key, a division by zero, arguments that match no overload."""


class CostLimitExceeded(CelEvaluationError):
    """The expression exceeded its cost limit."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


NO_OVERLOAD = "no such overload"
