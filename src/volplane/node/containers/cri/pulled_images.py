"""The images that this node has pulled, on disk: only these are its own to remove.

The runtime is shared: an image that another program pulled or imported may be impossible to
get again.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from volplane.base.files import atomic_write, set_aside
from volplane.host import Host

FILE = "images.json"

_names = msgspec.json.Decoder(frozenset[str])


class PulledImages:
    def __init__(self, directory: str, host: Host) -> None:
        self._path, self._host = os.path.join(directory, FILE), host
        self._ids: frozenset[str] | None = None
        self._lock = asyncio.Lock()  # a change is written before the next one is made

    async def load(self) -> frozenset[str]:
        """The ids of the images."""
        async with self._lock:
            return await self._load()

    async def add(self, id: str) -> None:
        async with self._lock:
            await self._save(await self._load() | {id})

    async def discard(self, id: str) -> None:
        async with self._lock:
            await self._save(await self._load() - {id})

    async def _load(self) -> frozenset[str]:
        if self._ids is None:
            self._ids = await self._host.call(_read, self._path)
        return self._ids

    async def _save(self, ids: frozenset[str]) -> None:
        if ids != self._ids:
            await self._host.call(atomic_write, self._path, msgspec.json.encode(sorted(ids)))
            self._ids = ids


def _read(path: str) -> frozenset[str]:
    try:
        with open(path, "rb") as file:
            return _names.decode(file.read())
    except FileNotFoundError:
        return frozenset()
    except (OSError, msgspec.MsgspecError) as error:
        set_aside(path, error)
        return frozenset()
