"""Names of images, and the registries whose credentials are meant for them."""

from __future__ import annotations

import base64
import json

import pytest

from volplane.api.core import Secret
from volplane.node.containers.cri.image_names import (
    InvalidImageName,
    matches_registry,
    split_registry,
    with_default_tag,
)
from volplane.node.containers.cri.images import format_duration
from volplane.node.containers.cri.pull_secrets import find_credentials, parse_secret

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("nginx", "nginx:latest"),
        ("nginx:1.27", "nginx:1.27"),
        (f"nginx@{DIGEST}", f"nginx@{DIGEST}"),
        (f"nginx:1.27@{DIGEST}", f"nginx:1.27@{DIGEST}"),
        ("registry:5000/team/app", "registry:5000/team/app:latest"),
        ("registry:5000/team/app:v1", "registry:5000/team/app:v1"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("a__b/c-d.e", "a__b/c-d.e:latest"),
    ],
)
def test_an_image_without_tag_and_digest_is_the_latest(image: str, expected: str) -> None:
    assert with_default_tag(image) == expected


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("Not-A-Name", "invalid reference format: repository name (Not-A-Name) must be lowercase"),
        ("nginx:", "invalid reference format"),
        ("", "invalid reference format"),
        ("nginx@sha256:12", "invalid reference format"),
        ("https://registry/nginx", "invalid reference format"),
        ("a" * 300, "repository name must not be more than 255 characters"),
        ("0" * 64, f"invalid repository name ({'0' * 64}), cannot specify 64-byte hexadecimal strings"),
    ],
)
def test_what_is_no_name_is_refused_in_the_kubelets_words(image: str, why: str) -> None:
    with pytest.raises(InvalidImageName) as caught:
        with_default_tag(image)
    found = f'couldn\'t parse image name "{image}": {why}'
    assert str(caught.value) == f'Failed to apply default image tag "{image}": {found}'


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("nginx:1", ("docker.io", "library/nginx")),
        ("team/app", ("docker.io", "team/app")),
        ("localhost/app:v1", ("localhost", "app")),
        (f"quay.io/a/b@{DIGEST}", ("quay.io", "a/b")),
        ("registry:5000/app", ("registry:5000", "app")),
    ],
)
def test_an_image_has_a_registry_and_a_repository(image: str, expected: tuple[str, str]) -> None:
    assert split_registry(image) == expected


@pytest.mark.parametrize(
    ("image", "registry", "expected"),
    [
        ("nginx", "https://index.docker.io/v1/", True),
        ("nginx", "docker.io", True),
        ("nginx", "quay.io", False),
        ("quay.io/a/b", "quay.io", True),
        ("quay.io/a/b", "quay.io/a", True),
        ("quay.io/ab/c", "quay.io/a", False),
        ("a.example.com/x", "*.example.com", True),
        ("a.b.example.com/x", "*.example.com", False),
        ("reg:5000/x", "reg:5000", True),
        ("reg:5000/x", "reg", False),
        ("reg:5000/x", "http://reg:5000/v2/", True),
    ],
)
def test_credentials_are_matched_by_registry_and_path(image: str, registry: str, expected: bool) -> None:
    assert matches_registry(image, registry) is expected


def make_secret(key: str, content: object) -> Secret:
    return Secret(data={key: json.dumps(content).encode()})


def test_both_formats_of_pull_secrets_are_read() -> None:
    auth = base64.b64encode(b"user:pass:word").decode()
    new = make_secret(".dockerconfigjson", {"auths": {"reg:5000": {"auth": auth}}})
    old = make_secret(".dockercfg", {"quay.io": {"username": "a", "password": "b", "email": "c"}})
    (found,) = find_credentials("reg:5000/app", [old, new])
    assert (found.username, found.password) == ("user", "pass:word")
    (found,) = find_credentials("quay.io/x", [old, new])
    assert (found.username, found.password) == ("a", "b")
    assert find_credentials("nginx", [old, new]) == []


def test_the_credentials_of_the_longest_path_come_first() -> None:
    entries = {"quay.io": {"username": "all"}, "quay.io/team": {"username": "team"}}
    found = find_credentials("quay.io/team/app", [make_secret(".dockercfg", entries)])
    assert [each.username for each in found] == ["team", "all"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"auths": 3}', b"\xff"])
def test_a_secret_that_cannot_be_decoded_has_no_credentials(content: bytes) -> None:
    assert parse_secret(Secret(data={".dockerconfigjson": content})) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.4237, "423ms"), (1, "1s"), (2.5, "2.5s"), (61.25, "1m1.25s"), (3723, "1h2m3s")],
)
def test_durations_are_printed_as_go_prints_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
