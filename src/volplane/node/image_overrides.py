"""Programs of this machine that stand for images: what a manifest calls `registry/driver:v1` is one of them.

The program takes the place of the image's entry point; arguments and environment stay the container's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from msgspec import Struct

from volplane.node.pods.env_expansion import expand

SHELLS = frozenset({"sh", "ash", "bash", "dash", "env"})


class ImageOverride(Struct, frozen=True):
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}  # for what the container does not set itself
    directory: str = ""
    paths: tuple[str, ...] = ()  # what it needs of this machine and would not see

    def command(self, asked: tuple[str, ...], variables: Mapping[str, str]) -> tuple[str, ...]:
        """What to run where the container asks for `asked`, which is a path of the image that is not here."""
        if asked and posixpath.basename(asked[0]) in SHELLS:
            return asked
        return (*(expand(word, variables) for word in self.argv), *asked[1:])

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: expand(value, variables) for name, value in self.env.items()}


class ImageOverrides:
    """By image; one that is given without a tag stands for all of its versions."""

    def __init__(self, given: Mapping[str, ImageOverride] | None = None) -> None:
        self._given = dict(given or {})

    def get(self, image: str) -> ImageOverride | None:
        plain = image.partition("@")[0]
        return self._given.get(image) or self._given.get(plain) or self._given.get(image_repository(image))


def image_repository(image: str) -> str:
    """An image without tag and digest; a registry's port is no tag."""
    plain = image.partition("@")[0]
    name, colon, tag = plain.rpartition(":")
    return name if colon and "/" not in tag else plain
