"""What a life has found."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Rule(StrEnum):
    ANSWER = "answer"  # an answer that the specification does not allow
    DATA = "data"  # data that was written is not there, or data of another volume is
    MOUNT = "mount"  # a target is not mounted, or is still mounted
    CRASH = "crash"  # the driver ended, or closed its connections
    HANG = "no answer"
    LEFTOVER = "leftover"  # something is left at the end of a life


class Violation(Struct, frozen=True):
    rule: Rule
    call: str  # the section of the specification
    text: str
    moment: int = -1  # number of the moment in the life; -1: at its end

    def is_like(self, other: Violation | None) -> bool:
        """Whether it is the same bug, as far as one can tell."""
        return other is not None and (self.rule, self.call) == (other.rule, other.call)


class ViolationFound(Exception):
    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.text)
        self.violation = violation
