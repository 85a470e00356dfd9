"""A file system is checked before it is mounted: repaired if that is automatic, refused otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ebs import EXT4, EbsEnvironment, ebs_environment, expect_error
from volplane.csi.outcome import Code

pytestmark = pytest.mark.root


async def write_volume(w: EbsEnvironment) -> tuple[str, str]:
    """A volume with a file, attached and not mounted; and its device."""
    volume = await w.create()
    context = await w.publish(volume, "i-1")
    await w.stage(volume, "i-1", context)
    place = await w.mount(volume, "i-1", "a")
    await w.host.atomic_write(f"{place}/note", b"kept", durable=True)
    await w.unmount(volume, "i-1", "a")
    await w.unstage(volume, "i-1")
    return volume, w.paths["i-1"].real(context["devicePath"])


async def test_small_damage_is_mended_before_the_mount(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume, device = await write_volume(w)
        # The kernel has noted an error, and a count is wrong: fsck mends both without asking.
        await w.host.run(["debugfs", "-w", "-R", "ssv state 2", device])
        await w.host.run(["debugfs", "-w", "-R", "ssv free_blocks_count 1", device])
        await w.stage(volume, "i-1", {"devicePath": "/dev/xvdba"})
        place = await w.mount(volume, "i-1", "a")
        assert await w.host.call(Path(f"{place}/note").read_bytes) == b"kept"
        await w.unmount(volume, "i-1", "a")
        await w.unstage(volume, "i-1")
        await w.host.run(["e2fsck", "-f", "-n", device])  # clean, or this raises
        await w.wipe(volume, "i-1")


async def test_damage_that_somebody_must_look_at_is_not_mounted(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume, device = await write_volume(w)
        await w.host.run(["debugfs", "-w", "-R", "ssv state 2", device])
        await w.host.run(["debugfs", "-w", "-R", "clri <2>", device])  # the root directory is gone
        text = await expect_error(Code.INTERNAL, w.stage(volume, "i-1", {"devicePath": "/dev/xvdba"}, EXT4))
        assert "fsck" in text
        staging = w.paths["i-1"].staging("ebs.csi.aws.com", volume)
        assert (await w.host.mounts()).at(w.paths["i-1"].real(staging)) is None
        await w.unpublish(volume, "i-1")
        await w.delete(volume)
