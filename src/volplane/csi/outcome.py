"""What a failed call left behind: the only place where a gRPC code is judged.

*Final* means: not running any more, nothing left behind, the caller may forget it. *Uncertain* means: it
may be running or done; only the same call, or its opposite, brings certainty. *Busy* is uncertain too, and
says why: the driver is at work on that volume. Provisioning and expansion read some codes differently, as
their own functions below say.
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
        """As Go prints it, which is how it appears in events and status messages."""
        return _GO_NAMES.get(self) or self.name.title().replace("_", "")


_GO_NAMES = {Code.OK: "OK", Code.CANCELLED: "Canceled"}


class CallError(Exception):
    """A call that did not end with OK; `str()` is the text that events and attachError carry."""

    def __init__(self, code: Code, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"rpc error: code = {self.code.go_name} desc = {self.message}"


class BadReply(CallError):
    """The driver said OK and sent what cannot be decoded or believed: it may have done anything."""

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
    Code.CANCELLED: CallOutcome.UNCERTAIN,  # we stopped waiting; the driver may not have stopped working
    Code.DEADLINE_EXCEEDED: CallOutcome.UNCERTAIN,  # likewise
    Code.RESOURCE_EXHAUSTED: CallOutcome.UNCERTAIN,  # may be gRPC's own, on the way back
    Code.UNAVAILABLE: CallOutcome.UNCERTAIN,  # the connection broke; before or after the work, nobody knows
    Code.ABORTED: CallOutcome.BUSY,  # another call for this volume is running, and its outcome is open
}
_BACKGROUND = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED})
_INFEASIBLE = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND})


def classify(error: BaseException) -> CallOutcome:
    """For publish, stage, expand, modify and snapshots. An error that is no gRPC status is uncertain."""
    if isinstance(error, CallError) and not isinstance(error, BadReply):
        return _NOT_FINAL.get(error.code, CallOutcome.FINAL)
    return CallOutcome.UNCERTAIN


class ProvisioningOutcome(StrEnum):
    FINAL = "final"  # no volume was left behind
    INFEASIBLE = "infeasible"  # the arguments can never work; trying soon again is pointless
    BACKGROUND = (
        "background"  # a volume may exist or come to exist: repeat with the same arguments until it is known
    )
    EXHAUSTED = "exhausted"  # not here; final, and another node may do


def classify_provisioning(error: BaseException) -> ProvisioningOutcome:
    """For CreateVolume, which the provisioner judges by its own table."""
    if not isinstance(error, CallError) or isinstance(error, BadReply) or error.code in _BACKGROUND:
        return ProvisioningOutcome.BACKGROUND
    if error.code is Code.INVALID_ARGUMENT:
        return ProvisioningOutcome.INFEASIBLE
    # The spec gives CreateVolume this code for "no capacity in that topology": here it is no broken call.
    return (
        ProvisioningOutcome.EXHAUSTED if error.code is Code.RESOURCE_EXHAUSTED else ProvisioningOutcome.FINAL
    )


def is_infeasible(error: BaseException) -> bool:
    """For ControllerExpandVolume and NodeExpandVolume: this size will never be reached."""
    return isinstance(error, CallError) and error.code in _INFEASIBLE


def is_refused_in_use(error: BaseException) -> bool:
    """For ControllerExpandVolume: this driver grows only volumes that nobody uses."""
    return isinstance(error, CallError) and error.code is Code.FAILED_PRECONDITION
