"""The stylesheet, the script and the icon, served under names that change with their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from volplane.explain.journey.diagram import read_style
from volplane.web import Response

DIRECTORY = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CACHED = ("Cache-Control", "private, max-age=31536000, immutable")


class Assets(Struct, frozen=True):
    """Paths of the files, and their content by path."""

    styles: tuple[str, ...]
    script: str
    icon: str
    content: Mapping[str, bytes]

    def answer(self, path: str) -> Response | None:
        """The file at a path; None if there is none."""
        content = self.content.get(path)
        if content is None:
            return None
        kind = TYPES[Path(path).suffix]
        return Response(200, [("Content-Type", kind), CACHED], content)


def load_assets() -> Assets:
    content: dict[str, bytes] = {}

    def load(name: str) -> str:
        return load_text(name, (DIRECTORY / name).read_text())

    def load_text(name: str, text: str) -> str:
        data = text.encode()
        stem, _, suffix = name.rpartition(".")
        path = f"/{stem}.{hashlib.sha256(data).hexdigest()[:12]}.{suffix}"
        content[path] = data
        return path

    styles = (
        load("page.css"),
        load_text("diagram.css", read_style()),
        load("journey.css"),
        load("details.css"),
    )
    return Assets(styles, load("page.js"), load("icon.svg"), content)
