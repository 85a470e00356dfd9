"""Turn a definition into one kind and one strategy per served version.

The result depends on the stored definition only, so that all servers on one store serve the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.apiextensions import CustomResourceDefinitionVersion as Version
from volplane.api.kind import Kind, SelectableValue, Subresource
from volplane.api.kinds import SCALE, STATUS
from volplane.apiserver.crd.custom.coercion import Coercion
from volplane.apiserver.crd.custom.strategy import CustomStrategy
from volplane.apiserver.crd.definition.conditions import is_established, is_terminating, storage_version
from volplane.apiserver.crd.definition.schemas import schema_of
from volplane.apiserver.version_priority import version_sort_key

BUILT_IN = frozenset(kind.resource for kind in kinds.ALL)


def overlaps_built_in(definition: Definition) -> bool:
    """Return whether its objects would be stored among those of a built-in kind."""
    return f"{definition.spec.names.plural}.{definition.spec.group}" in BUILT_IN


def served_strategies(definition: Definition) -> Iterator[CustomStrategy]:
    """Yield the strategy of each served version; none before the definition is established."""
    storage = storage_version(definition.spec.versions)
    if not is_established(definition) or storage is None or overlaps_built_in(definition):
        return
    stored = schema_of(storage)
    for version in definition.spec.versions:
        if version.served:
            schema = stored if version is storage else schema_of(version)
            api_version = f"{definition.spec.group}/{version.name}"
            coercion = Coercion(api_version, definition.status.accepted_names.kind, schema, stored)
            kind = kind_of(definition, version, coercion)
            result = CustomStrategy(kind, version, coercion, warnings(definition, version))
            result.terminating = is_terminating(definition)
            yield result


def kind_of(definition: Definition, version: Version, coercion: Coercion) -> Kind:
    names = definition.status.accepted_names
    return Kind(
        None,
        definition.spec.group,
        version.name,
        names.kind,
        names.plural,
        namespaced=definition.spec.scope == "Namespaced",
        short_names=names.short_names,
        categories=names.categories,
        subresources=tuple(_subresources(version)),
        singular_name=names.singular,
        list_kind_name=names.list_kind,
        prune=coercion.clean,
        unconditional_update=False,
        status_metadata=False,
        generation="counted",
        qualified_finalizers=False,
        selectable=_selectable(definition, version),
        legacy_field_errors=True,
    )


def _selectable(definition: Definition, version: Version) -> Mapping[str, SelectableValue]:
    always = ("metadata.name", "metadata.namespace")[: 1 + (definition.spec.scope == "Namespaced")]
    declared = (field.json_path.removeprefix(".") for field in version.selectable_fields)
    return {path: SelectableValue(path) for path in (*always, *declared)}


def _subresources(version: Version) -> Iterator[Subresource]:
    subresources = version.subresources
    if subresources is not None and subresources.scale is not None:
        yield SCALE
    if subresources is not None and subresources.status is not None:
        yield STATUS


def warnings(definition: Definition, version: Version) -> tuple[str, ...]:
    """Return the warning that responses of a deprecated version carry."""
    if not version.deprecated:
        return ()
    if version.deprecation_warning is not None:
        return (version.deprecation_warning,)
    group, kind = definition.spec.group, definition.spec.names.kind
    message = f"{group}/{version.name} {kind} is deprecated"
    newer = [
        v.name
        for v in definition.spec.versions
        if v.served and not v.deprecated and version_sort_key(v.name) < version_sort_key(version.name)
    ]
    best = min(newer, key=version_sort_key, default="")
    return (f"{message}; use {group}/{best} {kind}" if best else message,)
