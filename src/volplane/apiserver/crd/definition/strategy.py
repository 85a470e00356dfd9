"""The strategy of CustomResourceDefinitions.

A definition is stored even if its names conflict; its status shows the conflict. A finalizer keeps a deleted
definition until the registrar has removed its objects.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from volplane.api import name_validation
from volplane.api.apiextensions import CustomResourceConversion as Conversion
from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.errors import Cause, invalid
from volplane.apiserver.crd.definition import approval
from volplane.apiserver.crd.definition import names as naming_of
from volplane.apiserver.crd.definition.checks import spec as checks
from volplane.apiserver.crd.definition.conditions import (
    CLEANUP,
    TERMINATING,
    condition,
    is_established,
    storage_version,
    with_condition,
)
from volplane.apiserver.crd.definition.schemas import normalize_schemas, schema_of, walk_schemas
from volplane.apiserver.crd.schema import LIST_TYPE, formats, items_of
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.base import clock

PENDING = condition(
    TERMINATING,
    "True",
    "InstanceDeletionPending",
    "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
)


class DefinitionStrategy(Strategy[Definition]):
    def defaults(self, obj: Definition, old: Definition | None = None) -> Definition:
        obj = normalize_schemas(obj)
        names, spec = obj.spec.names, obj.spec
        names = structs.replace(
            names,
            singular=names.singular or names.kind.lower(),
            list_kind=names.list_kind or (f"{names.kind}List" if names.kind else ""),
        )
        conversion = spec.conversion or Conversion(strategy="None")
        return structs.replace(obj, spec=structs.replace(spec, names=names, conversion=conversion))

    # The server computes the status; clients can change it through /status only.

    async def admit_create(self, call: ApiCall, obj: Definition) -> Definition:
        others = await call.reader.list(Definition)
        return update_status(
            _add_stored_version(structs.replace(obj, status=type(obj.status)())),
            others,
            clock.stamp(call.now),
        )

    async def admit_update(self, call: ApiCall, old: Definition, new: Definition) -> Definition:
        if call.subresource:
            return new
        others = await call.reader.list(Definition)
        return update_status(
            _add_stored_version(structs.replace(new, status=old.status)), others, clock.stamp(call.now)
        )

    def prepare_create(self, call: ApiCall, obj: Definition) -> Definition:
        call.warnings.extend(_warnings(obj))
        return obj

    def prepare_update(self, call: ApiCall, old: Definition, new: Definition) -> Definition:
        known = set(_warnings(old))
        call.warnings.extend(text for text in _warnings(new) if text not in known)
        return new

    # Validation

    def validate_name(self, name: str, *, prefix: bool = False) -> list[str]:
        return name_validation.subdomain_problems(name, prefix)

    def validate_create(self, call: ApiCall, obj: Definition) -> list[Cause]:
        causes = _name_causes(obj) + checks.validate(obj)
        return causes + approval.validate(obj)

    def validate_update(self, call: ApiCall, old: Definition, new: Definition) -> list[Cause]:
        causes = checks.validate(new, old) if new.spec != old.spec else checks.stored_versions(new)
        causes += checks.validate_change(old, new, established=is_established(old))
        return causes + approval.validate(new, old)

    def validate_status(self, call: ApiCall, old: Definition, new: Definition) -> list[Cause]:
        return list(checks.validate_names("status.acceptedNames", new.status.accepted_names))

    # Deletion

    def mark_deleted(self, call: ApiCall, obj: Definition) -> Definition:
        meta = obj.metadata
        if CLEANUP in meta.finalizers:
            return obj
        meta = structs.replace(meta, finalizers=(*meta.finalizers, CLEANUP))
        return with_condition(structs.replace(obj, metadata=meta), PENDING, clock.stamp(call.now))

    def is_removable(self, obj: Definition) -> bool:
        """Deletion adds the finalizer first, so a definition is removable only after that."""
        return obj.is_deleting


def update_status(definition: Definition, others: Iterable[Definition], now: str) -> Definition:
    """Return the definition with the status that follows from it and from the other definitions."""
    definition = naming_of.accept_names(definition, others, now)
    verdict = approval.approval_condition(definition)
    return definition if verdict is None else with_condition(definition, verdict, now)


def _add_stored_version(definition: Definition) -> Definition:
    """Add the storage version to storedVersions, which keeps every version ever used for storage."""
    storage, status = storage_version(definition.spec.versions), definition.status
    if storage is None or storage.name in status.stored_versions:
        return definition
    stored = (*status.stored_versions, storage.name)
    return structs.replace(definition, status=structs.replace(status, stored_versions=stored))


def _name_causes(definition: Definition) -> list[Cause]:
    wanted = f"{definition.spec.names.plural}.{definition.spec.group}"
    if not definition.name or definition.name == wanted:
        return []
    detail = 'must be spec.names.plural+"."+spec.group'
    return [invalid("metadata.name", definition.name, detail)]


def _warnings(definition: Definition) -> list[str]:
    """Return warnings about valid settings that have no effect."""
    found: list[str] = []
    for version in definition.spec.versions:
        for schema in walk_schemas(schema_of(version)):
            format, item = schema.get("format"), items_of(schema)
            if format and not formats.is_known_format(schema.get("type", ""), format):
                found.append(f'unrecognized format "{format}"')
            if schema.get(LIST_TYPE) == "set" and item and item.get("type") in ("object", "array"):
                words = "is not supported by server-side apply or CEL validation rules"
                found.append(f'{LIST_TYPE}: set for items of type "{item["type"]}" {words}')
    return list(dict.fromkeys(found))
