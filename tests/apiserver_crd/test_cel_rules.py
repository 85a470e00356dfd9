"""Validation rules in a schema: paths, old values, messages, ratcheting."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.apiserver.crd.cel_rules import InvalidRule, RuleCheck, compile_rules

Json = Any
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def with_rules(schema: Json, *rules: Json) -> Json:
    return {**schema, "x-kubernetes-validations": [{"rule": r} if isinstance(r, str) else r for r in rules]}


def obj(*rules: Json, **properties: Json) -> Json:
    return with_rules({"type": "object", "properties": properties}, *rules)


def rule_errors(schema: Json, new: Json, old: Json = None, warnings: list[str] | None = None) -> list[str]:
    check = RuleCheck(warnings.append if warnings is not None else None)
    return [str(cause) for cause in check.run(compile_rules(schema), new, old)]


def test_a_failed_rule_is_reported_at_its_path() -> None:
    schema = obj(spec=obj({"rule": "self.a != self.b", "message": "a and b differ"}, a=STRING, b=STRING))
    assert rule_errors(schema, {"spec": {"a": "x", "b": "y"}}) == []
    assert rule_errors(schema, {"spec": {"a": "x", "b": "x"}}) == ["spec: Invalid value: a and b differ"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": "self > 1"}, "n: Invalid value: 1: failed rule: self > 1"),
        ({"rule": "self > 1", "message": "more"}, "n: Invalid value: 1: more"),
        ({"rule": "self > 1", "messageExpression": "'not ' + string(self)"}, "n: Invalid value: 1: not 1"),
        (
            {"rule": "self > 1", "message": "more", "messageExpression": "string(1 / 0)"},
            "n: Invalid value: 1: more",
        ),
        ({"rule": "self > 1", "message": "more", "messageExpression": "''"}, "n: Invalid value: 1: more"),
        ({"rule": "self > 1", "message": "m", "reason": "FieldValueForbidden"}, "n: Forbidden: m"),
        ({"rule": "self > 1", "message": "m", "reason": "FieldValueRequired"}, "n: Required value: m"),
        ({"rule": "self > 1", "message": "m", "reason": "FieldValueDuplicate"}, "n: Duplicate value: 1"),
        (
            {"rule": "1 / (self - 1) > 0", "message": "m"},
            'n: Invalid value: "integer": division by zero evaluating rule: m',
        ),
    ],
)
def test_the_message_of_a_failed_rule(rule: Json, message: str) -> None:
    assert rule_errors(obj(n=with_rules(INTEGER, rule)), {"n": 1}) == [message]


def test_a_field_path_points_below_the_rule() -> None:
    rule = {"rule": "false", "message": "m", "fieldPath": ".a.b"}
    schema = obj(spec=obj(rule, a=obj(b=STRING)))
    assert rule_errors(schema, {"spec": {"a": {}}}) == ["spec.a.b: Invalid value: m"]
    labels = {"type": "object", "additionalProperties": STRING}
    schema = obj(spec=obj({**rule, "fieldPath": ".labels['x.y']"}, labels=labels))
    assert rule_errors(schema, {"spec": {}}) == ["spec.labels[x.y]: Invalid value: m"]


def test_rules_reach_items_and_values() -> None:
    positive = with_rules(INTEGER, {"rule": "self > 0", "message": "m"})
    schema = obj(
        list={"type": "array", "items": positive}, map={"type": "object", "additionalProperties": positive}
    )
    assert rule_errors(schema, {"list": [1, 0], "map": {"a": 0}}) == [
        "list[1]: Invalid value: 0: m",
        "map[a]: Invalid value: 0: m",
    ]


def test_rules_skip_nulls() -> None:
    assert rule_errors(obj(n=with_rules({**INTEGER, "nullable": True}, "self > 1")), {"n": None}) == []


def test_a_rule_at_the_root_sees_the_name() -> None:
    schema = obj({"rule": "self.metadata.name.startsWith('a') && self.kind == 'K'", "message": "m"})
    assert rule_errors(schema, {"kind": "K", "apiVersion": "g/v1", "metadata": {"name": "ab"}}) == []
    assert rule_errors(schema, {"kind": "K", "metadata": {"name": "b"}}) == ["<nil>: Invalid value: m"]


# Old values

IMMUTABLE = {"rule": "self == oldSelf", "message": "is immutable"}


def test_a_rule_with_old_self_runs_only_if_there_is_an_old_value() -> None:
    schema = obj(a=with_rules(STRING, IMMUTABLE))
    assert rule_errors(schema, {"a": "x"}) == []
    assert rule_errors(schema, {"a": "x"}, {}) == []
    assert rule_errors(schema, {"a": "x"}, {"a": "x"}) == []
    assert rule_errors(schema, {"a": "x"}, {"a": "y"}) == ['a: Invalid value: "x": is immutable']


def test_an_optional_old_value_lets_the_rule_run_always() -> None:
    rule = {
        "rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self == 0",
        "message": "m",
        "optionalOldSelf": True,
    }
    schema = obj(n=with_rules(INTEGER, rule))
    assert rule_errors(schema, {"n": 0}) == []
    assert rule_errors(schema, {"n": 1}) == ["n: Invalid value: 1: m"]
    assert rule_errors(schema, {"n": 1}, {"n": 0}) == []
    assert rule_errors(schema, {"n": 0}, {"n": 1}) == ["n: Invalid value: 0: m"]


def test_items_of_a_map_list_are_compared_by_key() -> None:
    item = {"type": "object", "properties": {"k": STRING, "v": with_rules(STRING, IMMUTABLE)}}
    schema = obj(
        list={
            "type": "array",
            "items": item,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
        }
    )
    old = {"list": [{"k": "1", "v": "a"}, {"k": "2", "v": "b"}]}
    assert (
        rule_errors(schema, {"list": [{"k": "2", "v": "b"}, {"k": "1", "v": "a"}, {"k": "3", "v": "c"}]}, old)
        == []
    )
    assert rule_errors(schema, {"list": [{"k": "2", "v": "x"}]}, old) == [
        'list[0].v: Invalid value: "x": is immutable'
    ]


# Ratcheting


def test_a_failed_rule_on_an_unchanged_value_is_a_warning() -> None:
    schema = obj(
        a=obj({"rule": "self.x > 1", "message": "m"}, x=INTEGER), b=with_rules(INTEGER, {"rule": "self > 1"})
    )
    old = {"a": {"x": 1}, "b": 1}
    warnings: list[str] = []
    assert rule_errors(schema, {"a": {"x": 1}, "b": 0}, old, warnings) == [
        "b: Invalid value: 0: failed rule: self > 1"
    ]
    assert warnings == ["a: Invalid value: m"]


def test_items_of_an_unchanged_list_are_not_checked_again() -> None:
    schema = obj(list={"type": "array", "items": with_rules(INTEGER, {"rule": "self > 1", "message": "m"})})
    assert rule_errors(schema, {"list": [1]}, {"list": [1]}) == []
    assert rule_errors(schema, {"list": [1, 2]}, {"list": [1]}) == ["list[0]: Invalid value: 1: m"]


def test_rules_with_old_self_also_run_on_unchanged_values() -> None:
    schema = obj(a=with_rules(STRING, {"rule": "self != oldSelf", "message": "must change"}))
    assert rule_errors(schema, {"a": "x"}, {"a": "x"}) == ['a: Invalid value: "x": must change']


# Limits and errors


def test_rules_that_exceed_the_cost_limit_end_the_check() -> None:
    slow = {"rule": "self.all(a, self.all(b, self.all(c, a <= b + c)))", "message": "slow"}
    schema = obj(list=with_rules({"type": "array", "items": INTEGER}, slow, "false"))
    [message] = rule_errors(schema, {"list": [1] * 100})
    assert message == (
        "list: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further "
        "validation rules will be run due to call cost exceeds limit for rule: slow"
    )


@pytest.mark.parametrize(
    ("rule", "part", "words"),
    [
        ({"rule": "self.x > 1"}, "rule", "compilation failed: ERROR: <input>:1:5: undefined field 'x'"),
        ({"rule": "1"}, "rule", "cel expression must evaluate to a bool"),
        (
            {"rule": "true", "messageExpression": "1"},
            "messageExpression",
            "messageExpression must evaluate to a string",
        ),
        (
            {"rule": "true", "messageExpression": "x"},
            "messageExpression",
            "messageExpression compilation failed: ERROR",
        ),
    ],
)
def test_rules_that_cannot_be_compiled(rule: Json, part: str, words: str) -> None:
    with pytest.raises(InvalidRule) as bad:
        compile_rules(obj(rule))
    assert bad.value.part == part
    assert bad.value.words.startswith(words)


def test_a_schema_without_rules_has_nothing_to_run() -> None:
    assert compile_rules({"type": "object", "properties": {"a": STRING}}) is None
