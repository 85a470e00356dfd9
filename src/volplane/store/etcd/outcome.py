"""What a failed call means: the only place where etcd's gRPC codes and texts are judged.

The question that matters is whether a write can have happened. Only what etcd says before it proposes a
write to its log, or what gRPC says before it sends one, is a certain no; everything else leaves doubt.
"""

from __future__ import annotations

from enum import StrEnum

import grpc
import grpc.aio

_Code = grpc.StatusCode


class EtcdOutcome(StrEnum):
    REFUSED = "refused"  # not done, and no other member would do it
    ELSEWHERE = "elsewhere"  # not done by this member; another one may
    TOO_LARGE = "too large"  # not done, and no other member would do it
    UNKNOWN = "unknown"  # done or not done
    FULL = "full"  # done or not done, and no other member has more room
    COMPACTED = "compacted"
    FUTURE = "future"


_FINAL = frozenset(
    {
        _Code.INVALID_ARGUMENT,  # an empty key
        _Code.FAILED_PRECONDITION,
        _Code.PERMISSION_DENIED,
        _Code.UNAUTHENTICATED,
        _Code.UNIMPLEMENTED,
        _Code.OUT_OF_RANGE,
        _Code.DATA_LOSS,  # the members disagree; etcd applies nothing until somebody has looked at it
    }
)
_NOT_SENT = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "etcdserver: no leader",  # asked for by our metadata, answered before anything is proposed
    "etcdserver: too many requests",  # answered before anything is proposed
    "etcdserver: rpc not supported for learner",
)


def classify_error(error: grpc.aio.AioRpcError) -> EtcdOutcome:
    code, text = error.code(), error.details() or ""
    if text.startswith(_NOT_SENT):
        return EtcdOutcome.ELSEWHERE
    if "database space exceeded" in text:
        # The write that finds the database full is applied, and answered with this error all the same.
        return EtcdOutcome.FULL
    if "request is too large" in text or "received message larger than max" in text:
        return EtcdOutcome.TOO_LARGE
    if code is _Code.OUT_OF_RANGE and "compacted" in text:
        return EtcdOutcome.COMPACTED
    if code is _Code.OUT_OF_RANGE and "future revision" in text:
        return EtcdOutcome.FUTURE
    return EtcdOutcome.REFUSED if code in _FINAL else EtcdOutcome.UNKNOWN


def error_text(error: grpc.aio.AioRpcError) -> str:
    """Why, in one line."""
    return (error.details() or error.code().name).removeprefix("etcdserver: ")
