"""Label and field selectors: parsed once, matched often."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from volplane.api.meta import LabelSelector


class Operator(StrEnum):
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "!"
    GREATER = "gt"
    LESS = "lt"


class InvalidSelector(ValueError):
    """The text is not a selector."""


class LabelRequirement(Struct, frozen=True):
    """A condition on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        held = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return held is not None and held in self.values
            case Operator.NOT_IN:
                return held is None or held not in self.values
            case Operator.EXISTS:
                return held is not None
            case Operator.ABSENT:
                return held is None
            case Operator.GREATER | Operator.LESS:
                return self._compares(held)

    def _compares(self, held: str | None) -> bool:
        try:
            number, bound = int(held or ""), int(self.values[0])
        except ValueError:
            return False
        return number > bound if self.operator is Operator.GREATER else number < bound

    def __str__(self) -> str:
        match self.operator:
            case Operator.IN if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case Operator.NOT_IN if len(self.values) == 1:
                return f"{self.key}!={self.values[0]}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.value} ({','.join(sorted(self.values))})"
            case Operator.EXISTS:
                return self.key
            case Operator.ABSENT:
                return f"!{self.key}"
            case Operator.GREATER:
                return f"{self.key}>{self.values[0]}"
            case Operator.LESS:
                return f"{self.key}<{self.values[0]}"


_KEY = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")
_EQUAL = re.compile(rf"^({_KEY})\s*(==|=|!=)\s*({_VALUE})$")
_ORDER = re.compile(rf"^({_KEY})\s*([<>])\s*(-?\d+)$")
_BARE = re.compile(rf"^(!?)\s*({_KEY})$")
_WORD = re.compile(rf"^{_VALUE}$")


class LabelMatcher(Struct, frozen=True):
    """All requirements must hold; none at all matches everything."""

    requirements: tuple[LabelRequirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelMatcher:
        """Raises InvalidSelector."""
        return cls(tuple(_requirement(term) for term in _terms(text)))

    @classmethod
    def of(cls, selector: LabelSelector | None) -> LabelMatcher:
        """An empty selector matches everything; no selector matches nothing."""
        if selector is None:
            return NOTHING
        named = [LabelRequirement(k, Operator.IN, (v,)) for k, v in sorted(selector.match_labels.items())]
        return cls((*named, *(_expression(e.key, e.operator, e.values) for e in selector.match_expressions)))

    @classmethod
    def equal(cls, labels: Mapping[str, str]) -> LabelMatcher:
        return cls(tuple(LabelRequirement(k, Operator.IN, (v,)) for k, v in sorted(labels.items())))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(r.matches(labels) for r in self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def __str__(self) -> str:
        return ",".join(str(r) for r in self.requirements)


NOTHING = LabelMatcher((LabelRequirement("", Operator.IN, ()),))
_EXPRESSIONS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.ABSENT,
    "Gt": Operator.GREATER,
    "Lt": Operator.LESS,
}


def _expression(key: str, operator: str, values: tuple[str, ...]) -> LabelRequirement:
    if operator not in _EXPRESSIONS:
        raise InvalidSelector(f'"{operator}" is not a valid label selector operator')
    return LabelRequirement(key, _EXPRESSIONS[operator], values)


def _terms(text: str) -> Iterable[str]:
    """Split at commas outside of parentheses."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text.strip():
        yield text[start:].strip()


def _requirement(term: str) -> LabelRequirement:
    if found := _SET.match(term):
        key, word, listed = found.groups()
        values = tuple(v.strip() for v in listed.split(","))
        if all(_WORD.match(v) for v in values):
            return LabelRequirement(key, Operator(word), values)
    elif found := _EQUAL.match(term):
        key, sign, word = found.groups()
        return LabelRequirement(key, Operator.NOT_IN if sign == "!=" else Operator.IN, (word,))
    elif found := _ORDER.match(term):
        key, sign, number = found.groups()
        return LabelRequirement(key, Operator.GREATER if sign == ">" else Operator.LESS, (number,))
    elif found := _BARE.match(term):
        return LabelRequirement(found[2], Operator.ABSENT if found[1] else Operator.EXISTS)
    raise InvalidSelector(f"unable to parse requirement: {term!r} is not a label requirement")


class FieldTerm(Struct, frozen=True):
    field: str
    value: str
    negated: bool = False


class FieldMatcher(Struct, frozen=True):
    """A field selector: equalities and inequalities that must all hold."""

    terms: tuple[FieldTerm, ...] = ()

    @classmethod
    def parse(cls, text: str) -> FieldMatcher:
        """Raises InvalidSelector."""
        return cls(tuple(_field_term(t) for t in _split_escaped_terms(text)))

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all((fields.get(t.field, "") == t.value) is not t.negated for t in self.terms)

    def required_value(self, field: str) -> str | None:
        """The value that an equality requires of this field."""
        return next((t.value for t in self.terms if t.field == field and not t.negated), None)

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __str__(self) -> str:
        return ",".join(f"{t.field}{'!=' if t.negated else '='}{_escape(t.value)}" for t in self.terms)


def _escape(text: str) -> str:
    return re.sub(r"([\\,=])", r"\\\1", text)


def _split_escaped_terms(text: str) -> Iterable[str]:
    return [t for t in re.split(r"(?<!\\),", text) if t]


def _field_term(term: str) -> FieldTerm:
    found = re.match(r"^((?:[^\\=!]|\\.)+?)(!=|==|=)(.*)$", term)
    if found is None:
        raise InvalidSelector(f"invalid selector: '{term}'; can't understand '{term}'")
    field, sign, value = found.groups()
    return FieldTerm(field.strip(), re.sub(r"\\([\\,=])", r"\1", value), negated=sign == "!=")
