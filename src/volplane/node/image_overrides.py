"""Image overrides: programs of this machine that run in place of container images.

The program replaces the image's entry point; arguments and environment stay the container's. An override
without a program is the image itself, in place of the sidecar that is built in under its name.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from msgspec import Struct

from volplane.node.pods.env_expansion import expand

SHELLS = frozenset({"sh", "ash", "bash", "dash", "env"})


class ImageOverride(Struct, frozen=True):
    argv: tuple[str, ...]  # empty: the image itself
    env: Mapping[str, str] = {}  # variables that the container does not set itself
    directory: str = ""
    paths: tuple[str, ...] = ()  # paths of this machine that the program needs

    @property
    def is_own_image(self) -> bool:
        return not self.argv

    def command(self, image_command: tuple[str, ...], variables: Mapping[str, str]) -> tuple[str, ...]:
        """The command to run instead of `image_command`, whose program is a path inside the image."""
        if image_command and posixpath.basename(image_command[0]) in SHELLS:
            return image_command
        return (*self.program(variables), *image_command[1:])

    def program(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(expand(word, variables) for word in self.argv)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: expand(value, variables) for name, value in self.env.items()}


class ImageOverrides:
    """Overrides by image. One without a tag applies to all tags."""

    def __init__(self, given: Mapping[str, ImageOverride] | None = None) -> None:
        self._given = dict(given or {})

    def get(self, image: str) -> ImageOverride | None:
        plain = image.partition("@")[0]
        return self._given.get(image) or self._given.get(plain) or self._given.get(image_repository(image))


def image_repository(image: str) -> str:
    """The image without tag and digest. A registry's port is not a tag."""
    plain = image.partition("@")[0]
    name, colon, tag = plain.rpartition(":")
    return name if colon and "/" not in tag else plain
