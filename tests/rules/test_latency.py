"""Profiles of `--latency`: how long each step takes."""

from __future__ import annotations

import pytest

from volplane.rules import latency


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 5.0), (0.5, 10.0), (1.0, 15.0)])
def test_a_step_takes_a_time_within_its_range(draw: float, expected: float) -> None:
    assert latency.seconds("io2", "AttachVolume", draw) == expected


def test_a_step_that_a_profile_does_not_name_takes_no_time() -> None:
    assert latency.seconds("efs", "AttachVolume", 1.0) == 0.0


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    assert latency.check_profile("io2") == "io2"
    with pytest.raises(ValueError, match=r"^--latency must be one of .*efs.*, not 'gp9'$"):
        latency.check_profile("gp9")


@pytest.mark.parametrize(
    ("volume_type", "profile"), [("gp3", "ebs"), ("", "ebs"), ("io1", "io2"), ("io2", "io2"), ("efs", "efs")]
)
@pytest.mark.parametrize("step", ["AttachVolume", "NodeStageVolume", "NodePublishVolume"])
def test_one_profile_chooses_by_the_type_of_the_volume(volume_type: str, profile: str, step: str) -> None:
    assert latency.check_profile("aws") == "aws"
    chosen = latency.seconds("aws", step, 0.3, volume_type)
    assert chosen == latency.seconds(profile, step, 0.3)
