"""What a CustomResourceDefinition means to clients: whether its kind is served, and in which versions."""

from __future__ import annotations

from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.meta import Resource


def is_established(definition: CustomResourceDefinition) -> bool:
    return any(c.type == "Established" and c.status == "True" for c in definition.status.conditions)


def api_versions(definition: CustomResourceDefinition) -> tuple[str, ...]:
    """The apiVersions of its objects; none while it is not established."""
    if not is_established(definition):
        return ()
    return tuple(f"{definition.spec.group}/{v.name}" for v in definition.spec.versions if v.served)


def metadata_type(definition: CustomResourceDefinition) -> type[Resource] | None:
    """A type for watching the metadata of its objects; all versions show the same objects.

    The stored version is preferred if it is served: it needs no conversion.
    """
    served = [v for v in definition.spec.versions if v.served]
    if not served or not is_established(definition):
        return None
    version = next((v for v in served if v.storage), served[0])
    spec, names = definition.spec, definition.status.accepted_names
    namespaced = spec.scope == "Namespaced"
    return kinds.define_metadata_only_type(
        spec.group, version.name, names.kind, names.plural, namespaced=namespaced
    )
