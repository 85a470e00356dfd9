"""Validate which parts of OpenAPI a schema uses and how it combines them; then compile its rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from volplane.api.errors import Cause, forbidden, invalid, not_supported, required_value
from volplane.apiserver.crd.cel_rules import InvalidRule, compile_rule
from volplane.apiserver.crd.definition.checks.rule_costs import RuleCosts, occurrences_below
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
    occurrences: int | None = 1  # how many values an object can have here, None if there is no limit
    apart: str = ""  # path of the enclosing list whose items cannot be matched with their old values

    def at(self, step: str, **changes: Any) -> SchemaPosition:
        return structs.replace(self, path=f"{self.path}.{step}", root=False, **changes)


class _RuleFindings(Struct):
    costs: RuleCosts
    causes: list[Cause] = []


def validate(schema: Schema, position: SchemaPosition, *, limit_rules: bool = True) -> list[Cause]:
    """Report errors in schemas first, then in rules; rules of an invalid schema are not compiled."""
    schema_causes: list[Cause] = []
    rules = _RuleFindings(RuleCosts(limit_rules))
    _node(schema, position, schema_causes, rules)
    return [*schema_causes, *rules.causes, *rules.costs.check_total(position.path)]


def _node(schema: Schema, position: SchemaPosition, schema_causes: list[Cause], rules: _RuleFindings) -> None:
    before = len(schema_causes)
    schema_causes += _limits(schema, position)
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        schema_causes.append(forbidden(f"{position.path}.uniqueItems", detail))
    _below(schema, position, schema_causes, rules)
    schema_causes += _preserve(schema, position.path)
    schema_causes += _map_type(schema, position.path)
    schema_causes += _list_type(schema, position.path)
    schema_causes += _rule_form(schema, position.path)
    if len(schema_causes) == before and position.rules:
        rules.causes += _rules(schema, position, rules.costs)


def _below(
    schema: Schema, position: SchemaPosition, schema_causes: list[Cause], rules: _RuleFindings
) -> None:
    position = structs.replace(position, occurrences=occurrences_below(schema, position.occurrences))
    others = schema.get("additionalProperties")
    properties = schema.get("properties", {})
    if others is not None:
        if properties and others is not True:
            detail = "additionalProperties and properties are mutual exclusive"
            schema_causes.append(forbidden(f"{position.path}.additionalProperties", detail))
        inner = additional_of(schema)
        if inner is not None:
            why = (
                "inside additionalProperties applying to object metadata"
                if position.meta
                else position.no_default
            )
            _node(inner, position.at("additionalProperties", no_default=why), schema_causes, rules)
    for name, inner in properties.items():
        _node(inner, _member(schema, position, name), schema_causes, rules)
    if schema.get("not") is not None:
        _node(schema["not"], position.at("not", rules=False), schema_causes, rules)
    for key in ("allOf", "oneOf", "anyOf"):
        for at, inner in enumerate(schema.get(key, ())):
            _node(inner, position.at(f"{key}[{at}]", rules=False), schema_causes, rules)
    item = items_of(schema)
    if item is not None:
        by_key = schema.get(LIST_TYPE) == "map"
        apart = position.apart or ("" if by_key else position.path)
        _node(item, position.at("items", apart=apart), schema_causes, rules)


def _member(schema: Schema, position: SchemaPosition, name: str) -> SchemaPosition:
    step = f"properties[{name}]"
    if not (position.root or schema.get(EMBEDDED)) or name not in TYPE_META:
        return position.at(step)
    why = f"in top-level {name}" if position.root else position.no_default
    return position.at(step, meta=True, no_default=why)


def _limits(schema: Schema, position: SchemaPosition) -> list[Cause]:
    path, causes = position.path, []
    type = schema.get("type", "")
    if type and type not in TYPES:
        causes.append(not_supported(f"{path}.type", type, TYPES))
    if schema.get("default") is not None and position.no_default:
        causes.append(forbidden(f"{path}.default", f"must not be set {position.no_default}"))
    causes += [
        forbidden(f"{path}.{key}", f"{key} is not supported") for key in _UNSUPPORTED if schema.get(key)
    ]
    if type == "null":
        detail = "type cannot be set to null, use nullable as an alternative"
        causes.append(forbidden(f"{path}.type", detail))
    if isinstance(schema.get("items"), list):
        causes.append(forbidden(f"{path}.items", "items must be a schema object and not an array"))
    if position.meta and schema.get(EMBEDDED):
        causes.append(forbidden(f"{path}.{EMBEDDED}", "must not be used inside of resource meta"))
    return causes


def _preserve(schema: Schema, path: str) -> list[Cause]:
    given = schema.get(PRESERVE)
    return [invalid(f"{path}.{PRESERVE}", False, "must be true or undefined")] if given is False else []


def _map_type(schema: Schema, path: str) -> list[Cause]:
    given = schema.get(MAP_TYPE)
    if given is None:
        return []
    causes = _type_causes(schema, path, "object", MAP_TYPE)
    if given not in ("atomic", "granular"):
        causes.append(not_supported(f"{path}.{MAP_TYPE}", given, ("atomic", "granular")))
    return causes


def _type_causes(schema: Schema, path: str, wanted: str, extension: str) -> list[Cause]:
    type, here = schema.get("type", ""), f"{path}.type"
    detail = f"must be {wanted} if {extension} is specified"
    if type == wanted:
        return []
    return [invalid(here, type, detail)] if type else [required_value(here, detail)]


# Lists


def _list_type(schema: Schema, path: str) -> list[Cause]:
    kind, keys, item = schema.get(LIST_TYPE), schema.get(LIST_KEYS, ()), items_of(schema)
    causes = []
    if kind is not None:
        causes += _type_causes(schema, path, "array", LIST_TYPE)
        if kind == "set" and item is not None and not causes:
            causes += _atomic_item(item, path)
        if kind not in ("atomic", "set", "map"):
            causes.append(not_supported(f"{path}.{LIST_TYPE}", kind, ("atomic", "set", "map")))
    if keys and kind != "map":
        here, detail = f"{path}.{LIST_TYPE}", f"must be map if {LIST_KEYS} is non-empty"
        causes.append(required_value(here, detail) if kind is None else invalid(here, kind, detail))
    if kind == "map":
        causes += _map_list(schema, keys, item, path)
    if kind in ("set", "map") and item is not None:
        causes += _item_key_causes(kind, keys, item, path)
    return causes


def _atomic_item(item: Schema, path: str) -> list[Cause]:
    detail = f"must be atomic as item of a list with {LIST_TYPE}=set"
    if item.get("type") == "array" and item.get(LIST_TYPE) not in (None, "atomic"):
        return [invalid(f"{path}.items.{LIST_TYPE}", item.get(LIST_TYPE), detail)]
    if item.get("type") == "object" and item.get(MAP_TYPE) != "atomic":
        return [invalid(f"{path}.items.{MAP_TYPE}", item.get(MAP_TYPE), detail)]
    return []


def _map_list(schema: Schema, keys: Any, item: Schema | None, path: str) -> list[Cause]:
    causes = []
    if not keys:
        causes.append(required_value(f"{path}.{LIST_KEYS}", f"must not be empty if {LIST_TYPE} is map"))
    if item is None:
        causes.append(required_value(f"{path}.items", f"must have a schema if {LIST_TYPE} is map"))
        return causes
    if item.get("type") != "object":
        detail = f"must be object if parent array's {LIST_TYPE} is map"
        return [*causes, invalid(f"{path}.items.type", item.get("type", ""), detail)]
    for at, key in enumerate(keys):
        known = item.get("properties", {}).get(key)
        if known is None:
            detail = "entries must all be names of item properties"
            causes.append(invalid(f"{path}.{LIST_KEYS}", list(keys), detail))
        elif known.get("type") in ("array", "object"):
            detail = f"must be a scalar type if parent array's {LIST_TYPE} is map"
            causes.append(invalid(f"{path}.items.properties[{key}].type", item.get("type"), detail))
        if key in keys[:at]:
            causes.append(invalid(f"{path}.{LIST_KEYS}", list(keys), "must not contain duplicate entries"))
    return causes


def _item_key_causes(kind: str, keys: Any, item: Schema, path: str) -> Iterator[Cause]:
    """The key of a list item must always be present."""
    if item.get("nullable"):
        detail = f"cannot be nullable when {LIST_TYPE} is {kind}"
        yield forbidden(f"{path}.items.nullable", detail)
    for key in keys if kind == "map" else ():
        known = item.get("properties", {}).get(key)
        if known is None:
            continue
        here, detail = f"{path}.items.properties[{key}]", f"this property is in {LIST_KEYS}, so it"
        if key not in item.get("required", ()) and known.get("default") is None:
            yield required_value(f"{here}.default", f"{detail} must have a default or be a required property")
        if known.get("nullable"):
            yield forbidden(f"{here}.nullable", f"{detail} cannot be nullable")


# Rules


def _rule_form(schema: Schema, path: str) -> Iterator[Cause]:
    for at, rule in enumerate(schema.get(VALIDATIONS, ())):
        yield from _one_rule(rule, schema, f"{path}.{VALIDATIONS}[{at}]")


def _one_rule(rule: Mapping[str, Any], schema: Schema, path: str) -> Iterator[Cause]:
    text, message = rule.get("rule", "").strip(), rule.get("message", "")
    if not text:
        yield required_value(f"{path}.rule", "rule is not specified")
    elif message and not message.strip():
        yield invalid(f"{path}.message", message, "must be non-empty if specified")
    elif _lines(message.strip()):
        yield invalid(f"{path}.message", message, "must not contain line breaks")
    elif _lines(text) and not message.strip():
        detail = "message must be specified if rule contains line breaks"
        yield required_value(f"{path}.message", detail)
    result = rule.get("messageExpression", "")
    if result and not result.strip():
        detail = "messageExpression must be non-empty if specified"
        yield required_value(f"{path}.messageExpression", detail)
    reason = rule.get("reason")
    if reason is not None and reason not in REASONS:
        yield not_supported(f"{path}.reason", reason, REASONS)
    yield from _field_path(rule.get("fieldPath", ""), schema, f"{path}.fieldPath")


def _lines(text: str) -> bool:
    return "\n" in text or "\r" in text


def _field_path(given: str, schema: Schema, path: str) -> Iterator[Cause]:
    if not given:
        return
    if not given.strip():
        yield invalid(path, given, "must be non-empty if specified")
    if _lines(given):
        yield invalid(path, given, "must not contain line breaks")
    try:
        follow(given, schema)
    except InvalidSchemaPath:
        yield invalid(path, given, "must be a valid path")


def _rules(schema: Schema, position: SchemaPosition, costs: RuleCosts) -> Iterator[Cause]:
    resource = position.root or bool(schema.get(EMBEDDED))
    for at, source in enumerate(schema.get(VALIDATIONS, ())):
        here = f"{position.path}.{VALIDATIONS}[{at}]"
        try:
            rule = compile_rule(source, schema, resource=resource)
        except InvalidRule as bad:
            yield invalid(f"{here}.{bad.part}", _format_rule(source), bad.words)
            continue
        yield from costs.check(source, schema, here, resource=resource, occurrences=position.occurrences)
        if rule.uses_old_self and position.apart:
            detail = (
                f"oldSelf cannot be used on the uncorrelatable portion of the schema within {position.apart}"
            )
            yield invalid(f"{here}.rule", source["rule"], detail)
        elif not rule.uses_old_self and source.get("optionalOldSelf") is not None:
            detail = "may not be set if oldSelf is not used in rule"
            yield invalid(f"{here}.optionalOldSelf", source["optionalOldSelf"], detail)


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
