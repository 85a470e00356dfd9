"""What goes wrong with an expression: before it runs (`CelCompileError`) and while it runs (`Failure`)."""

from __future__ import annotations


class CelCompileError(Exception):
    """The expression cannot be compiled."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.text = text
        self.at = at

    def format(self, source: str) -> str:
        """As the compiler of the API shows it: the line, and a mark under the place."""
        before = source[: self.at]
        line, column = before.count("\n"), self.at - (before.rfind("\n") + 1)
        snippet = source.split("\n")[line]
        return f"ERROR: <input>:{line + 1}:{column + 1}: {self.text}\n | {snippet}\n | {'.' * column}^"


class CelEvaluationError(Exception):
    """Evaluation came to no result: a missing key, a division by zero, arguments that fit no function."""


class CostLimitExceeded(CelEvaluationError):
    """The expression took more steps than it may."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


NO_OVERLOAD = "no such overload"
