"""Secrets and ConfigMaps: keys that are valid file names, a size limit, and `immutable`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from volplane.api.core import ConfigMap, Secret
from volplane.api.errors import Causes, forbidden, invalid, required_value, too_long
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

MAX_SIZE = 1024 * 1024
IMMUTABLE_WHEN_SET = "field is immutable when `immutable` is set"
ACCOUNT_NAME = "kubernetes.io/service-account.name"
REDACTED = "<secret contents redacted>"

_REQUIRED_KEYS = {
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}


class SecretStrategy(Strategy[Secret]):
    def validate_create(self, call: ApiCall, obj: Secret) -> Causes:
        yield from _keys("data", obj.data)
        if _size(obj.data) > MAX_SIZE:
            yield too_long("data", MAX_SIZE)
        yield from _check_type(obj)

    def validate_update(self, call: ApiCall, old: Secret, new: Secret) -> Causes:
        yield from checks.immutable_field("type", new.type, old.type)
        yield from _check_immutable(old, new, ("data",))
        yield from self.validate_create(call, new)


class ConfigMapStrategy(Strategy[ConfigMap]):
    def validate_create(self, call: ApiCall, obj: ConfigMap) -> Causes:
        yield from _keys("data", obj.data)
        for key in obj.data.keys() & obj.binary_data.keys():
            yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
        yield from _keys("binaryData", obj.binary_data)
        if _size(obj.data) + _size(obj.binary_data) > MAX_SIZE:
            yield too_long("", MAX_SIZE)

    def validate_update(self, call: ApiCall, old: ConfigMap, new: ConfigMap) -> Causes:
        yield from _check_immutable(old, new, ("data", "binary_data"))
        yield from self.validate_create(call, new)


def _keys(path: str, data: Mapping[str, Any]) -> Causes:
    return [cause for key in data for cause in checks.config_key(f"{path}[{key}]", key)]


def _size(data: Mapping[str, str | bytes]) -> int:
    return sum(len(value.encode() if isinstance(value, str) else value) for value in data.values())


def _check_immutable(old: Any, new: Any, fields: tuple[str, ...]) -> Causes:
    if not old.immutable:
        return
    if not new.immutable:
        yield forbidden("immutable", IMMUTABLE_WHEN_SET)
    other = [name for name in fields if getattr(old, name) != getattr(new, name)]
    yield from [
        forbidden("binaryData" if name == "binary_data" else name, IMMUTABLE_WHEN_SET) for name in other
    ]


def _check_type(secret: Secret) -> Causes:
    if secret.type == "kubernetes.io/service-account-token":
        named = secret.metadata.annotations.get(ACCOUNT_NAME)
        return checks.present(f"metadata.annotations[{ACCOUNT_NAME}]", named)
    if secret.type == "kubernetes.io/basic-auth":
        wanted = ("username", "password")
        return [] if any(k in secret.data for k in wanted) else [required_value(f"data[{k}]") for k in wanted]
    causes = [
        required_value(f"data[{key}]")
        for key in _REQUIRED_KEYS.get(secret.type, ())
        if key not in secret.data
    ]
    if causes or not secret.type.startswith("kubernetes.io/docker"):
        return causes
    [key] = _REQUIRED_KEYS.get(secret.type, ("",))
    return _is_json(f"data[{key}]", secret.data.get(key, b"{}"))


def _is_json(path: str, content: bytes) -> Causes:
    try:
        if isinstance(json.loads(content), dict):
            return
        why = "json: cannot unmarshal into Go value of type map[string]interface {}"
    except ValueError as error:
        why = str(error)
    yield invalid(path, REDACTED, why)
