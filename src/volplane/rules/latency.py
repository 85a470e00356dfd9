"""Latencies of a cloud: ranges in seconds, by profile and step; one profile chooses by volume type.

The ranges are within those that operators report (attach 5 to 30 s, format and mount 2 to 10 s, 15 to 45 s
from a scheduled pod to a running one; io2 attaches in 5 to 15 s and mounts in half a second; a shared file
system has no attach and mounts in 1 to 2 s), narrowed so that the sum keeps to the reported total, too.
"""

from __future__ import annotations

from collections.abc import Mapping

Range = tuple[float, float]

PROFILES: Mapping[str, Mapping[str, Range]] = {
    "": {},
    "ebs": {
        "CreateVolume": (1.0, 3.0),
        "AttachVolume": (12.0, 28.0),
        "DetachVolume": (3.0, 10.0),
        "ModifyVolume": (2.0, 6.0),
        "CreateSnapshot": (10.0, 60.0),
        "NodeStageVolume": (3.0, 10.0),
        "NodePublishVolume": (0.1, 0.1),
    },
    "io2": {
        "CreateVolume": (1.0, 3.0),
        "AttachVolume": (5.0, 15.0),
        "DetachVolume": (2.0, 6.0),
        "ModifyVolume": (2.0, 6.0),
        "CreateSnapshot": (10.0, 60.0),
        "NodeStageVolume": (0.5, 0.5),
        "NodePublishVolume": (0.1, 0.1),
    },
    "efs": {"NodePublishVolume": (1.0, 2.0)},
}


BY_TYPE = "aws"  # the profile that fits the type of each volume
_PROFILE_OF_TYPE = {"io1": "io2", "io2": "io2", "efs": "efs"}  # of all others: ebs


def check_profile(profile: str) -> str:
    known = (*PROFILES, BY_TYPE)
    if profile not in known:
        raise ValueError(f"--latency must be one of {', '.join(filter(None, known))}, not {profile!r}")
    return profile


def seconds(profile: str, step: str, draw: float, volume_type: str = "") -> float:
    """The latency of a step; `draw` between 0 and 1 chooses within its range."""
    if profile == BY_TYPE:
        profile = _PROFILE_OF_TYPE.get(volume_type, "ebs")
    low, high = PROFILES[profile].get(step, (0.0, 0.0))
    return low + (high - low) * draw
