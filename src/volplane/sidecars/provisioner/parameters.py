"""The parameters of a StorageClass that are not for the driver: file system and secrets.

Keys with the prefix `csi.storage.k8s.io/` are removed before the driver is called, and unknown ones are an
error. The old keys without the prefix are still read, and also passed to the driver, as upstream does.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from volplane.api import names
from volplane.api.core import PersistentVolumeClaim, SecretReference
from volplane.rules.templates import InvalidTemplate, resolve

__all__ = [
    "BadParameters",
    "InvalidTemplate",
    "SecretParameterKeys",
    "driver_parameters",
    "fs_type",
    "secret_reference",
]

PREFIX = "csi.storage.k8s.io/"
FS_TYPE = PREFIX + "fstype"


class BadParameters(ValueError):
    """The parameters of the class are invalid."""


class SecretParameterKeys(Struct, frozen=True):
    """The keys of the parameters that name a secret."""

    kind: str
    old: str = ""  # old key without the prefix; Name or Namespace is appended

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.kind}secret-name"

    @property
    def namespace(self) -> str:
        return f"{PREFIX}{self.kind}secret-namespace"

    def spellings(self, part: str) -> list[str]:
        return [f"{PREFIX}{self.kind}secret-{part.lower()}", *([f"{self.old}{part}"] if self.old else [])]


PROVISIONER = SecretParameterKeys("provisioner-", "csiProvisionerSecret")
CONTROLLER_PUBLISH = SecretParameterKeys("controller-publish-", "csiControllerPublishSecret")
NODE_STAGE = SecretParameterKeys("node-stage-", "csiNodeStageSecret")
NODE_PUBLISH = SecretParameterKeys("node-publish-", "csiNodePublishSecret")
CONTROLLER_EXPAND = SecretParameterKeys("controller-expand-")
NODE_EXPAND = SecretParameterKeys("node-expand-")
CONTROLLER_MODIFY = SecretParameterKeys("controller-modify-")
ANY = SecretParameterKeys("")  # for all operations without keys of their own

_SECRETS = (
    PROVISIONER,
    CONTROLLER_PUBLISH,
    NODE_STAGE,
    NODE_PUBLISH,
    CONTROLLER_EXPAND,
    NODE_EXPAND,
    CONTROLLER_MODIFY,
    ANY,
)
_KNOWN = {FS_TYPE} | {key for s in _SECRETS for key in (s.name, s.namespace)}


def fs_type(parameters: Mapping[str, str], default: str = "") -> str:
    found = [value for key, value in parameters.items() if key == FS_TYPE or key.lower() == "fstype"]
    if len(found) > 1:
        raise BadParameters(f'fstype specified in parameters with both "fstype" and "{FS_TYPE}" keys')
    return (found[0] if found else "") or default


def driver_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters that are passed to the driver."""
    for key in parameters:
        if key.startswith(PREFIX) and key not in _KNOWN:
            raise BadParameters(f'found unknown parameter key "{key}" with reserved namespace {PREFIX}')
    return {key: value for key, value in parameters.items() if key not in _KNOWN}


def secret_reference(
    keys: SecretParameterKeys, parameters: Mapping[str, str], volume: str, claim: PersistentVolumeClaim | None
) -> SecretReference | None:
    """The secret that an operation on this volume uses, None if the class names none."""
    templates = _templates(keys, parameters) or _templates(ANY, parameters)
    if templates is None:
        return None
    name_template, namespace_template = templates
    tokens = {"pv.name": volume}
    if claim is not None:
        tokens["pvc.namespace"] = claim.namespace
    namespace = resolve(namespace_template, tokens)
    if not names.is_label(namespace):
        raise InvalidTemplate(
            f'"{namespace_template}" resolved to "{namespace}" which is not a valid namespace name'
        )
    if claim is not None:
        tokens["pvc.name"] = claim.name
        tokens |= {f"pvc.annotations['{k}']": v for k, v in claim.metadata.annotations.items()}
    name = resolve(name_template, tokens)
    if not names.is_subdomain(name):
        raise InvalidTemplate(f'"{name_template}" resolved to "{name}" which is not a valid secret name')
    return SecretReference(name=name, namespace=namespace)


def _templates(keys: SecretParameterKeys, parameters: Mapping[str, str]) -> tuple[str, str] | None:
    name, namespace = (_single_value(keys.spellings(part), parameters) for part in ("Name", "Namespace"))
    if name is None and namespace is None:
        return None
    if not name or not namespace:
        raise BadParameters(f"{keys.name} and {keys.namespace} must both be set, and not be empty")
    return name, namespace


def _single_value(spellings: list[str], parameters: Mapping[str, str]) -> str | None:
    given = [key for key in spellings if key in parameters]
    if len(given) > 1:
        raise BadParameters(f"{' and '.join(given)} mean the same: set only one of them")
    return parameters[given[0]] if given else None
