"""The outcome of a failed call: the only place that classifies gRPC codes.

*Final*: the operation does not run any more and has left nothing behind. *Uncertain*: it may run or have
succeeded; only the same call, or its opposite, can tell. *Busy* is uncertain, too: the driver is working on
that volume. Provisioning and expansion classify some codes differently, in functions of their own.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Code(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def go_name(self) -> str:
        """As Go prints it, and as events and status messages show it."""
        return _GO_NAMES[self]


_GO_NAMES = {code: code.name.title().replace("_", "") for code in Code}
_GO_NAMES |= {Code.OK: "OK", Code.CANCELLED: "Canceled"}


class CallError(Exception):
    """A call that did not end with OK; `str()` is the text in events and in attachError."""

    def __init__(self, code: Code, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"rpc error: code = {self.code.go_name} desc = {self.message}"


class BadReply(CallError):
    """The driver returned OK with a reply that is invalid: what it has done is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INTERNAL, message)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.message,)


class CallOutcome(StrEnum):
    FINAL = "final"
    UNCERTAIN = "uncertain"
    BUSY = "busy"

    @property
    def is_final(self) -> bool:
        return self is CallOutcome.FINAL


_NOT_FINAL = {
    Code.CANCELLED: CallOutcome.UNCERTAIN,  # we stopped waiting; the driver may still be working
    Code.DEADLINE_EXCEEDED: CallOutcome.UNCERTAIN,  # likewise
    Code.RESOURCE_EXHAUSTED: CallOutcome.UNCERTAIN,  # may be gRPC's own error for the reply
    Code.UNAVAILABLE: CallOutcome.UNCERTAIN,  # the connection broke, before or after the work
    Code.ABORTED: CallOutcome.BUSY,  # another call for this volume is running
}
_BACKGROUND = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED})
_INFEASIBLE = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND})


def classify(error: BaseException) -> CallOutcome:
    """For publish, stage, expand, modify and snapshots. An error without a gRPC status is uncertain."""
    if isinstance(error, CallError) and not isinstance(error, BadReply):
        return _NOT_FINAL.get(error.code, CallOutcome.FINAL)
    return CallOutcome.UNCERTAIN


class ProvisioningOutcome(StrEnum):
    FINAL = "final"  # no volume exists
    INFEASIBLE = "infeasible"  # the arguments can never work: do not retry soon
    # A volume may exist or be created: repeat the same call until the outcome is known.
    BACKGROUND = "background"
    EXHAUSTED = "exhausted"  # final; another topology may have capacity


def classify_provisioning(error: BaseException) -> ProvisioningOutcome:
    """For CreateVolume."""
    if not isinstance(error, CallError) or isinstance(error, BadReply) or error.code in _BACKGROUND:
        return ProvisioningOutcome.BACKGROUND
    if error.code is Code.INVALID_ARGUMENT:
        return ProvisioningOutcome.INFEASIBLE
    # In the CSI specification: CreateVolume has no capacity in this topology.
    return (
        ProvisioningOutcome.EXHAUSTED if error.code is Code.RESOURCE_EXHAUSTED else ProvisioningOutcome.FINAL
    )


def is_infeasible(error: BaseException) -> bool:
    """For ControllerExpandVolume and NodeExpandVolume: the size cannot be reached."""
    return isinstance(error, CallError) and error.code in _INFEASIBLE


def is_refused_in_use(error: BaseException) -> bool:
    """For ControllerExpandVolume and NodeExpandVolume: the driver expands only volumes not in use."""
    return isinstance(error, CallError) and error.code is Code.FAILED_PRECONDITION
