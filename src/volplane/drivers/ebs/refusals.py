"""EC2's error codes as CSI's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from volplane.csi.outcome import CallError
from volplane.drivers.ebs.ec2 import Refused, Unreachable
from volplane.sdk import errors

NO_SNAPSHOT = "InvalidSnapshot.NotFound"
NO_VOLUME = "InvalidVolume.NotFound"
NO_INSTANCE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
IN_USE = "VolumeInUse"
WRONG_STATE = "IncorrectState"
NOT_ATTACHED = "InvalidAttachment.NotFound"
MISMATCH = "IdempotentParameterMismatch"

_FULL = frozenset(
    {
        "AttachmentLimitExceeded",
        "VolumeLimitExceeded",
        "MaxIOPSLimitExceeded",
        "InsufficientVolumeCapacity",
    }
)
_WRONG = frozenset(
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


def as_csi(error: Refused) -> CallError:
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
        case code if code in _FULL:
            return errors.ResourceExhausted(text)
        case code if code in _WRONG:
            return errors.InvalidArgument(text)
        case code if code in _DENIED:
            return errors.PermissionDenied(text)
    # Throttled, broken, or new to us: what became of the request is not known.
    return errors.Unavailable(text) if error.status >= 500 or "Limit" in error.code else errors.Internal(text)


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise as_csi(error) from error
    except Unreachable as error:
        raise errors.Unavailable(str(error)) from error
