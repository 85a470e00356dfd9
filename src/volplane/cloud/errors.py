"""Refusals in EC2's words: the codes are what clients decide by."""

from __future__ import annotations

import errno
import os

from volplane.base.files import UnusableFile


class LedgerLost(UnusableFile):
    """There are disks, but nothing that says whose they are."""

    def __init__(self, directory: str, disks: int) -> None:
        super().__init__(
            f"{os.path.dirname(directory)}/state.db knows nothing of the {disks} disks in {directory}: "
            "restore it from a backup, or move the disks away"
        )


class Refusal(Exception):
    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


def missing_parameter(name: str) -> Refusal:
    return Refusal("MissingParameter", f"The request must contain the parameter {name}")


def invalid_parameter(name: str, value: object, why: str = "") -> Refusal:
    return Refusal(
        "InvalidParameterValue", f"Value ({value}) for parameter {name} is invalid. {why}".rstrip()
    )


def no_volume(volume: str) -> Refusal:
    return Refusal("InvalidVolume.NotFound", f"The volume '{volume}' does not exist.")


def no_snapshot(snapshot: str) -> Refusal:
    return Refusal("InvalidSnapshot.NotFound", f"The snapshot '{snapshot}' does not exist.")


def no_instance(instance: str) -> Refusal:
    return Refusal("InvalidInstanceID.NotFound", f"The instance ID '{instance}' does not exist")


def no_zone(zone: str) -> Refusal:
    return Refusal("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")


def not_attached(volume: str, instance: str) -> Refusal:
    return Refusal(
        "InvalidAttachment.NotFound", f"The volume '{volume}' is not attached to instance '{instance}'"
    )


def in_use(message: str) -> Refusal:
    return Refusal("VolumeInUse", message)


def wrong_state(volume: str, state: str) -> Refusal:
    return Refusal("IncorrectState", f"The volume '{volume}' is '{state}'.")


def no_room(text: str) -> Refusal:
    message = f"There is not enough capacity to fulfill your EBS volume provision request: {text}"
    return Refusal("InsufficientVolumeCapacity", message, 500)


def by_machine(what: str, error: OSError) -> Refusal:
    """What the operating system refused: for want of room, or for another reason."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return no_room(f"{what}: {error.strerror}")
    return broken(f"{what}: {error.strerror}")


def broken(message: str) -> Refusal:
    return Refusal("InternalError", message, 500)
