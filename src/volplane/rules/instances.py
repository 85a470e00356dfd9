"""What the disk service and the metadata service say about an instance, derived from its id."""

from __future__ import annotations

import hashlib

OWNER = "000000000000"  # the only account
ROOT_DEVICE = "/dev/xvda"  # the machine's own disk: not a volume of the disk service


def mac_address(instance: str) -> str:
    """The address of its only network interface: locally administered."""
    return ":".join(f"{octet:02x}" for octet in b"\x0e" + _digest(instance)[:5])


def interface_id(instance: str) -> str:
    return f"eni-0{_digest(instance).hex()[:16]}"


def interface_attachment_id(instance: str) -> str:
    return f"eni-attach-0{_digest(instance).hex()[:16]}"


def _digest(instance: str) -> bytes:
    return hashlib.sha256(instance.encode()).digest()
