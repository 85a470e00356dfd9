"""Names of images: parse references, and match them to the registries of pull secrets. Pure."""

from __future__ import annotations

import fnmatch
import re

DOCKER_HUB = "docker.io"
DOCKER_HUB_CONFIG = "index.docker.io"  # its name in Docker's configuration files

_HOST_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PATH_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_PATH_PART}(?:/{_PATH_PART})*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?"
)
_SHA256 = re.compile(r"[a-f0-9]{64}")
MAX_NAME = 255


class InvalidImageName(Exception):
    """Not the name of an image; the text is the kubelet's."""

    def __init__(self, image: str, why: str) -> None:
        super().__init__(
            f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {why}'
        )


def with_default_tag(image: str) -> str:
    """The image with tag `latest` if it has neither tag nor digest. Raises InvalidImageName."""
    found = _REFERENCE.fullmatch(image)
    if _SHA256.fullmatch(image):
        raise InvalidImageName(
            image, "invalid repository name (" + image + "), cannot specify 64-byte hexadecimal strings"
        )
    if found is None:
        if _REFERENCE.fullmatch(image.lower()):
            raise InvalidImageName(
                image, "invalid reference format: repository name (" + _path(image) + ") must be lowercase"
            )
        raise InvalidImageName(image, "invalid reference format")
    if len(_path(found["name"])) > MAX_NAME:
        raise InvalidImageName(image, f"repository name must not be more than {MAX_NAME} characters")
    return image if found["tag"] or found["digest"] else f"{image}:latest"


def split_registry(image: str) -> tuple[str, str]:
    """The registry's host and the repository of an image, as in docker.io and library/nginx."""
    name = image.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        repository = name
    host, slash, rest = repository.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return host, rest
    return DOCKER_HUB, repository if slash else f"library/{repository}"


def _path(image: str) -> str:
    host, slash, rest = image.partition("/")
    return rest if slash and ("." in host or ":" in host or host == "localhost") else image


def matches_registry(image: str, registry: str) -> bool:
    """Whether credentials of this registry, as a pull secret names it, are meant for the image.

    The registry may have a scheme, a path whose beginning must be that of the repository, and `*` in the
    parts of its host name.
    """
    host, repository = split_registry(image)
    plain = re.sub(r"^https?://", "", registry).rstrip("/")
    wanted, _, path = plain.partition("/")
    if path in ("v1", "v2"):
        path = ""
    if wanted == DOCKER_HUB_CONFIG:
        wanted = DOCKER_HUB
    if path and not f"{repository}/".startswith(f"{path}/"):
        return False
    host_name, _, port = host.partition(":")
    wanted_name, _, wanted_port = wanted.partition(":")
    if port != wanted_port:
        return False
    parts, patterns = host_name.split("."), wanted_name.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))
