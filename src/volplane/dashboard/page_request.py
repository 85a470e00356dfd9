"""The page that a browser asks for."""

from __future__ import annotations

from urllib.parse import urlencode

from msgspec import Struct


class PageNotFound(Exception):
    """There is no such page, or its object does not exist. The message is for the user."""


class PageRequest(Struct, frozen=True):
    """A path below the prefix, and its parameters. All who ask for the same share one view."""

    path: str
    query: tuple[tuple[str, str], ...] = ()
    prefix: str = ""

    def parameter(self, name: str) -> str:
        return dict(self.query).get(name, "")

    def number(self, name: str, default: int = 1) -> int:
        text = self.parameter(name)
        return int(text) if text.isdecimal() and len(text) < 7 else default

    def link(self, path: str = "", /, **changes: str | int | None) -> str:
        """The address of a page; without a path, of this one with other parameters. None removes one."""
        query = {} if path else dict(self.query)
        for name, value in changes.items():
            if value is None or value == "":
                query.pop(name, None)
            else:
                query[name] = str(value)
        return f"{self.prefix}{path or self.path}{'?' + urlencode(query) if query else ''}"
