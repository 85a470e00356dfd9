"""How the worlds of a cluster end: the machine is given back, and what was found is kept."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support import blocks, elsewhere
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.cluster import guest
from volplane.csi.tap import Tap
from volplane.host import devices, mounts
from volplane.testing import session
from volplane.testing.apart import Apart, Witness
from volplane.testing.case import Broken
from volplane.testing.promises import Promises
from volplane.testing.whole import Whole

GUEST = guest.from_command(blocks.line())


W = TypeVar("W", bound=Whole)


def composed(kind: type[W], directory: Path) -> W:
    """A world whose cluster was not started, or has ended."""
    world = kind(GUEST, directory, Promises(), tap=Tap())
    directory.mkdir(exist_ok=True)
    world.cluster = world._composed()
    return world


class Refused(Apart):
    """Whose driver does not let go of anything."""

    error: Exception

    async def remove_pod(self, name: str) -> None:
        raise self.error


@pytest.mark.root
async def test_a_device_that_a_container_has_left_is_released(tmp_path: Path) -> None:
    world = composed(Whole, tmp_path / "w")
    file = tmp_path / "w" / "volume.img"
    file.touch()
    os.truncate(file, 1 << 20)
    with elsewhere.bound(file) as (device, process):
        assert device in devices.loops_below(str(tmp_path))
        # It is busy as long as the container's last process: that one ends while it is swept.
        ending = asyncio.get_running_loop().call_later(0.3, process.kill)
        await world.__aexit__()
        ending.cancel()
        assert devices.loops_below(str(tmp_path)) == {}


@pytest.mark.root
async def test_a_cluster_that_does_not_end_well_is_swept_none_the_less(tmp_path: Path) -> None:
    async def refuses() -> None:
        raise OSError("no")

    world = composed(Whole, tmp_path / "w")
    file = tmp_path / "w" / "volume.img"
    file.touch()
    os.truncate(file, 1 << 20)
    world.cluster._stack.push_async_callback(refuses)
    with elsewhere.bound(file):
        pass
    with pytest.raises(OSError, match="no"):
        await world.__aexit__()
    assert devices.loops_below(str(tmp_path)) == {}


@pytest.mark.root
@pytest.mark.parametrize("error", [Broken("refused"), TimeoutError()], ids=["refused", "too late"])
async def test_a_driver_that_keeps_the_last_pod_does_not_cost_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    world = composed(Refused, tmp_path / "a")
    world.error, world._witness = error, Witness(world, "claim", "pod", "told")
    await world.__aexit__()
    [told] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert told.startswith("pod pod and its volume cannot be removed: ")


async def test_a_case_that_fails_takes_the_witness_with_it(tmp_path: Path) -> None:
    async def never(world: Whole) -> tuple[str, str, str]:
        raise AssertionError

    world = composed(Apart, tmp_path / "a")
    world._witness = one = Witness(world, "claim", "pod", "told")
    one._process = (1, 1)
    async with world.witness(never) as same:
        assert same is one
    assert world._witness is one
    with pytest.raises(Broken):
        async with world.witness(never):
            raise Broken("the container has ended")
    assert world._witness is None
    assert world._known == {(PersistentVolumeClaim, "claim"), (Pod, "pod")}  # so it is removed with the case


@pytest.mark.root
async def test_a_directory_that_stays_because_of_a_mount_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "run"
    async with session.place(place):
        (place / "m").mkdir(parents=True)
        mounts.bind(str(tmp_path), str(place / "m"), readonly=False, recursive=False)
    assert place.is_dir()
    assert f"{place} is not removed: still mounted there: {place / 'm'}" in caplog.text
    mounts.unmount(str(place / "m"))
    await asyncio.to_thread(session._remove, place)
    assert not place.exists()
