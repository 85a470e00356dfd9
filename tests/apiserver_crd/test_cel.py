"""CEL: results, cost and error messages of expressions."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volplane.apiserver.crd import cel
from volplane.apiserver.crd.cel import CelCompileError, CelEvaluationError, CostBudget, types
from volplane.apiserver.crd.cel.schema_types import escape, type_of, value_of

Json = Any
STRING = {"type": "string"}
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "name": STRING,
        "namespace": STRING,
        "a-b.c/d": STRING,
        "under__score": STRING,
        "size": {"type": "integer"},
        "ratio": {"type": "number"},
        "ready": {"type": "boolean"},
        "tags": {"type": "array", "items": STRING},
        "set": {"type": "array", "items": STRING, "x-kubernetes-list-type": "set"},
        "rows": {
            "type": "array",
            "items": {"type": "object", "properties": {"k": STRING, "v": {"type": "integer"}}},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
        },
        "labels": {"type": "object", "additionalProperties": STRING},
        "port": {"x-kubernetes-int-or-string": True},
        "made": {"type": "string", "format": "date-time"},
        "data": {"type": "string", "format": "byte"},
        "nested": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "open": {"x-kubernetes-preserve-unknown-fields": True},
    },
}
VALUE: Json = {
    "name": "vol",
    "namespace": "ns",
    "a-b.c/d": "odd",
    "under__score": "u",
    "size": 3,
    "ratio": 2,
    "ready": True,
    "tags": ["a", "b"],
    "set": ["x", "y"],
    "rows": [{"k": "1", "v": 1}, {"k": "2", "v": 2}],
    "labels": {"app": "demo"},
    "port": "80%",
    "made": "2026-01-02T03:04:05Z",
    "data": "YWI=",
    "nested": {"x": 1},
    "open": {"any": 1},
}


def variables() -> dict[str, types.CelType]:
    found = type_of(SCHEMA)
    assert found is not None
    return {"self": found, "oldSelf": found}


def evaluate(text: str, value: Json = VALUE, steps: int = 10_000) -> Any:
    program = cel.compile(text, variables())
    seen = value_of(value, SCHEMA)
    return program.run({"self": seen, "oldSelf": seen}, CostBudget(steps))


TRUE = """
1 + 2 * 3 == 7
-7 / 2 == -3 && -7 % 2 == -1
7 / 2 == 3
1 < 2 && 2 <= 2 && 3 > 2 && 3 >= 3 && 1 != 2
1 < 1.5 && 2.5 > 2
0x10 == 16 && 1.5e1 == 15.0
!false
true || false && false
false ? 1 == 2 : true
true || 1 / 0 == 1
1 / 0 == 1 || true
!(false && 1 / 0 == 1)
!(1 / 0 == 1 && false)
'a' + "b" == 'ab' && r'\\d' == '\\\\d'
'''it's''' == "it's"
'\\u00e4'.size() == 1 && '\\x41' == 'A' && '\\n' == "\\n"
b'ab' == bytes('ab') && size(b'ab') == 2
'abc'.startsWith('a') && 'abc'.endsWith('c') && 'abc'.contains('b')
'abc'.matches('^a.c$') && matches('x1', '[0-9]$')
'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b'
'aBc'.lowerAscii() == 'abc' && 'abc'.upperAscii() == 'ABC' && ' a '.trim() == 'a'
'abc'.substring(1) == 'bc' && 'abc'.substring(0, 2) == 'ab' && 'abc'.charAt(1) == 'b'
'abcb'.indexOf('b') == 1 && 'abcb'.lastIndexOf('b') == 3 && 'a'.replace('a', 'b') == 'b'
'a1b22'.find('[0-9]+') == '1' && 'a1b22'.findAll('[0-9]+') == ['1', '22']
int('5') == 5 && int(5.9) == 5 && double('1.5') == 1.5 && string(5) == '5' && string(true) == 'true'
string(1.0) == '1' && bool('true')
type(1) == int && type('') == string && type([]) == list && type(null) == null_type && type(1.0) == double
[1, 2] + [3] == [1, 2, 3] && 2 in [1, 2] && !(3 in [1, 2])
[1, 2][0] == 1 && {'a': 1}['a'] == 1 && {'a': 1}.a == 1 && 'a' in {'a': 1}
size([1, 2]) == 2 && size({'a': 1}) == 1 && [].size() == 0
[1, 2, 3].all(x, x > 0) && [1, 2].exists(x, x == 2) && [1, 2].exists_one(x, x > 1)
[1, 2].map(x, x * 2) == [2, 4] && [1, 2].map(x, x > 1, x * 2) == [4] && [1, 2].filter(x, x > 1) == [2]
{'a': 1, 'b': 2}.all(k, k < 'c') && {'a': 1}.exists(k, k == 'a')
[1, 2].all(x, [3, 4].all(y, y > x))
[0, 1].exists(x, 1 / x == 1)
[1, 2].isSorted() && [1, 2].sum() == 3 && [2, 1].min() == 1 && [2, 1].max() == 2 && [1, 2].indexOf(2) == 1
timestamp('2026-01-02T03:04:05Z') + duration('1h') > timestamp('2026-01-02T03:04:05Z')
timestamp('2026-01-02T00:00:00Z') - timestamp('2026-01-01T00:00:00Z') == duration('24h')
timestamp('2026-01-02T03:04:05Z').getFullYear() == 2026 && timestamp('2026-01-02T03:04:05Z').getMonth() == 0
optional.of(1).hasValue() && optional.of(1).value() == 1 && optional.none().orValue(2) == 2
self.?name.orValue('') == 'vol' && !self.nested.?x.optMap(x, x > 5).orValue(true)
self.tags[?5].orValue('none') == 'none' && self.labels[?'app'].hasValue()
self.name == 'vol' && size(self.name) == 3
self.__namespace__ == 'ns' && self.a__dash__b__dot__c__slash__d == 'odd'
self.under__underscores__score == 'u'
self.size > 2 && self.ratio == 2.0 && self.ready
has(self.name) && has(self.labels.app) && !has(self.labels.tier)
self.labels['app'] == 'demo' && self.labels.app == 'demo' && self.labels.all(k, k.size() < 5)
self.set == ['y', 'x'] && self.set + ['x', 'z'] == ['x', 'y', 'z']
self.rows.exists(r, r.k == '2' && r.v == 2)
type(self.port) == string ? self.port.endsWith('%') : self.port > 0
self.made < timestamp('2027-01-01T00:00:00Z') && self.data == b'ab'
self == oldSelf && self.nested == oldSelf.nested
dyn(1) == dyn(1) && dyn([1, 'a'])[1] == 'a'
quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('500m').add(quantity('0.5')) == quantity('1')
quantity('2k').asInteger() == 2000 && !quantity('1.5').isInteger() && quantity('-1').sign() == -1
quantity('1.5').asApproximateFloat() == 1.5 && quantity('3').sub(1).compareTo(quantity('2')) == 0
isQuantity('1Gi') && !isQuantity('1GB')
url('https://u@a.example:81/p%20q?x=1&x=2').getHost() == 'a.example:81' && !isURL('a b') && isURL('/p')
url('https://[::1]:80/p').getHostname() == '::1' && url('https://a.example/p').getPort() == ''
url('https://a.example/p?x=1&x=2').getQuery()['x'] == ['1', '2']
url('http://a/b%20c').getEscapedPath() == '/b%20c'
url('https://a.example/').getScheme() == 'https'
ip('127.0.0.1').isLoopback() && ip('::1').family() == 6 && !isIP('1.2.3') && !isIP('::ffff:1.2.3.4')
ip.isCanonical('2001:db8::1') && !ip.isCanonical('2001:DB8::1') && ip('10.0.0.1').isGlobalUnicast()
ip('224.0.0.5').isLinkLocalMulticast() && ip('169.254.1.1').isLinkLocalUnicast()
ip('0.0.0.0').isUnspecified()
cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')
!cidr('10.0.0.0/8').containsIP(ip('11.0.0.1')) && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')
cidr('10.0.0.0/8').prefixLength() == 8 && string(cidr('10.1.2.3/8').ip()) == '10.1.2.3' && !isCIDR('10.0.0.0')
['10.0.0.1'].all(ip, ip.startsWith('10.'))
!format.dns1123Label().validate('web').hasValue() && format.dns1123Label().validate('Web').hasValue()
!format.named('uuid').value().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()
!format.named('no-such-format').hasValue() && format.date().validate('2026-13-01').hasValue()
'%s has %d of %.1f%% %x'.format(['a', 3, 2.55, 255]) == 'a has 3 of 2.5% ff'
'%s %s'.format([[1, true], {'k': null}]) == '[1, true] {k: null}'
// a remark
size(self.tags) > 0 // another
"""


@pytest.mark.parametrize("text", [line for line in TRUE.strip().split("\n") if not line.startswith("//")])
def test_the_expression_is_true(text: str) -> None:
    assert evaluate(text) is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 / 0 == 1", "division by zero"),
        ("1 % 0 == 1", "modulus by zero"),
        ("[1][3] == 1", "index out of bounds: 3"),
        ("{'a': 1}['b'] == 1", "no such key: b"),
        ("self.labels.tier == ''", "no such key: tier"),
        ("9223372036854775807 + 1 > 0", "integer overflow"),
        ("int('x') == 1", "type conversion error from 'string' to 'int'"),
        ("self.port > 5", "no such overload"),
        ("false || 1 / 0 == 1", "division by zero"),
        ("[1, 0].all(x, 1 / x > 0)", "division by zero"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("'a'.matches('(')", "error parsing regexp"),
        ("[].min() == 1", "min called on empty list"),
        ("quantity('1GB') == quantity('1')", "quantities must match the regular expression"),
        ("quantity('1.5').asInteger() == 1", "cannot convert value to integer"),
        ("ip('1.2.3').family() == 4", 'IP Address "1.2.3" parse error'),
        ("cidr('10.0.0.0').prefixLength() == 8", "network address parse error"),
        ("url('a b').getHost() == ''", "URL parse error during conversion from string"),
        ("'%d'.format(['a']) == ''", "no such overload"),
    ],
)
def test_evaluation_fails(text: str, words: str) -> None:
    with pytest.raises(CelEvaluationError) as failed:
        evaluate(text)
    assert str(failed.value).startswith(words)


def test_a_missing_declared_field_has_no_value() -> None:
    assert evaluate("has(self.name)", {}) is False
    with pytest.raises(CelEvaluationError, match="no such key: name"):
        evaluate("self.name == ''", {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("self.nam == ''", "undefined field 'nam'"),
        ("self.open == ''", "undefined field 'open'"),
        ("self.namespace == ''", "undefined field 'namespace'"),
        ("has(self.nam)", "undefined field 'nam'"),
        ("other == 1", "undeclared reference to 'other' (in container '')"),
        ("nothing(1)", "undeclared reference to 'nothing' (in container '')"),
        ("self.name == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
        ("self.size == 1.5", "found no matching overload for '_==_' applied to '(int, double)'"),
        ("self.name.startsWith(1)", "found no matching overload for 'startsWith' applied to 'string.(int)'"),
        ("size(1) > 0", "found no matching overload for 'size' applied to '(int)'"),
        ("self.name > 0", "found no matching overload for '_>_' applied to '(string, int)'"),
        ("self.tags['a'] == ''", "found no matching overload for '_[_]' applied to '(list(string), string)'"),
        ("self.size && true", "expected type 'bool' but found 'int'"),
        ("self.tags.all(t, t)", "expected type 'bool' but found 'string'"),
        ("self.name.all(t, true)", "expression of type 'string' cannot be range of a comprehension"),
        ("self.size.x", "type 'int' does not support field selection"),
        ("self.name ==", "Syntax error: mismatched input '<EOF>'"),
        ("(self.name", "Syntax error: mismatched input '<EOF>' expecting ')'"),
        ("has(self)", "invalid argument to has() macro"),
        ("[1].all(1, true)", "argument must be a simple name"),
        ("'a", "Syntax error: token recognition error"),
        ("while == 1", "Syntax error: reserved identifier: while"),
        ("1u == 1u", "unsigned numbers are not supported"),
        ("'\\q' == ''", "Syntax error: invalid escape sequence"),
    ],
)
def test_compilation_fails(text: str, words: str) -> None:
    with pytest.raises(CelCompileError) as flaw:
        cel.compile(text, variables())
    assert flaw.value.text.startswith(words)


def test_a_compile_error_shows_its_position() -> None:
    text = "has(self.name) &&\n  self.nam == ''"
    with pytest.raises(CelCompileError) as flaw:
        cel.compile(text, variables())
    assert flaw.value.format(text) == (
        "ERROR: <input>:2:7: undefined field 'nam'\n |   self.nam == ''\n | ......^"
    )


@pytest.mark.parametrize(
    "text", ["(" * 500 + "true" + ")" * 500, "!" * 2000 + "true", " || ".join(["true"] * 5000)]
)
def test_a_deeply_nested_expression_is_refused(text: str) -> None:
    with pytest.raises(CelCompileError, match="recursion limit"):
        cel.compile(text, {})


def test_an_expression_that_exceeds_its_cost_limit_is_stopped() -> None:
    many = {"tags": ["a"] * 200}
    with pytest.raises(cel.CostLimitExceeded):
        evaluate("self.tags.all(a, self.tags.all(b, self.tags.all(c, a == c)))", many, steps=10_000)


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("name", "name"),
        ("namespace", "__namespace__"),
        ("in", "__in__"),
        ("a-b", "a__dash__b"),
        ("a.b", "a__dot__b"),
        ("a/b", "a__slash__b"),
        ("a__b", "a__underscores__b"),
        ("$ref", None),
        ("1a", None),
        ("", None),
    ],
)
def test_field_names_are_escaped(name: str, spelled: str | None) -> None:
    assert escape(name) == spelled


@given(st.integers(-50, 50), st.integers(-50, 50).filter(bool))
def test_division_and_remainder_are_consistent(a: int, b: int) -> None:
    program = cel.compile("a == (a / b) * b + a % b", {"a": types.INT, "b": types.INT})
    assert program.run({"a": a, "b": b}, CostBudget(100)) is True


@given(st.text(alphabet="abs.()[]'\"=!&|<>?: 01\\n{},+-*/%", max_size=30))
@settings(deadline=None, max_examples=300)
def test_no_source_crashes_the_compiler(text: str) -> None:
    with contextlib.suppress(CelCompileError, CelEvaluationError):
        cel.compile(text, {"a": types.DYN, "s": types.STRING}).run({"a": 1, "s": "x"}, CostBudget(1000))
