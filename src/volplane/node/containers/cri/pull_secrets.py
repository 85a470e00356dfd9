"""Credentials for registries, from a pod's image pull secrets."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct, field

from volplane.api.core import Pod, Secret
from volplane.api.errors import APIError
from volplane.client.client import Client
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.image_names import matches_registry

DOCKER_CONFIG_JSON, DOCKER_CFG = ".dockerconfigjson", ".dockercfg"


class RegistryCredentials(Struct, frozen=True):
    """One entry of a Docker configuration file."""

    username: str = ""
    password: str = ""
    auth: str = ""  # base64 of username:password
    identity_token: str = field(name="identitytoken", default="")
    registry_token: str = field(name="registrytoken", default="")

    def to_auth_config(self) -> v1.AuthConfig:
        username, password = self.username, self.password
        if self.auth and not username:
            try:
                username, _, password = base64.b64decode(self.auth).decode().partition(":")
            except (binascii.Error, ValueError):
                username = password = ""
        return v1.AuthConfig(
            username=username,
            password=password.rstrip("\x00"),
            identity_token=self.identity_token,
            registry_token=self.registry_token,
        )


class DockerConfig(Struct, frozen=True):
    auths: Mapping[str, RegistryCredentials] = {}


_config = msgspec.json.Decoder(DockerConfig)
_entries = msgspec.json.Decoder(dict[str, RegistryCredentials])


async def read_secrets(client: Client, pod: Pod) -> tuple[list[Secret], list[str]]:
    """The pod's image pull secrets, and the names of those that cannot be read.

    Those of its service account were added to the pod when it was created.
    """
    found, missing = [], []
    for reference in pod.spec.image_pull_secrets:
        try:
            found.append(await client.get(Secret, reference.name, pod.namespace))
        except APIError:
            missing.append(reference.name)
    return found, missing


def find_credentials(image: str, secrets: Iterable[Secret]) -> list[v1.AuthConfig]:
    """The credentials that apply to the image; those of the longest registry names first."""
    matching = [
        (registry, entry)
        for secret in secrets
        for registry, entry in parse_secret(secret).items()
        if matches_registry(image, registry)
    ]
    matching.sort(key=lambda each: len(each[0]), reverse=True)
    return [entry.to_auth_config() for _, entry in matching]


def parse_secret(secret: Secret) -> Mapping[str, RegistryCredentials]:
    """The credentials by registry; nothing if the secret has none or cannot be decoded."""
    try:
        if (text := secret.data.get(DOCKER_CONFIG_JSON)) is not None:
            return _config.decode(text).auths
        if (text := secret.data.get(DOCKER_CFG)) is not None:
            return _entries.decode(text)
    except (msgspec.MsgspecError, ValueError):
        pass
    return {}
