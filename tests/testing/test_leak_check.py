"""The leak check after each test of the plugin: what a driver keeps to itself is found, and given back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import sample_driver
from volplane.host import devices
from volplane.testing import call_audit
from volplane.testing.sync_cluster import SyncCluster

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.parametrize(
    ("mutant", "left"),
    [
        ("none", ()),
        ("not-idempotent", (r"volume vol-\w+, which only the driver knows",)),
        ("keeps-the-device", (r"loop device /dev/loop\d+ of \S+\.img",)),
    ],
)
def test_what_only_the_driver_has_is_left_behind(mutant: str, left: tuple[str, ...], tmp_path: Path) -> None:
    handle = SyncCluster.start(sample_driver.command_line(mutant), {"nodes": 1}, tmp_path)
    try:
        handle.begin_test()
        handle.cut("CreateVolume", after=True)  # so that it is asked for twice
        handle.pod(handle.claim())
        found = handle.clean()
        assert len(handle.calls_to("CreateVolume")) == 2
    finally:
        handle.stop()
    assert len(found) == len(left), found
    for said, pattern in zip(found, left, strict=True):
        assert re.fullmatch(pattern, said)
    mine = call_audit.requested_volumes(handle.tap.calls)
    assert not [file for file in devices.loops().values() if Path(file.split()[0]).stem in mine]
