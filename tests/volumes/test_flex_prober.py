"""The exec directory of FlexVolume drivers: what is loaded, replaced and dropped, and when."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from volplane.host import Host
from volplane.volumes.flex.prober import FlexProber

SUCCESS = """echo '{"status": "Success"}'"""


class Probing:
    """A prober at work, and the names of drivers that it reported as changed."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.host = directory, Host()
        self.changes: list[str] = []
        self._wake = asyncio.Event()
        self.prober = FlexProber(str(directory), self.host, self._changed)

    def _changed(self, name: str) -> None:
        self.changes.append(name)
        self._wake.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self._wake.clear()
                await asyncio.wait_for(self._wake.wait(), 30)

    async def loaded(self, *names: str) -> None:
        await self.until(lambda: set(self.prober.drivers) == set(names))


@asynccontextmanager
async def probing(directory: Path) -> AsyncIterator[Probing]:
    found = Probing(directory)
    task = asyncio.create_task(found.prober.run())
    try:
        await found.prober.wait_loaded()
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await found.host.close()


def install(directory: Path, driver: str, body: str = SUCCESS, mode: int = 0o755) -> Path:
    """Put a driver where it belongs, by a rename, as upstream tells vendors to."""
    folder = directory / driver
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / ".new"
    aside.write_text(f"#!/bin/sh\n{body}\n")
    aside.chmod(mode)
    return aside.rename(folder / driver.rpartition("~")[2])


async def test_a_link_that_leads_nowhere_does_not_keep_others_from_being_loaded(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "acme~loop").mkdir()
    (tmp_path / "acme~loop" / "loop").symlink_to("loop")
    install(tmp_path, "acme~disk")
    async with probing(tmp_path) as here:
        await here.loaded("acme/disk")
        install(tmp_path, "acme~late")
        await here.loaded("acme/disk", "acme/late")


async def test_drivers_that_are_there_at_the_start_are_loaded(tmp_path: Path) -> None:
    install(tmp_path, "example.com~disks")
    install(tmp_path, "plain")
    install(tmp_path, ".hidden")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    async with probing(tmp_path) as found:
        assert set(found.prober.drivers) == {"example.com/disks", "plain"}


async def test_an_entry_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "loop").symlink_to("loop")
    (tmp_path / "circle").symlink_to("circle")
    install(tmp_path, "plain")
    async with probing(tmp_path) as found:
        assert set(found.prober.drivers) == {"plain"}
        install(tmp_path, "later")
        await found.loaded("later", "plain")


async def test_a_driver_whose_answer_is_nested_too_deep_has_failed(tmp_path: Path) -> None:
    install(tmp_path, "deep", "head -c 200000 /dev/zero | tr '\\0' '['")
    install(tmp_path, "plain")
    async with probing(tmp_path) as found:
        await found.loaded("plain")
        assert "init command did not answer with one JSON object" in found.prober.errors["deep"]


async def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    async with probing(tmp_path / "a" / "b") as found:
        install(found.directory, "plain")
        await found.loaded("plain")


async def test_a_driver_is_loaded_replaced_and_dropped_while_it_runs(tmp_path: Path) -> None:
    async with probing(tmp_path) as found:
        executable = install(tmp_path, "example.com~disks")
        await found.loaded("example.com/disks")
        first = found.prober.drivers["example.com/disks"]
        body = """echo '{"status": "Success", "capabilities": {"attach": false}}'"""
        install(tmp_path, "example.com~disks", body)
        await found.until(lambda: found.prober.drivers["example.com/disks"] is not first)
        assert not found.prober.drivers["example.com/disks"].capabilities.attach
        executable.unlink()
        await found.loaded()
        install(tmp_path, "example.com~disks")
        await found.loaded("example.com/disks")
        shutil.rmtree(tmp_path / "example.com~disks")
        await found.loaded()


async def test_a_driver_that_is_copied_in_place_is_loaded_when_the_copy_is_closed(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    async with probing(tmp_path) as found:
        with (tmp_path / "plain" / "plain").open("w") as file:
            os.fchmod(file.fileno(), 0o755)
            file.write("#!/bin/sh\n")
            file.flush()
            install(tmp_path, "other")  # the prober has looked at the half-written one by then
            await found.loaded("other")
            file.write(SUCCESS)
        await found.loaded("other", "plain")


async def test_a_driver_is_loaded_when_it_becomes_executable(tmp_path: Path) -> None:
    executable = install(tmp_path, "plain", mode=0o644)
    async with probing(tmp_path) as found:
        assert "Permission denied" in found.prober.errors["plain"]
        executable.chmod(0o755)
        await found.loaded("plain")
        assert not found.prober.errors


async def test_a_driver_whose_init_fails_is_tried_again_when_somebody_asks(tmp_path: Path) -> None:
    install(tmp_path, "plain", f"[ -e {tmp_path}/.ready ] && {SUCCESS} || echo starting")
    async with probing(tmp_path) as found:
        assert "init command did not answer with one JSON object" in found.prober.errors["plain"]
        await found.prober.retry("plain")
        assert not found.prober.drivers
        (tmp_path / ".ready").write_text("")
        await found.prober.retry("plain")
        assert set(found.prober.drivers) == {"plain"}


async def test_a_broken_replacement_takes_the_working_driver_away(tmp_path: Path) -> None:
    install(tmp_path, "plain")
    async with probing(tmp_path) as found:
        install(tmp_path, "plain", """echo '{"status": "Not supported"}'""")
        await found.loaded()
        assert found.prober.errors == {"plain": "Not supported"}


async def test_a_driver_that_hangs_in_init_does_not_hold_up_others(tmp_path: Path) -> None:
    async with probing(tmp_path) as found:
        install(tmp_path, "hanging", "sleep 600")
        install(tmp_path, "plain")
        await found.loaded("plain")
        install(tmp_path, "hanging")
        await found.loaded("plain", "hanging")


async def test_a_directory_that_was_removed_is_made_and_watched_again(tmp_path: Path) -> None:
    directory = tmp_path / "exec"
    install(directory, "plain")
    async with probing(directory) as found:
        shutil.rmtree(directory)
        await found.loaded()
        install(directory, "plain")
        await found.loaded("plain")


async def test_a_driver_that_is_not_loaded_is_described_with_its_place_and_reason(tmp_path: Path) -> None:
    install(tmp_path, "broken", """echo '{"status": "Failure", "message": "no licence"}'""")
    prober = FlexProber(str(tmp_path), Host())
    assert prober.describe_missing("plain") == f"FlexVolume driver plain is being loaded from {tmp_path}"
    async with probing(tmp_path) as found:
        missing = found.prober.describe_missing("example.com/disks")
        assert missing.endswith(f"example.com/disks was not found at {tmp_path}/example.com~disks/disks")
        assert found.prober.describe_missing("broken") == (
            f"FlexVolume driver broken cannot be loaded from {tmp_path}/broken/broken: "
            "init command failed, status: Failure, reason: no licence"
        )
        assert found.changes == ["broken"]


async def test_every_subscriber_hears_of_a_change_until_it_unsubscribes(tmp_path: Path) -> None:
    heard: list[str] = []
    async with probing(tmp_path) as found:
        unsubscribe = found.prober.subscribe(heard.append)
        install(tmp_path, "plain")
        await found.loaded("plain")
        unsubscribe()
        install(tmp_path, "other")
        await found.loaded("plain", "other")
    assert heard == ["plain"]
    assert found.changes == ["plain", "other"]
