"""Classify failed calls: the only place that interprets etcd's gRPC codes and error texts.

What matters is whether a write may have happened. It certainly has not only if etcd failed before proposing
the write to its log, or gRPC before sending it; in all other cases it is uncertain.
"""

from __future__ import annotations

from enum import StrEnum

import grpc
import grpc.aio

_Code = grpc.StatusCode


class EtcdOutcome(StrEnum):
    REFUSED = "refused"  # not done, and other members would refuse it, too
    ELSEWHERE = "elsewhere"  # not done by this member; another one may do it
    TOO_LARGE = "too large"  # not done, and other members would refuse it, too
    UNKNOWN = "unknown"  # possibly done
    FULL = "full"  # possibly done; the database is full on all members
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
        _Code.DATA_LOSS,  # the members are inconsistent; etcd applies nothing until an operator repairs it
    }
)
_NOT_SENT = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "etcdserver: no leader",  # requested by our metadata; sent before anything is proposed
    "etcdserver: too many requests",  # sent before anything is proposed
    "etcdserver: rpc not supported for learner",
)


def classify_error(error: grpc.aio.AioRpcError) -> EtcdOutcome:
    code, text = error.code(), error.details() or ""
    if text.startswith(_NOT_SENT):
        return EtcdOutcome.ELSEWHERE
    if "database space exceeded" in text:
        # The write that fills the database is applied, and still answered with this error.
        return EtcdOutcome.FULL
    if "request is too large" in text or "received message larger than max" in text:
        return EtcdOutcome.TOO_LARGE
    if code is _Code.OUT_OF_RANGE and "compacted" in text:
        return EtcdOutcome.COMPACTED
    if code is _Code.OUT_OF_RANGE and "future revision" in text:
        return EtcdOutcome.FUTURE
    return EtcdOutcome.REFUSED if code in _FINAL else EtcdOutcome.UNKNOWN


def error_text(error: grpc.aio.AioRpcError) -> str:
    """The reason, in one line."""
    return (error.details() or error.code().name).removeprefix("etcdserver: ")
