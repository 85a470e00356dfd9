"""The images that this node has pulled, on disk: only these are its own to remove.

The runtime is shared: an image that another program pulled or imported may be impossible to
get again.
"""

from __future__ import annotations

import os

import msgspec

from volplane.base.files import atomic_write, set_aside
from volplane.host import Host

FILE = "images.json"

_names = msgspec.json.Decoder(set[str])


class PulledImages:
    def __init__(self, directory: str, host: Host) -> None:
        self._path, self._host = os.path.join(directory, FILE), host
        self._ids: set[str] | None = None

    async def load(self) -> set[str]:
        """The ids of the images."""
        if self._ids is None:
            self._ids = await self._host.call(_read, self._path)
        return self._ids

    async def add(self, id: str) -> None:
        ids = await self.load()
        if id not in ids:
            ids.add(id)
            await self._save(ids)

    async def discard(self, id: str) -> None:
        ids = await self.load()
        if id in ids:
            ids.discard(id)
            await self._save(ids)

    async def _save(self, ids: set[str]) -> None:
        await self._host.call(atomic_write, self._path, msgspec.json.encode(sorted(ids)))


def _read(path: str) -> set[str]:
    try:
        with open(path, "rb") as file:
            return _names.decode(file.read())
    except FileNotFoundError:
        return set()
    except (OSError, msgspec.MsgspecError) as error:
        set_aside(path, error)
        return set()
