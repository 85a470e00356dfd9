"""Validation rules of a schema (`x-kubernetes-validations`): compiled once per version, run on every write.

A rule sees its value as `self`. A rule that uses `oldSelf` compares with the old value: it runs only if there
is one (unless `optionalOldSelf` is set), and unlike other rules it also runs if the value is unchanged. A
rule on a list item finds its old value only if the list has list type `map`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from volplane.api.errors import Cause, duplicate, forbidden, invalid, required_value
from volplane.apiserver import cpu_offload
from volplane.apiserver.crd import cel
from volplane.apiserver.crd.cel import (
    CelCompileError,
    CelEvaluationError,
    CelProgram,
    CostBudget,
    OptionalValue,
    types,
)
from volplane.apiserver.crd.cel.declared_sizes import DeclaredSize
from volplane.apiserver.crd.cel.schema_types import type_of, value_of
from volplane.apiserver.crd.schema import EMBEDDED, VALIDATIONS, Schema, additional_of, child_path, items_of
from volplane.apiserver.crd.schema.correlate import ValuePair
from volplane.apiserver.crd.schema.paths import normalize_path
from volplane.apiserver.crd.schema.values import ROOT_PATH

RULE_STEPS = 100_000  # cost limit of one rule
WRITE_STEPS = 1_000_000  # cost limit of all rules of one write
LONGEST_MESSAGE = 5 * 1024

Warn = Callable[[str], None]
Pair = ValuePair | None


class CelRule(Struct, frozen=True):
    source: Mapping[str, Any]
    program: CelProgram
    message: CelProgram | None
    field: str  # fieldPath, normalized

    @property
    def uses_old_self(self) -> bool:
        return "oldSelf" in self.program.names

    @property
    def optional(self) -> bool:
        return bool(self.source.get("optionalOldSelf"))

    @property
    def description(self) -> str:
        """The message, or the rule itself if it has none."""
        return str(self.source.get("message") or self.source["rule"]).strip()

    @property
    def detail(self) -> str:
        return self.description if self.source.get("message") else f"failed rule: {self.description}"


class RuleNode(Struct, frozen=True):
    """The rules at one position of a schema, and below it."""

    schema: Schema
    resource: bool
    rules: tuple[CelRule, ...]
    members: Mapping[str, RuleNode]
    others: RuleNode | None
    items: RuleNode | None


class InvalidRule(Exception):
    """A rule that cannot be compiled; `part` is the field with the bad expression."""

    def __init__(self, part: str, words: str) -> None:
        super().__init__(words)
        self.part = part
        self.words = words


def compile_rule(source: Mapping[str, Any], schema: Schema, *, resource: bool = False) -> CelRule:
    """Raise InvalidRule."""
    variables = _rule_variables(source, schema, resource)
    program = _compile_expression(source["rule"], variables, "rule", types.BOOL)
    text = source.get("messageExpression") or ""
    message = _compile_expression(text, variables, "messageExpression", types.STRING)
    field = normalize_path(source["fieldPath"], schema) if source.get("fieldPath") else ""
    return CelRule(source, program, message if text else None, field)


def _rule_variables(source: Mapping[str, Any], schema: Schema, resource: bool) -> Mapping[str, types.CelType]:
    """Raise InvalidRule."""
    self_type = type_of(schema, resource=resource)
    if self_type is None:
        raise InvalidRule("rule", "failed to convert to declType for CEL validation rules")
    old_type = types.optional_of(self_type) if source.get("optionalOldSelf") else self_type
    return {"self": self_type, "oldSelf": old_type}


def estimate_rule(
    source: Mapping[str, Any], schema: Schema, size: DeclaredSize, *, resource: bool
) -> tuple[int, int]:
    """Return the most that a rule that compiles can cost, and its messageExpression."""
    variables = _rule_variables(source, schema, resource)
    texts = (source["rule"], source.get("messageExpression") or "")
    rule, message = (cel.estimate_cost(text, variables, size) if text.strip() else 0 for text in texts)
    return rule, message


def _compile_expression(
    text: str, variables: Mapping[str, types.CelType], part: str, wanted: types.CelType
) -> CelProgram:
    if not text.strip():
        return CelProgram(wanted, frozenset(), lambda scope: True)
    before = "" if part == "rule" else f"{part} "
    try:
        result = cel.compile(text, variables)
    except CelCompileError as flaw:
        raise InvalidRule(part, f"{before}compilation failed: {flaw.format(text)}") from flaw
    if result.type not in (wanted, types.DYN):
        said = (
            "cel expression must evaluate to a bool"
            if part == "rule"
            else f"{part} must evaluate to a string"
        )
        raise InvalidRule(part, said)
    return result


def compile_rules(schema: Schema | None, *, resource: bool = True) -> RuleNode | None:
    """Compile the rules of a schema; return None if it has none. Raise InvalidRule."""
    if schema is None:
        return None
    rules = tuple(compile_rule(source, schema, resource=resource) for source in schema.get(VALIDATIONS, ()))
    members = {}
    for name, inner in schema.get("properties", {}).items():
        below = compile_rules(inner, resource=bool(inner.get(EMBEDDED)))
        if below is not None:
            members[name] = below
    others, items = _below(additional_of(schema)), _below(items_of(schema))
    if not (rules or members or others or items):
        return None
    return RuleNode(schema, resource, rules, members, others, items)


def _below(schema: Schema | None) -> RuleNode | None:
    return compile_rules(schema, resource=bool(schema.get(EMBEDDED))) if schema is not None else None


class RuleCheck:
    """One run of all rules over an object."""

    def __init__(self, warn: Warn | None = None) -> None:
        self.causes: list[Cause] = []
        self._warn = warn
        self._budget = CostBudget(WRITE_STEPS)
        self._spent = False

    def run(self, root: RuleNode | None, new: Any, old: Any = None) -> list[Cause]:
        if root is not None:
            self._node(root, new, "", ValuePair(new, old) if old is not None else None, None)
        return self.causes

    def _node(self, node: RuleNode, new: Any, path: str, pair: Pair, nearest: Pair) -> None:
        """`pair`: the value with its old one; `nearest`: the closest enclosing value that has an old one."""
        if new is None or self._spent:
            return
        nearest = pair or nearest
        if node.rules:
            self._rules(node, new, path, pair, nearest)
        if isinstance(new, dict):
            self._members(node, new, path, pair, nearest)
        elif isinstance(new, list) and node.items is not None:
            for at, inner in enumerate(new):
                matched = pair.item(at, node.schema) if pair is not None else None
                self._node(node.items, inner, f"{path}[{at}]", matched, nearest)

    def _members(self, node: RuleNode, new: Any, path: str, pair: Pair, nearest: Pair) -> None:
        for name, inner in new.items():
            below, here = node.members.get(name), child_path(path, name)
            if below is None:
                if node.others is None or name in node.schema.get("properties", {}):
                    continue
                below, here = node.others, f"{path}[{name}]"
            matched = pair.member(name) if pair is not None else None
            self._node(below, inner, here, matched, nearest)

    def _rules(self, node: RuleNode, new: Any, path: str, pair: Pair, nearest: Pair) -> None:
        old = pair.old if pair is not None else None
        values = {"self": value_of(new, node.schema, resource=node.resource)}
        if any(rule.uses_old_self for rule in node.rules) and old is not None:
            values["oldSelf"] = value_of(old, node.schema, resource=node.resource)
        for rule in node.rules:
            if self._spent or (rule.uses_old_self and old is None and not rule.optional):
                continue
            found = self._evaluate(rule, node, new, _rule_values(rule, values), path)
            if found is None:
                continue
            cause, was_evaluated = found
            if was_evaluated and not rule.uses_old_self and nearest is not None and nearest.is_unchanged:
                if self._warn is not None:
                    self._warn(str(cause))
            else:
                self.causes.append(cause)

    def _evaluate(
        self, rule: CelRule, node: RuleNode, new: Any, values: Mapping[str, Any], path: str
    ) -> tuple[Cause, bool] | None:
        """Return the cause if the rule fails, and whether it was evaluated (False: evaluation failed)."""
        kind, here = node.schema.get("type", ""), path or ROOT_PATH
        try:
            if self._run_within_budget(rule.program, values):
                return None
        except cel.CostLimitExceeded as error:
            self._spent = True
            explanation = "no further validation rules will be run due to call cost exceeds limit for rule"
            return invalid(here, kind, f"'{error}': {explanation}: {rule.description}"), False
        except CelEvaluationError as error:
            return invalid(here, kind, _evaluation_message(str(error), rule)), False
        path = _join_path(path, rule.field) or ROOT_PATH
        return _failed_rule_cause(rule, kind, new, self._message(rule, values), path), True

    def _run_within_budget(self, program: CelProgram, values: Mapping[str, Any]) -> Any:
        allowed = min(RULE_STEPS, self._budget.left)
        here = cpu_offload.remaining_allowance()
        steps = allowed if here is None else min(allowed, here)
        budget = CostBudget(steps)
        try:
            return program.run(values, budget)
        except cel.CostLimitExceeded:
            cpu_offload.spend(allowed)  # raises, so that the rule runs again in the worker thread
            raise
        finally:
            self._budget.left -= steps - max(budget.left, 0)
            cpu_offload.spend(steps - max(budget.left, 0))

    def _message(self, rule: CelRule, values: Mapping[str, Any]) -> str:
        """Return the result of messageExpression if it is a valid message."""
        if rule.message is None:
            return rule.detail
        try:
            result = self._run_within_budget(rule.message, values)
        except CelEvaluationError:
            return rule.detail
        text = result.strip() if isinstance(result, str) else ""
        fine = text and "\n" not in text and len(text.encode()) <= LONGEST_MESSAGE
        return text if fine else rule.detail


def _rule_values(rule: CelRule, values: Mapping[str, Any]) -> Mapping[str, Any]:
    if not rule.optional:
        return values
    return {**values, "oldSelf": OptionalValue(values["oldSelf"]) if "oldSelf" in values else OptionalValue()}


def _evaluation_message(error: str, rule: CelRule) -> str:
    if error.startswith("no such overload"):
        explanation = "call arguments did not match a supported operator, function or macro signature"
        return f"'{error}': {explanation} for rule: {rule.description}"
    return f"{error} evaluating rule: {rule.description}"


def _failed_rule_cause(rule: CelRule, kind: str, value: Any, detail: str, path: str) -> Cause:
    omitted = kind in ("object", "array")
    match rule.source.get("reason"):
        case "FieldValueForbidden":
            return forbidden(path, detail)
        case "FieldValueRequired":
            return required_value(path, detail)
        case "FieldValueDuplicate" as reason:
            return Cause(reason, "Duplicate value", path) if omitted else duplicate(path, value)
    if omitted:
        return Cause("FieldValueInvalid", f"Invalid value: {detail}", path)
    return invalid(path, value, detail)


def _join_path(path: str, field: str) -> str:
    joint = "." if path and field and not field.startswith("[") else ""
    return f"{path}{joint}{field}"
