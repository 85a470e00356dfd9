"""EC2's error responses. Clients decide by the codes."""

from __future__ import annotations

import errno
import os

from volplane.base.files import UnusableFile


class RecordsLostError(UnusableFile):
    """There are disks, but no records of them."""

    def __init__(self, directory: str, disks: int) -> None:
        super().__init__(
            f"{os.path.dirname(directory)}/state.db has no records of the {disks} disks in {directory}: "
            "restore it from a backup, or move the disks away"
        )


class Ec2ErrorResponse(Exception):
    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


def missing_parameter(name: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse("MissingParameter", f"The request must contain the parameter {name}")


def invalid_parameter(name: str, value: object, why: str = "") -> Ec2ErrorResponse:
    return Ec2ErrorResponse(
        "InvalidParameterValue", f"Value ({value}) for parameter {name} is invalid. {why}".rstrip()
    )


def volume_not_found(volume: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse("InvalidVolume.NotFound", f"The volume '{volume}' does not exist.")


def snapshot_not_found(snapshot: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse("InvalidSnapshot.NotFound", f"The snapshot '{snapshot}' does not exist.")


def instance_not_found(instance: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse("InvalidInstanceID.NotFound", f"The instance ID '{instance}' does not exist")


def zone_not_found(zone: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")


def not_attached(volume: str, instance: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse(
        "InvalidAttachment.NotFound", f"The volume '{volume}' is not attached to instance '{instance}'"
    )


def in_use(message: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse("VolumeInUse", message)


def wrong_state(volume: str, state: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse("IncorrectState", f"The volume '{volume}' is '{state}'.")


def insufficient_capacity(text: str) -> Ec2ErrorResponse:
    message = f"There is not enough capacity to fulfill your EBS volume provision request: {text}"
    return Ec2ErrorResponse("InsufficientVolumeCapacity", message, 500)


def from_os_error(what: str, error: OSError) -> Ec2ErrorResponse:
    """An error of the operating system: no space left, or another."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return insufficient_capacity(f"{what}: {error.strerror}")
    return internal_error(f"{what}: {error.strerror}")


def internal_error(message: str) -> Ec2ErrorResponse:
    return Ec2ErrorResponse("InternalError", message, 500)
