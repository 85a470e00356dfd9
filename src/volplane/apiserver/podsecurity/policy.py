"""Parse the labels of a namespace: level and version of the standard for enforce, audit and warn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from volplane.api.errors import Cause, invalid

PREFIX = "pod-security.kubernetes.io/"
MODES = ("enforce", "audit", "warn")
LABELS = tuple(f"{PREFIX}{mode}{part}" for mode in MODES for part in ("", "-version"))
PRIVILEGED, BASELINE, RESTRICTED = LEVELS = (
    "privileged",
    "baseline",
    "restricted",
)  # in order of strictness
LATEST = "latest"

_VERSION = re.compile(r"v1\.([0-9]|[1-9][0-9]*)", re.ASCII)
_LONGEST_VERSION = 63  # the maximum length of a label value


class LevelVersion(Struct, frozen=True):
    level: str = PRIVILEGED
    version: str = LATEST

    def __str__(self) -> str:
        return f"{self.level}:{self.version}"

    @property
    def minor(self) -> int | None:
        """The minor version of Kubernetes whose checks apply; None for the newest."""
        return None if self.version == LATEST else int(self.version.removeprefix("v1."))


class PodSecurityLevels(Struct, frozen=True):
    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()
    causes: tuple[Cause, ...] = ()  # invalid labels

    @property
    def allows_all(self) -> bool:
        return not self.causes and self.enforce.level == PRIVILEGED and self.has_no_audit_or_warn

    @property
    def has_no_audit_or_warn(self) -> bool:
        """Neither audits nor warns, so that objects other than pods need no check."""
        return not self.causes and self.audit.level == self.warn.level == PRIVILEGED


NO_LEVELS = PodSecurityLevels()


def read_policy(labels: Mapping[str, str]) -> PodSecurityLevels:
    """Return the levels of a namespace with these labels; invalid labels fall back to defaults."""
    for label in LABELS:
        if label in labels:
            return _read(tuple(labels.get(name) for name in LABELS))
    return NO_LEVELS


@lru_cache(maxsize=256)
def _read(values: tuple[str | None, ...]) -> PodSecurityLevels:
    given = dict(zip(LABELS, values, strict=True))
    causes: list[Cause] = []
    read: dict[str, LevelVersion] = {}
    for mode in MODES:
        # An invalid enforce label counts as restricted; invalid audit and warn labels are ignored.
        level = _level(given, f"{PREFIX}{mode}", RESTRICTED if mode == "enforce" else PRIVILEGED, causes)
        read[mode] = LevelVersion(level, _version(given, f"{PREFIX}{mode}-version", causes))
    enforce, warn = read["enforce"], read["warn"]
    if given[f"{PREFIX}warn"] is None and given[f"{PREFIX}enforce"] == enforce.level != PRIVILEGED:
        # Enforced levels also warn: a Deployment is accepted although its pods will be refused.
        version = enforce.version if given[f"{PREFIX}warn-version"] is None else warn.version
        warn = LevelVersion(enforce.level, version)
    return PodSecurityLevels(enforce, read["audit"], warn, tuple(causes))


def _level(given: Mapping[str, str | None], label: str, otherwise: str, causes: list[Cause]) -> str:
    value = given[label]
    if value is None or value in LEVELS:
        return value or PRIVILEGED
    causes.append(invalid(f"metadata.labels[{label}]", value, f"must be one of {', '.join(LEVELS)}"))
    return otherwise


def _version(given: Mapping[str, str | None], label: str, causes: list[Cause]) -> str:
    value = given[label]
    if value is None or value == LATEST:
        return LATEST
    if len(value) <= _LONGEST_VERSION and _VERSION.fullmatch(value):
        return value
    causes.append(invalid(f"metadata.labels[{label}]", value, 'must be "latest" or "v1.x"'))
    return LATEST


def is_stricter(new: LevelVersion, old: LevelVersion) -> bool:
    """Return whether pods that the old level allowed may violate the new one."""
    if new == old or new.level == PRIVILEGED:
        return False
    return new.version != old.version or LEVELS.index(new.level) > LEVELS.index(old.level)
