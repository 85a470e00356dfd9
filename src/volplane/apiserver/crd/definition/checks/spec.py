"""Validate the spec of a definition: group, names, versions, one storage version, a schema for each.

An unchanged spec is not validated again, so that stricter rules do not block updates. An established
definition keeps its kind and scope, because objects are stored under them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from volplane.api import name_validation
from volplane.api.apiextensions import CustomResourceColumnDefinition as Column
from volplane.api.apiextensions import CustomResourceConversion as Conversion
from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.apiextensions import CustomResourceDefinitionNames as Names
from volplane.api.apiextensions import CustomResourceDefinitionVersion as Version
from volplane.api.apiextensions import CustomResourceSubresources as Subresources
from volplane.api.apiextensions import SelectableField
from volplane.api.errors import (
    Cause,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required_value,
    too_many,
)
from volplane.apiserver.crd.definition.checks import defaults, openapi, structure
from volplane.apiserver.crd.definition.schemas import is_same_in_all_versions, schema_of, schemas_with_paths
from volplane.apiserver.crd.schema import Schema
from volplane.apiserver.crd.schema.paths import InvalidSchemaPath, follow

COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
MOST_SELECTABLE = 8
LONGEST_WARNING = 256
# The fields allowed at the root of a schema with the status subresource.
_AT_ROOT = (
    "Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum",
    "MaxLength", "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required",
    "Items", "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations",
)  # fmt: skip
_ROOT_KEYS = frozenset(
    {
        *(name[0].lower() + name[1:] for name in _AT_ROOT[:-2]),
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    }
)
_WEBHOOK_VERSIONS = ("v1", "v1beta1")


def validate(definition: Definition, old: Definition | None = None) -> list[Cause]:
    spec = definition.spec
    causes = _group(spec.group)
    causes += _one_of("spec.scope", spec.scope, ("Cluster", "Namespaced"))
    causes += _schemas(definition, old)
    causes += _versions(definition)
    for word, given in (
        ("plural", spec.names.plural),
        ("singular", spec.names.singular),
        ("kind", spec.names.kind),
        ("listKind", spec.names.list_kind),
    ):
        if not given:
            causes.append(required_value(f"spec.names.{word}"))
    causes += validate_names("spec.names", spec.names)
    causes += _conversion(spec.conversion)
    if spec.preserve_unknown_fields:
        instead = "set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        causes.append(invalid("spec.preserveUnknownFields", True, f"cannot set to true, {instead}"))
    return causes + stored_versions(definition)


def validate_change(old: Definition, new: Definition, *, established: bool) -> Iterator[Cause]:
    was, is_ = old.spec, new.spec
    if established:
        yield from _same("spec.scope", was.scope, is_.scope)
        yield from _same("spec.names.kind", was.names.kind, is_.names.kind)
    yield from _same("spec.group", was.group, is_.group)
    yield from _same("spec.names.plural", was.names.plural, is_.names.plural)


def _same(path: str, old: str, new: str) -> list[Cause]:
    return [] if old == new else [invalid(path, new, "field is immutable")]


def stored_versions(definition: Definition) -> list[Cause]:
    path, stored = "status.storedVersions", definition.status.stored_versions
    if not stored:
        return [invalid(path, [], "must have at least one stored version")]
    known = {v.name for v in definition.spec.versions}
    causes = [
        invalid(path, list(stored), f"must have the storage version {v.name}")
        for v in definition.spec.versions
        if v.storage and v.name not in stored
    ]
    for at, name in enumerate(stored):
        if name not in known:
            detail = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration ensures no data remains persisted in {name} and "
                f"removes {name} from status.storedVersions"
            )
            causes.append(invalid(f"{path}[{at}]", name, detail))
    return causes


def _group(group: str) -> list[Cause]:
    if not group:
        return [required_value("spec.group")]
    if detail := name_validation.subdomain_problems(group, False):
        return [invalid("spec.group", group, ",".join(detail))]
    if "." not in group:
        return [invalid("spec.group", group, "should be a domain with at least one dot")]
    return []


def _one_of(path: str, value: str, allowed: Iterable[str]) -> list[Cause]:
    if not value:
        return [required_value(path)]
    return [] if value in allowed else [not_supported(path, value, allowed)]


def validate_names(path: str, given: Names) -> Iterator[Cause]:
    for word, name in (("plural", given.plural), ("singular", given.singular)):
        if name and (detail := name_validation.dns_1035_problems(name)):
            yield invalid(f"{path}.{word}", name, ",".join(detail))
    for word, name in (("kind", given.kind), ("listKind", given.list_kind)):
        if name and (detail := name_validation.dns_1035_problems(name.lower())):
            words = f"may have mixed case, but should otherwise match: {','.join(detail)}"
            yield invalid(f"{path}.{word}", name, words)
    if given.kind and given.kind == given.list_kind:
        yield invalid(f"{path}.listKind", given.list_kind, "kind and listKind may not be the same")
    for word, several in (("shortNames", given.short_names), ("categories", given.categories)):
        for at, name in enumerate(several):
            if detail := name_validation.dns_1035_problems(name):
                yield invalid(f"{path}.{word}[{at}]", name, ",".join(detail))


# Versions


def _versions(definition: Definition) -> Iterator[Cause]:
    versions = definition.spec.versions
    once = {
        f: is_same_in_all_versions(definition, f)
        for f in ("subresources", "additional_printer_columns", "selectable_fields")
    }
    for at, version in enumerate(versions):
        here = f"spec.versions[{at}]"
        if detail := name_validation.dns_1035_problems(version.name):
            yield invalid(f"{here}.name", version.name, ",".join(detail))
        yield from _deprecation(f"{here}.deprecationWarning", version)
        for field, check in _PARTS.items():
            if not once[field]:
                yield from check(here, version)
    for field, check in _PARTS.items():
        if once[field]:
            yield from check("spec", versions[0])
    shown = _summarize_versions(versions)
    if len({v.name for v in versions}) != len(versions):
        yield invalid("spec.versions", shown, "must contain unique version names")
    if sum(v.storage for v in versions) != 1:
        words = "must have exactly one version marked as storage version"
        yield invalid("spec.versions", shown, words)


def _summarize_versions(versions: tuple[Version, ...]) -> Any:
    return [{"name": v.name, "served": v.served, "storage": v.storage} for v in versions]


def _deprecation(path: str, version: Version) -> Iterator[Cause]:
    text = version.deprecation_warning
    if text is None:
        return
    if not version.deprecated:
        yield invalid(path, text, "can only be set for deprecated versions")
        return
    if len(text.encode()) > LONGEST_WARNING:
        yield invalid(path, text, f"must be <= {LONGEST_WARNING} characters long")
    if not text:
        yield invalid(path, text, "must not be an empty string")
    odd = next((at for at, c in enumerate(text) if not c.isprintable()), None)
    if odd is not None:
        detail = "must only contain printable UTF-8 characters; non-printable character found at index"
        yield invalid(path, text, f"{detail} {odd}")


def _subresources(path: str, version: Version) -> list[Cause]:
    given: Subresources | None = version.subresources
    if given is None or given.scale is None:
        return []
    scale, here = given.scale, f"{path}.subresources.scale"
    causes = _json_path(f"{here}.specReplicasPath", scale.spec_replicas_path, (".spec.",))
    causes += _json_path(f"{here}.statusReplicasPath", scale.status_replicas_path, (".status.",))
    if scale.label_selector_path:
        causes += _json_path(f"{here}.labelSelectorPath", scale.label_selector_path, (".spec.", ".status."))
    return causes


def _json_path(path: str, given: str, below: tuple[str, ...]) -> list[Cause]:
    if not given:
        return [required_value(path)]
    if not given.startswith("."):
        return [invalid(path, given, "must be a simple json path starting with .")]
    if given.startswith(below):
        return []
    roots = " or ".join(root.rstrip(".") for root in below)
    either = "either " if len(below) > 1 else ""
    return [invalid(path, given, f"should be a json path under {either}{roots}")]


def _columns(path: str, version: Version) -> Iterator[Cause]:
    for at, column in enumerate(version.additional_printer_columns):
        yield from _column(f"{path}.additionalPrinterColumns[{at}]", column)


def _column(path: str, column: Column) -> list[Cause]:
    causes = [] if column.name else [required_value(f"{path}.name")]
    detail = f"must be one of {','.join(COLUMN_TYPES)}"
    if not column.type:
        causes.append(required_value(f"{path}.type", detail))
    elif column.type not in COLUMN_TYPES:
        causes.append(invalid(f"{path}.type", column.type, detail))
    if column.format and column.format not in COLUMN_FORMATS:
        words = f"must be one of {','.join(COLUMN_FORMATS)}"
        causes.append(invalid(f"{path}.format", column.format, words))
    here = f"{path}.JSONPath"
    if not column.json_path:
        causes.append(required_value(here))
    elif not column.json_path.startswith("."):
        causes.append(invalid(here, column.json_path, "must be a simple json path starting with ."))
    return causes


def _selectable(path: str, version: Version) -> Iterator[Cause]:
    fields, here = version.selectable_fields, f"{path}.selectableFields"
    schema = schema_of(version)
    if not fields or schema is None:
        return
    seen: set[str] = set()
    for at, field in enumerate(fields):
        yield from _selectable_field(f"{here}[{at}].jsonPath", field, schema, seen)
    if len(seen) > MOST_SELECTABLE:
        yield too_many(here, len(seen), MOST_SELECTABLE)


def _selectable_field(path: str, field: SelectableField, schema: Schema, seen: set[str]) -> Iterator[Cause]:
    given = field.json_path
    if not given:
        yield required_value(path)
        return
    try:
        shown, found = follow(given, schema, brackets=False)
    except InvalidSchemaPath as error:
        yield invalid(path, given, f"is an invalid path: {error}")
        return
    if shown.split(".")[0] == "metadata":
        yield invalid(path, given, "must not point to fields in metadata")
    if found is None or found.get("type") not in ("string", "boolean", "integer"):
        detail = (
            "must point to a field of type string, boolean or integer. Enum string fields and strings with "
            "formats are allowed."
        )
        yield invalid(path, given, detail)
    if shown in seen:
        yield duplicate(path, given)
    seen.add(shown)


_PARTS: Mapping[str, Any] = {
    "subresources": _subresources,
    "additional_printer_columns": _columns,
    "selectable_fields": _selectable,
}


# Schemas


def _schemas(definition: Definition, old: Definition | None) -> list[Cause]:
    before = {v.name: v.schema for v in old.spec.versions} if old is not None else {}
    causes = [
        required_value(f"spec.versions[{at}].schema.openAPIV3Schema")
        for at, version in enumerate(definition.spec.versions)
        if version.schema is None or version.schema.open_apiv3_schema is None
    ]
    for path, version, schema in schemas_with_paths(definition):
        if schema is not None:
            is_new = before.get(version.name) != version.schema
            here = f"{path}.openAPIV3Schema"
            causes += validate_schema(here, schema, status=_has_status(version), is_new=is_new)
    return causes


def _has_status(version: Version) -> bool:
    return version.subresources is not None and version.subresources.status is not None


def validate_schema(path: str, schema: Schema, *, status: bool = False, is_new: bool = True) -> list[Cause]:
    """A schema that is not new may have rules that cost more than is allowed now."""
    causes = _root(path, schema) if status else []
    if schema.get("nullable"):
        causes.append(forbidden(f"{path}.nullable", "nullable cannot be true at the root"))
    broken = structure.validate(schema, path) or list(defaults.validate(schema, path))
    causes += broken
    position = openapi.SchemaPosition(path, root=True, rules=not broken)
    return causes + openapi.validate(schema, position, limit_rules=is_new)


def _root(path: str, schema: Schema) -> list[Cause]:
    type = schema.get("type", "")
    if type and type != "object":
        detail = 'only "object" is allowed as the type at the root of the schema'
        return [invalid(f"{path}.type", type, f"{detail} if the status subresource is enabled")]
    if not schema.keys() <= _ROOT_KEYS:
        words = f"only [{' '.join(_AT_ROOT)}] fields are allowed at the root of the schema"
        return [invalid(path, schema, f"{words} if the status subresource is enabled")]
    return []


# Conversion


def _conversion(conversion: Conversion | None) -> list[Cause]:
    if conversion is None:
        return []
    causes = _one_of("spec.conversion.strategy", conversion.strategy, ("None", "Webhook"))
    here = "spec.conversion.webhookClientConfig"
    webhook = conversion.webhook
    if conversion.strategy != "Webhook":
        if webhook is not None:
            causes.append(forbidden(here, "should not be set when strategy is not set to Webhook"))
        return causes
    client = webhook.client_config if webhook is not None else None
    if client is None:
        causes.append(required_value(here, "required when strategy is set to Webhook"))
    elif (client.url is None) == (client.service is None):
        causes.append(required_value(here, "exactly one of url or service is required"))
    versions = webhook.conversion_review_versions if webhook is not None else ()
    path = "spec.conversion.conversionReviewVersions"
    if not versions:
        causes.append(required_value(path))
    elif not set(versions) & set(_WEBHOOK_VERSIONS):
        causes.append(
            invalid(path, list(versions), f"must include at least one of {', '.join(_WEBHOOK_VERSIONS)}")
        )
    # Conversion changes apiVersion only. A definition that needs more is refused before it can lose data.
    detail = "conversion by webhook is not available; versions that differ in apiVersion only can use None"
    return [*causes, forbidden("spec.conversion.strategy", detail)]
