"""A container's environment: from ConfigMaps, Secrets, the pod, and values that refer to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from volplane.api.core import ConfigMap, Container, EnvVar, EnvVarSource, Pod, Secret
from volplane.api.errors import APIError, NotFound
from volplane.client.client import Client
from volplane.node.pods.env_expansion import expand
from volplane.volumes import downward_fields

T = TypeVar("T", ConfigMap, Secret)


class ContainerConfigError(Exception):
    """The container's description is not valid; the text is shown to the user."""

    reason = "CreateContainerConfigError"  # of the waiting container


class ContainerCreateError(ContainerConfigError):
    """The description is valid, but this node cannot create the container."""

    reason = "CreateContainerError"


class Environment:
    """Reads each ConfigMap and Secret once per container."""

    def __init__(
        self, client: Client, pod: Pod, container: Container, allocatable: Mapping[str, str]
    ) -> None:
        self._client, self._pod, self._container = client, pod, container
        self._allocatable = allocatable
        self._configs: dict[str, ConfigMap | None] = {}
        self._secrets: dict[str, Secret | None] = {}

    async def build(self, cluster: Mapping[str, str]) -> dict[str, str]:
        """All variables.

        `cluster`: the API server's address. The container's own variables take precedence.
        """
        variables = dict(cluster)
        try:
            variables |= await self._from_sources()
            for variable in self._container.env:
                value = await self._value(variable, variables)
                if value is not None:
                    variables[variable.name] = value
        except downward_fields.UnknownField as error:
            raise ContainerConfigError(str(error)) from error
        except APIError as error:
            raise ContainerConfigError(error.message) from error
        return variables

    async def _from_sources(self) -> dict[str, str]:
        variables: dict[str, str] = {}
        for source in self._container.env_from:
            if (config := source.config_map_ref) is not None:
                found = await self._config(config.name, bool(config.optional))
                variables |= {source.prefix + k: v for k, v in (found.data if found else {}).items()}
            if (secret := source.secret_ref) is not None:
                secret_data = await self._secret(secret.name, bool(secret.optional))
                variables |= {
                    source.prefix + k: v.decode()
                    for k, v in (secret_data.data if secret_data else {}).items()
                }
        return variables

    async def _value(self, variable: EnvVar, variables: Mapping[str, str]) -> str | None:
        if variable.value_from is None:
            return expand(variable.value, variables)
        return await self._resolve_source(variable.value_from)

    async def _resolve_source(self, source: EnvVarSource) -> str | None:
        if source.field_ref is not None:
            return downward_fields.read_field(self._pod, source.field_ref.field_path)
        if source.resource_field_ref is not None:
            ref = source.resource_field_ref
            return downward_fields.read_resource(
                self._pod, ref, self._allocatable, default=self._container.name
            )
        if (config_ref := source.config_map_key_ref) is not None:
            config = await self._config(config_ref.name, bool(config_ref.optional))
            data = config.data if config is not None else {}
            return self._key(data, config_ref.key, bool(config_ref.optional), "ConfigMap", config_ref.name)
        if (secret_ref := source.secret_key_ref) is not None:
            secret = await self._secret(secret_ref.name, bool(secret_ref.optional))
            secret_data = {k: v.decode() for k, v in secret.data.items()} if secret is not None else {}
            return self._key(
                secret_data, secret_ref.key, bool(secret_ref.optional), "Secret", secret_ref.name
            )
        return ""

    def _key(self, data: Mapping[str, str], key: str, optional: bool, kind: str, name: str) -> str | None:
        if key in data or optional:
            return data.get(key)
        raise ContainerConfigError(f"couldn't find key {key} in {kind} {self._pod.namespace}/{name}")

    async def _config(self, name: str, optional: bool) -> ConfigMap | None:
        if name not in self._configs:
            self._configs[name] = await self._find(ConfigMap, name, optional)
        return self._configs[name]

    async def _secret(self, name: str, optional: bool) -> Secret | None:
        if name not in self._secrets:
            self._secrets[name] = await self._find(Secret, name, optional)
        return self._secrets[name]

    async def _find(self, kind: type[T], name: str, optional: bool) -> T | None:
        try:
            return await self._client.get(kind, name, self._pod.namespace)
        except NotFound:
            if optional:
                return None
            raise
