"""How a driver says no: raise one of these.

    CallError
      InvalidArgument · NotFound · AlreadyExists · FailedPrecondition · ResourceExhausted · OutOfRange
      Unimplemented · Internal · PermissionDenied    final: whatever the call began was undone
      Aborted · Unavailable                          uncertain: the caller will ask again

A driver that fails half-way and cannot undo its work must raise one of the uncertain ones, or the caller
forgets it.
"""

from __future__ import annotations

from typing import ClassVar

from volplane.csi.outcome import CallError, Code


class _Coded(CallError):
    of: ClassVar[Code]

    def __init__(self, message: str) -> None:
        super().__init__(self.of, message)

    def __reduce__(self) -> tuple[type[_Coded], tuple[str]]:
        return type(self), (self.message,)


class InvalidArgument(_Coded):
    of = Code.INVALID_ARGUMENT


class NotFound(_Coded):
    of = Code.NOT_FOUND


class AlreadyExists(_Coded):
    of = Code.ALREADY_EXISTS


class FailedPrecondition(_Coded):
    of = Code.FAILED_PRECONDITION


class ResourceExhausted(_Coded):
    of = Code.RESOURCE_EXHAUSTED


class OutOfRange(_Coded):
    of = Code.OUT_OF_RANGE


class Unimplemented(_Coded):
    of = Code.UNIMPLEMENTED


class Internal(_Coded):
    of = Code.INTERNAL


class PermissionDenied(_Coded):
    of = Code.PERMISSION_DENIED


class Aborted(_Coded):
    of = Code.ABORTED


class Unavailable(_Coded):
    of = Code.UNAVAILABLE
