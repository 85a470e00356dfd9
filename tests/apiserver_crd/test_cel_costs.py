"""What rules can cost at most, and the limits of it. The numbers in the table are of upstream's estimator."""

from __future__ import annotations

import re
from typing import Any

import pytest

from volplane.apiserver.crd import cel
from volplane.apiserver.crd.cel.declared_sizes import declared_size
from volplane.apiserver.crd.cel.schema_types import type_of
from volplane.apiserver.crd.definition.checks.spec import validate_schema

Json = Any
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
SHORT = {"type": "string", "maxLength": 10}
ADVICE = (
    "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and "
    "strings are declared)"
)


def objects(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def lists(items: Json, most: int | None = None) -> Json:
    return {"type": "array", "items": items, **({} if most is None else {"maxItems": most})}


def maps(values: Json, most: int | None = None) -> Json:
    limit = {} if most is None else {"maxProperties": most}
    return {"type": "object", "additionalProperties": values, **limit}


def with_rule(schema: Json, *rules: str, message: str = "") -> Json:
    more = {"messageExpression": message} if message else {}
    return {**schema, "x-kubernetes-validations": [{"rule": rule, **more} for rule in rules]}


SPEC = objects(
    s=STRING, t=SHORT, e={"type": "string", "enum": ["a", "bcd"]}, i=INTEGER, b={"type": "boolean"},
    ios={"x-kubernetes-int-or-string": True},
    l=lists(STRING), l5=lists(SHORT, 5), li=lists(INTEGER, 20), m=maps(STRING), m7=maps(SHORT, 7),
    o=lists(objects(name=SHORT, inn=lists(SHORT, 4), k=lists(objects(q=STRING, tags=lists(SHORT, 6)), 3)), 8),
    emb={"type": "object", "x-kubernetes-embedded-resource": True,
         "x-kubernetes-preserve-unknown-fields": True},
)  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "cost"),
    [
        ("self.s == self.t", 8),
        ("self.i == 1", 2),
        ("has(self.s) && self.s.size() > 3", 5),
        ("self.s.contains(self.t)", 1_258_296),
        ("self.t.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')", 37),
        ("self.s + self.t == 'x'", 314_582),
        ("'a' in self.l", 1_048_577),
        ("self.t in ['a','b','c']", 15),
        ("self.m7[self.t] == self.s", 11),
        ("self.l.all(x, x == 'a')", 5_242_878),
        ("self.l5.exists_one(x, x == self.t)", 49),
        ("self.l5.map(x, x.size() > 3, x + x).exists(y, y == 'abc')", 164),
        ("self.l5.filter(x, x.startsWith('a')).all(y, y.endsWith('b'))", 114),
        ("self.m.all(k, self.m[k].startsWith('x'))", 3_145_723),
        ("self.o.all(x, self.o.all(y, x.name == y.name))", 755),
        ("self.o.all(x, x.inn.all(y, y == x.name))", 3_251),
        ("self.o.all(x, x.k.all(z, z.tags.all(t, t.startsWith(x.name) || t == z.q)))", 17_112_751_411),
        ("self.o.map(x, x.name).all(n, n.startsWith('a'))", 166),
        ("(self.b ? 'abc' : self.t) == self.e", 7),
        ("['a','bb','ccc'].all(x, self.s.startsWith(x))", 29),
        ("{'a':'xyz','b':'q'}['a'] == self.t", 34),
        ("self.l5.isSorted()", 27),
        ("self.t.replace('a', 'bcd') == 'x'", 11),
        ("self.t.split(',', 2).size() == 2", 12),
        ("self.l5.join(',') == 'a'", 24),
        ("self.t.findAll('[a-z]+', 3).all(x, x == 'a')", 173),
        ("url(self.t) == url(self.s)", 629_154),
        ("ip(self.t) != ip(self.s)", 1_844_674_407_371_269_845),
        ("cidr(self.t).containsIP(self.s)", 314_585),
        ("cidr(self.t).containsCIDR('10.0.0.0/8')", 14),
        ("quantity(self.t).isLessThan(quantity('1Gi'))", 8),
        ("format.dns1123Label().validate(self.t).hasValue()", 132),
        ("bytes(self.t) == b'abc'", 7),
        ("string(self.ios) == 'a'", 314_576),
        ("dyn(self.l5).all(x, x == 'a')", 24),
        ("self.?s.orValue('a') == 'b'", 4),
        ("self.?s.optMap(v, v.size() > 3).orValue(true)", 21),
        ("self.l5.all(x, self.l5.exists_one(y, x == y))", 238),
        ("self.emb.metadata.name.startsWith('abc') && self.emb.apiVersion == 'v1'", 9),
        ("self.li.all(a, self.li.all(b, self.li.all(c, a + b > c)))", 66_523),
    ],
)
def test_costs_are_estimated_as_upstream(rule: str, cost: int) -> None:
    self_type, size = type_of(SPEC), declared_size(SPEC)
    assert self_type is not None
    assert size is not None
    assert cel.estimate_cost(rule, {"self": self_type}, size) == cost


