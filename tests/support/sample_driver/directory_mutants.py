"""Variants of the driver of docs/write-a-driver.md, whose volumes are directories, with one bug each."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from volplane.csi import v1
from volplane.sdk import errors

PAGE = Path(__file__).parents[3] / "docs" / "write-a-driver.md"


def page_code() -> str:
    """The code of the page."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S))


def load_page() -> types.ModuleType:
    """The code of the page as a module."""
    module = types.ModuleType("directories")
    exec(page_code(), module.__dict__)
    return module


Directories: Any = load_page().Directories


class ReplacesCopy(Directories):  # type: ignore[misc]
    """Copies with other options of cp."""

    options: tuple[str, ...] = ()

    async def copy(self, source: str, target: str) -> None:
        await self.host.run(["cp", "--archive", *self.options, "--no-target-directory", source, target])


class DropsModes(ReplacesCopy):
    options = ("--no-preserve=mode",)


class DropsOwners(ReplacesCopy):
    options = ("--no-preserve=ownership",)


class DropsHardLinks(ReplacesCopy):
    options = ("--no-preserve=links",)


class DropsXattrs(ReplacesCopy):
    options = ("--no-preserve=xattr",)


class DropsTimes(ReplacesCopy):
    options = ("--no-preserve=timestamps",)


class FillsHoles(ReplacesCopy):
    options = ("--sparse=never",)


class FollowsLinks(Directories):  # type: ignore[misc]
    async def copy(self, source: str, target: str) -> None:
        argv = ["cp", "--recursive", "--dereference", "--preserve=all", "--no-target-directory"]
        await self.host.run([*argv, source, target], check=False)  # it skips broken links


class DropsEmptyDirectories(ReplacesCopy):
    """As a copy by way of an object store does."""

    async def copy(self, source: str, target: str) -> None:
        await super().copy(source, target)
        await self.host.run(["find", target, "-mindepth", "1", "-type", "d", "-empty", "-delete"])


class TrustsIds(Directories):  # type: ignore[misc]
    """Takes an id for the name of a directory, wherever that leads."""

    def path(self, volume: str) -> str:
        return os.path.join(self.root, volume)


class PublishesAnyPath(TrustsIds):
    async def size(self, volume: str) -> int | None:
        known: int | None = await super().size(volume)
        exists = await self.host.call(os.path.isdir, self.path(volume))
        return 0 if known is None and exists else known


class NamesArePaths(Directories):  # type: ignore[misc]
    """Makes a link by the volume's name, wherever that leads."""

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        reply: v1.CreateVolumeResponse = await super().create_volume(request)
        with suppress(OSError):  # it is there, or its directory is not
            os.symlink(self.path(reply.volume.volume_id), os.path.join(self.root, request.name))
        return reply


class TrustsBaseNames(Directories):  # type: ignore[misc]
    """Takes the last part of an id: that of `x/` is empty, and that of `x/ID` is another volume."""

    def path(self, id: str) -> str:
        return os.path.join(self.root, os.path.basename(id))


class TrustsDots(Directories):  # type: ignore[misc]
    """Refuses slashes, but not `.` and `..`."""

    def path(self, id: str) -> str:
        if "/" in id:
            raise errors.NotFound(f"there is no volume {id}")
        return os.path.join(self.root, id)


class PublishesBaseNames(TrustsBaseNames):
    async def size(self, volume: str) -> int | None:
        known: int | None = await super().size(volume)
        exists = await self.host.call(os.path.isdir, self.path(volume))
        return 0 if known is None and exists else known


class NamesAreIds(Directories):  # type: ignore[misc]
    """The name is the id, and the directory."""

    def path(self, id: str) -> str:
        return os.path.join(self.root, id)

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        if re.search(r"[^\w./-]|\.\./", request.name):
            raise errors.InvalidArgument(f"{request.name} has a character that no directory has")
        size = request.capacity_range.required_bytes
        await self.host.call(os.makedirs, self.path(request.name), 0o755, True)
        return v1.CreateVolumeResponse(volume=v1.Volume(volume_id=request.name, capacity_bytes=size))

    async def size(self, volume: str) -> int | None:
        return 0 if await self.host.call(os.path.isdir, self.path(volume)) else None


DIRECTORY_MUTANTS: Mapping[str, Any] = {
    "drops-modes": DropsModes,
    "drops-owners": DropsOwners,
    "drops-hard-links": DropsHardLinks,
    "drops-xattrs": DropsXattrs,
    "drops-times": DropsTimes,
    "fills-holes": FillsHoles,
    "follows-links": FollowsLinks,
    "drops-empty-directories": DropsEmptyDirectories,
    "trusts-ids": TrustsIds,
    "publishes-any-path": PublishesAnyPath,
    "names-are-paths": NamesArePaths,
    "trusts-base-names": TrustsBaseNames,
    "trusts-dots": TrustsDots,
    "publishes-base-names": PublishesBaseNames,
    "names-are-ids": NamesAreIds,
}
