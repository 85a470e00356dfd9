"""Sort API versions by priority: v2, v1, v1beta2, v1beta1, v1alpha1, then all others by name."""

from __future__ import annotations

import re

_VERSION = re.compile(r"v([1-9]\d*)(?:(alpha|beta)([1-9]\d*))?")
_STAGES = {None: 0, "beta": 1, "alpha": 2}


def version_sort_key(version: str) -> tuple[int, int, int, str]:
    """Return a sort key; the preferred version sorts first."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return len(_STAGES), 0, 0, version
    major, stage, minor = found.groups()
    return _STAGES[stage], -int(major), -int(minor or 0), version
