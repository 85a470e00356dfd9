"""The errors that a driver raises.

    CallError
      InvalidArgument · NotFound · AlreadyExists · FailedPrecondition · ResourceExhausted · OutOfRange
      Unimplemented · Internal · PermissionDenied    final: nothing of the call is left behind
      Aborted · Unavailable                          uncertain: the caller will call again

A driver that fails midway and cannot undo its work must raise an uncertain error. After a final error the
caller does not clean up.
"""

from __future__ import annotations

from typing import ClassVar

from volplane.csi.outcome import CallError, Code


class _CodedError(CallError):
    grpc_code: ClassVar[Code]

    def __init__(self, message: str) -> None:
        super().__init__(self.grpc_code, message)

    def __reduce__(self) -> tuple[type[_CodedError], tuple[str]]:
        return type(self), (self.message,)


class InvalidArgument(_CodedError):
    grpc_code = Code.INVALID_ARGUMENT


class NotFound(_CodedError):
    grpc_code = Code.NOT_FOUND


class AlreadyExists(_CodedError):
    grpc_code = Code.ALREADY_EXISTS


class FailedPrecondition(_CodedError):
    grpc_code = Code.FAILED_PRECONDITION


class ResourceExhausted(_CodedError):
    grpc_code = Code.RESOURCE_EXHAUSTED


class OutOfRange(_CodedError):
    grpc_code = Code.OUT_OF_RANGE


class Unimplemented(_CodedError):
    grpc_code = Code.UNIMPLEMENTED


class Internal(_CodedError):
    grpc_code = Code.INTERNAL


class PermissionDenied(_CodedError):
    grpc_code = Code.PERMISSION_DENIED


class Aborted(_CodedError):
    grpc_code = Code.ABORTED


class Unavailable(_CodedError):
    grpc_code = Code.UNAVAILABLE