def causes(schema: Json, **more: bool) -> list[str]:
    return [str(cause) for cause in validate_schema("s", schema, **more)]


def test_a_rule_that_may_cost_too_much_is_refused() -> None:
    nested = lists(lists(lists(INTEGER)))
    rule = "self.all(x, x.all(y, y.all(z, z > 1)))"
    path = "s.properties[spec].x-kubernetes-validations[0].rule: Forbidden"
    too_much = f"exceeds budget by factor of more than 100x {ADVICE}"
    total = "estimated rule cost total for entire OpenAPIv3 schema"
    assert causes(objects(spec=with_rule(nested, rule))) == [
        f"{path}: estimated rule cost {too_much}",
        f"{path}: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
        f"s: Forbidden: x-kubernetes-validations {total} {too_much}",
    ]
    limited = lists(lists(lists(INTEGER, 10), 10), 10)
    assert causes(objects(spec=with_rule(limited, rule))) == []


@pytest.mark.parametrize(
    ("most", "factors"),
    [
        (31, []),
        (32, ["1.006640x"]),
        (48, ["1.5x"]),
        (2000, ["62.9x", "6.3x"]),
        (None, ["more than 100x", "more than 100x"]),
    ],
)
def test_the_cost_is_multiplied_by_how_often_the_rule_runs(most: int | None, factors: list[str]) -> None:
    inner = with_rule(objects(v=STRING), "self.v.contains('a')")
    for schema in (lists(inner, most), maps(inner, most)):
        found = " ".join(causes(objects(spec=schema)))
        assert re.findall(r"by factor of (.*?) \(", found) == factors


def test_the_result_of_a_message_has_a_limit_as_well() -> None:
    longer = ".replace('', 'abcdefghijklmnopqrstuvwxyz')"
    schema = with_rule(STRING, "self.size() > 3", message=f"self{longer}{longer}.lowerAscii()")
    [refused, *_] = causes(objects(spec=schema))
    path = "s.properties[spec].x-kubernetes-validations[0].messageExpression"
    assert refused.startswith(f"{path}: Forbidden: estimated messageExpression cost exceeds budget by factor")


def test_a_schema_that_was_accepted_before_stays_so() -> None:
    """Unless all of its rules together cost too much."""
    inner = with_rule(objects(v=STRING), "self.v.contains('a')")
    assert causes(objects(spec=lists(inner, 48)), is_new=False) == []
    rules = with_rule(objects(v=STRING), *["self.v.contains('a')"] * 7)
    [*single, total] = causes(objects(spec=lists(rules, 48)), is_new=False)
    assert len(single) == 4  # the most expensive ones
    assert total.startswith("s: Forbidden: x-kubernetes-validations estimated rule cost total")
    assert "by factor of 1.056972x" in total
