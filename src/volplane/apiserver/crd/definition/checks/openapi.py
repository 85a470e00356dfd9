"""Validate which parts of OpenAPI a schema uses and how it combines them; then compile its rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from volplane.api.errors import Cause, forbidden, invalid, not_supported, required_value
from volplane.apiserver.crd.cel_rules import InvalidRule, compile_rule
from volplane.apiserver.crd.schema import (
    EMBEDDED,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    PRESERVE,
    TYPE_META,
    VALIDATIONS,
    Schema,
    additional_of,
    items_of,
)
from volplane.apiserver.crd.schema.paths import InvalidSchemaPath, follow

TYPES = ("array", "boolean", "integer", "number", "object", "string")
REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_UNSUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")


class SchemaPosition(Struct, frozen=True):
    """The position of a schema in a definition, and what follows from it."""

    path: str
    root: bool = False
    rules: bool = True  # compile rules: the surrounding schemas are valid
    meta: bool = False  # inside a resource's own metadata
    no_default: str = ""  # why a default is not allowed here
    apart: str = ""  # path of the enclosing list whose items cannot be matched with their old values

    def at(self, step: str, **changes: Any) -> SchemaPosition:
        return structs.replace(self, path=f"{self.path}.{step}", root=False, **changes)


def validate(schema: Schema, place: SchemaPosition) -> list[Cause]:
    """Report errors in schemas first, then in rules; rules of an invalid schema are not compiled."""
    broken: list[Cause] = []
    rules: list[Cause] = []
    _node(schema, place, broken, rules)
    return broken + rules


def _node(schema: Schema, place: SchemaPosition, broken: list[Cause], rules: list[Cause]) -> None:
    before = len(broken)
    broken += _limits(schema, place)
    if schema.get("uniqueItems"):
        told = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        broken.append(forbidden(f"{place.path}.uniqueItems", told))
    _below(schema, place, broken, rules)
    broken += _preserve(schema, place.path)
    broken += _map_type(schema, place.path)
    broken += _list_type(schema, place.path)
    broken += _rule_form(schema, place.path)
    if len(broken) == before and place.rules:
        rules += _rules(schema, place)


def _below(schema: Schema, place: SchemaPosition, broken: list[Cause], rules: list[Cause]) -> None:
    others = schema.get("additionalProperties")
    properties = schema.get("properties", {})
    if others is not None:
        if properties and others is not True:
            told = "additionalProperties and properties are mutual exclusive"
            broken.append(forbidden(f"{place.path}.additionalProperties", told))
        inner = additional_of(schema)
        if inner is not None:
            why = (
                "inside additionalProperties applying to object metadata" if place.meta else place.no_default
            )
            _node(inner, place.at("additionalProperties", no_default=why), broken, rules)
    for name, inner in properties.items():
        _node(inner, _member(schema, place, name), broken, rules)
    if schema.get("not") is not None:
        _node(schema["not"], place.at("not", rules=False), broken, rules)
    for key in ("allOf", "oneOf", "anyOf"):
        for at, inner in enumerate(schema.get(key, ())):
            _node(inner, place.at(f"{key}[{at}]", rules=False), broken, rules)
    item = items_of(schema)
    if item is not None:
        by_key = schema.get(LIST_TYPE) == "map"
        apart = place.apart or ("" if by_key else place.path)
        _node(item, place.at("items", apart=apart), broken, rules)


def _member(schema: Schema, place: SchemaPosition, name: str) -> SchemaPosition:
    step = f"properties[{name}]"
    if not (place.root or schema.get(EMBEDDED)) or name not in TYPE_META:
        return place.at(step)
    why = f"in top-level {name}" if place.root else place.no_default
    return place.at(step, meta=True, no_default=why)


def _limits(schema: Schema, place: SchemaPosition) -> list[Cause]:
    path, wrong = place.path, []
    type = schema.get("type", "")
    if type and type not in TYPES:
        wrong.append(not_supported(f"{path}.type", type, TYPES))
    if schema.get("default") is not None and place.no_default:
        wrong.append(forbidden(f"{path}.default", f"must not be set {place.no_default}"))
    wrong += [
        forbidden(f"{path}.{key}", f"{key} is not supported") for key in _UNSUPPORTED if schema.get(key)
    ]
    if type == "null":
        told = "type cannot be set to null, use nullable as an alternative"
        wrong.append(forbidden(f"{path}.type", told))
    if isinstance(schema.get("items"), list):
        wrong.append(forbidden(f"{path}.items", "items must be a schema object and not an array"))
    if place.meta and schema.get(EMBEDDED):
        wrong.append(forbidden(f"{path}.{EMBEDDED}", "must not be used inside of resource meta"))
    return wrong


def _preserve(schema: Schema, path: str) -> list[Cause]:
    given = schema.get(PRESERVE)
    return [invalid(f"{path}.{PRESERVE}", False, "must be true or undefined")] if given is False else []


def _map_type(schema: Schema, path: str) -> list[Cause]:
    given = schema.get(MAP_TYPE)
    if given is None:
        return []
    wrong = _type_causes(schema, path, "object", MAP_TYPE)
    if given not in ("atomic", "granular"):
        wrong.append(not_supported(f"{path}.{MAP_TYPE}", given, ("atomic", "granular")))
    return wrong


def _type_causes(schema: Schema, path: str, wanted: str, extension: str) -> list[Cause]:
    type, here = schema.get("type", ""), f"{path}.type"
    told = f"must be {wanted} if {extension} is specified"
    if type == wanted:
        return []
    return [invalid(here, type, told)] if type else [required_value(here, told)]


# Lists


def _list_type(schema: Schema, path: str) -> list[Cause]:
    kind, keys, item = schema.get(LIST_TYPE), schema.get(LIST_KEYS, ()), items_of(schema)
    wrong = []
    if kind is not None:
        wrong += _type_causes(schema, path, "array", LIST_TYPE)
        if kind == "set" and item is not None and not wrong:
            wrong += _atomic_item(item, path)
        if kind not in ("atomic", "set", "map"):
            wrong.append(not_supported(f"{path}.{LIST_TYPE}", kind, ("atomic", "set", "map")))
    if keys and kind != "map":
        here, told = f"{path}.{LIST_TYPE}", f"must be map if {LIST_KEYS} is non-empty"
        wrong.append(required_value(here, told) if kind is None else invalid(here, kind, told))
    if kind == "map":
        wrong += _map_list(schema, keys, item, path)
    if kind in ("set", "map") and item is not None:
        wrong += _item_key_causes(kind, keys, item, path)
    return wrong


def _atomic_item(item: Schema, path: str) -> list[Cause]:
    told = f"must be atomic as item of a list with {LIST_TYPE}=set"
    if item.get("type") == "array" and item.get(LIST_TYPE) not in (None, "atomic"):
        return [invalid(f"{path}.items.{LIST_TYPE}", item.get(LIST_TYPE), told)]
    if item.get("type") == "object" and item.get(MAP_TYPE) != "atomic":
        return [invalid(f"{path}.items.{MAP_TYPE}", item.get(MAP_TYPE), told)]
    return []


def _map_list(schema: Schema, keys: Any, item: Schema | None, path: str) -> list[Cause]:
    wrong = []
    if not keys:
        wrong.append(required_value(f"{path}.{LIST_KEYS}", f"must not be empty if {LIST_TYPE} is map"))
    if item is None:
        wrong.append(required_value(f"{path}.items", f"must have a schema if {LIST_TYPE} is map"))
        return wrong
    if item.get("type") != "object":
        told = f"must be object if parent array's {LIST_TYPE} is map"
        return [*wrong, invalid(f"{path}.items.type", item.get("type", ""), told)]
    for at, key in enumerate(keys):
        known = item.get("properties", {}).get(key)
        if known is None:
            told = "entries must all be names of item properties"
            wrong.append(invalid(f"{path}.{LIST_KEYS}", list(keys), told))
        elif known.get("type") in ("array", "object"):
            told = f"must be a scalar type if parent array's {LIST_TYPE} is map"
            wrong.append(invalid(f"{path}.items.properties[{key}].type", item.get("type"), told))
        if key in keys[:at]:
            wrong.append(invalid(f"{path}.{LIST_KEYS}", list(keys), "must not contain duplicate entries"))
    return wrong


def _item_key_causes(kind: str, keys: Any, item: Schema, path: str) -> list[Cause]:
    """The key of a list item must always be present."""
    wrong = []
    if item.get("nullable"):
        told = f"cannot be nullable when {LIST_TYPE} is {kind}"
        wrong.append(forbidden(f"{path}.items.nullable", told))
    for key in keys if kind == "map" else ():
        known = item.get("properties", {}).get(key)
        if known is None:
            continue
        here, told = f"{path}.items.properties[{key}]", f"this property is in {LIST_KEYS}, so it"
        if key not in item.get("required", ()) and known.get("default") is None:
            wrong.append(
                required_value(f"{here}.default", f"{told} must have a default or be a required property")
            )
        if known.get("nullable"):
            wrong.append(forbidden(f"{here}.nullable", f"{told} cannot be nullable"))
    return wrong


# Rules


def _rule_form(schema: Schema, path: str) -> list[Cause]:
    wrong = []
    for at, rule in enumerate(schema.get(VALIDATIONS, ())):
        wrong += _one_rule(rule, schema, f"{path}.{VALIDATIONS}[{at}]")
    return wrong


def _one_rule(rule: Mapping[str, Any], schema: Schema, path: str) -> list[Cause]:
    wrong = []
    text, message = rule.get("rule", "").strip(), rule.get("message", "")
    if not text:
        wrong.append(required_value(f"{path}.rule", "rule is not specified"))
    elif message and not message.strip():
        wrong.append(invalid(f"{path}.message", message, "must be non-empty if specified"))
    elif _lines(message.strip()):
        wrong.append(invalid(f"{path}.message", message, "must not contain line breaks"))
    elif _lines(text) and not message.strip():
        told = "message must be specified if rule contains line breaks"
        wrong.append(required_value(f"{path}.message", told))
    made = rule.get("messageExpression", "")
    if made and not made.strip():
        told = "messageExpression must be non-empty if specified"
        wrong.append(required_value(f"{path}.messageExpression", told))
    reason = rule.get("reason")
    if reason is not None and reason not in REASONS:
        wrong.append(not_supported(f"{path}.reason", reason, REASONS))
    return wrong + _field_path(rule.get("fieldPath", ""), schema, f"{path}.fieldPath")


def _lines(text: str) -> bool:
    return "\n" in text or "\r" in text


def _field_path(given: str, schema: Schema, path: str) -> list[Cause]:
    if not given:
        return []
    wrong = []
    if not given.strip():
        wrong.append(invalid(path, given, "must be non-empty if specified"))
    if _lines(given):
        wrong.append(invalid(path, given, "must not contain line breaks"))
    try:
        follow(given, schema)
    except InvalidSchemaPath:
        wrong.append(invalid(path, given, "must be a valid path"))
    return wrong


def _rules(schema: Schema, place: SchemaPosition) -> list[Cause]:
    wrong = []
    resource = place.root or bool(schema.get(EMBEDDED))
    for at, source in enumerate(schema.get(VALIDATIONS, ())):
        here = f"{place.path}.{VALIDATIONS}[{at}]"
        try:
            rule = compile_rule(source, schema, resource=resource)
        except InvalidRule as bad:
            wrong.append(invalid(f"{here}.{bad.part}", _format_rule(source), bad.words))
            continue
        if rule.uses_old_self and place.apart:
            told = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {place.apart}"
            wrong.append(invalid(f"{here}.rule", source["rule"], told))
        elif not rule.uses_old_self and source.get("optionalOldSelf") is not None:
            told = "may not be set if oldSelf is not used in rule"
            wrong.append(invalid(f"{here}.optionalOldSelf", source["optionalOldSelf"], told))
    return wrong


def _format_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Format a rule as upstream prints it."""
    return {
        "Rule": rule.get("rule", ""),
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
