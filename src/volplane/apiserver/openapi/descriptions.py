"""What `kubectl explain` says about types and fields, read from `descriptions.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml


@cache
def descriptions() -> Mapping[str, Mapping[str, str]]:
    """Type (`storage.StorageClass`) → field → sentence."""
    text = Path(__file__).with_name("descriptions.yaml").read_bytes()
    found: Mapping[str, Mapping[str, str]] = yaml.load(text, Loader=yaml.CBaseLoader)  # all values are text
    return found


def describe_type(key: str) -> str:
    return descriptions().get(key, {}).get("self", "")


def describe_field(key: str, name: str) -> str:
    return descriptions().get(key, {}).get(name) or descriptions()["any"].get(name, "")
