"""Translates EC2's error codes to CSI's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from volplane.csi.outcome import CallError
from volplane.drivers.ebs.ec2 import Ec2Error, Ec2Unreachable
from volplane.sdk import errors

SNAPSHOT_NOT_FOUND = "InvalidSnapshot.NotFound"
VOLUME_NOT_FOUND = "InvalidVolume.NotFound"
SOURCE_NOT_FOUND = frozenset({SNAPSHOT_NOT_FOUND, VOLUME_NOT_FOUND})
INSTANCE_NOT_FOUND = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
IN_USE = "VolumeInUse"
WRONG_STATE = "IncorrectState"
NOT_ATTACHED = "InvalidAttachment.NotFound"
MISMATCH = "IdempotentParameterMismatch"

_EXHAUSTED = frozenset(
    {
        "AttachmentLimitExceeded",
        "VolumeLimitExceeded",
        "MaxIOPSLimitExceeded",
        "InsufficientVolumeCapacity",
    }
)
_INVALID = frozenset(
    {
        "InvalidParameterValue",
        "InvalidParameterCombination",
        "InvalidParameter",
        "MissingParameter",
        "InvalidZone.NotFound",
        "InvalidVolume.ZoneMismatch",
        "UnsupportedOperation",
    }
)
_DENIED = frozenset(
    {
        "AuthFailure",
        "SignatureDoesNotMatch",
        "UnauthorizedOperation",
        "MissingAuthenticationToken",
        "RequestExpired",
    }
)


def to_csi_error(error: Ec2Error) -> CallError:
    text = str(error)
    match error.code:
        case "InvalidVolume.NotFound" | "InvalidSnapshot.NotFound":
            return errors.NotFound(text)
        case "InvalidInstanceID.NotFound" | "InvalidInstanceID.Malformed":
            return errors.NotFound(text)
        case "VolumeInUse" | "IncorrectState" | "IncorrectInstanceState":
            return errors.FailedPrecondition(text)
        case "IdempotentParameterMismatch":
            return errors.AlreadyExists(text)
        case code if code in _EXHAUSTED:
            return errors.ResourceExhausted(text)
        case code if code in _INVALID:
            return errors.InvalidArgument(text)
        case code if code in _DENIED:
            return errors.PermissionDenied(text)
    # Throttled, internal or unknown to us: the outcome of the request is unknown.
    return errors.Unavailable(text) if error.status >= 500 or "Limit" in error.code else errors.Internal(text)


@contextmanager
def translate_errors() -> Iterator[None]:
    try:
        yield
    except Ec2Error as error:
        raise to_csi_error(error) from error
    except Ec2Unreachable as error:
        raise errors.Unavailable(str(error)) from error
