"""Names: syntax, generated names, and names that several components must derive alike."""

from __future__ import annotations

import hashlib
import random
import re
from functools import lru_cache

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_QUALIFIED = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"

LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_MESSAGE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def is_label(name: str) -> bool:
    return len(name) <= 63 and _LABEL.match(name) is not None


def is_subdomain(name: str) -> bool:
    return len(name) <= 253 and _SUBDOMAIN.match(name) is not None


@lru_cache(maxsize=2048)  # all objects have the same few keys
def is_qualified(key: str) -> bool:
    """A label or annotation key: an optional DNS prefix, a slash, a name."""
    prefix, slash, name = key.rpartition("/")
    if slash and not is_subdomain(prefix):
        return False
    return len(name) <= 63 and _QUALIFIED.match(name) is not None


def is_label_value(value: str) -> bool:
    return len(value) <= 63 and _VALUE.match(value) is not None


def generate(base: str) -> str:
    """A name from metadata.generateName."""
    return base[:58] + "".join(random.choices(_ALPHABET, k=5))


def escape(plugin: str) -> str:
    """`kubernetes.io/csi` as part of a path."""
    return plugin.replace("/", "~")


@lru_cache(maxsize=4096)  # asked for at every look at an attachment
def attachment_name(handle: str, driver: str, node: str) -> str:
    """The VolumeAttachment for a volume on a node."""
    return "csi-" + hashlib.sha256(f"{handle}{driver}{node}".encode()).hexdigest()


def flex_attachment_name(volume: str, node: str) -> str:
    """The VolumeAttachment for a FlexVolume, by its unique name, on a node."""
    return "flexvolume-" + hashlib.sha256(f"{volume}/{node}".encode()).hexdigest()


def inline_volume_handle(pod_uid: str, volume: str) -> str:
    """The volume handle of an inline CSI volume."""
    return "csi-" + hashlib.sha256(f"{pod_uid}{volume}".encode()).hexdigest()


def csi_volume_name(driver: str, handle: str) -> str:
    """The unique name of an attachable CSI volume, as in node status."""
    return f"kubernetes.io/csi/{driver}^{handle}"


def sanitize_driver(driver: str) -> str:
    """A driver name in which other characters than letters, digits and dashes are replaced."""
    name = re.sub(r"[^a-zA-Z0-9-]", "-", driver)
    return name + "X" if name.endswith("-") else name


def ephemeral_claim_name(pod: str, volume: str) -> str:
    """The name of the claim of a generic ephemeral volume."""
    return f"{pod}-{volume}"
