"""When a job fails or succeeds: limits of failed indexes, failure policies, success policies."""

from __future__ import annotations

from volplane.api.batch import JobSpec, PodFailurePolicyRule, SuccessPolicyRule
from volplane.api.errors import (
    Cause,
    Causes,
    duplicate,
    invalid,
    not_supported,
    required_value,
    too_long,
    too_many,
)
from volplane.apiserver.strategies import checks

ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_MANY = 100_000  # completions, above which the limits are lower
_MOST_FAILED = 100_000
_LOWER_LIMIT = 10_000
_MOST_RULES = 20
_LONGEST_INDEXES = 64 * 1024
_NOT_INDEXED = "requires indexed completion mode"


# Failures of each index


def index_limits(path: str, given: JobSpec) -> Causes:
    yield from checks.not_negative_fields(path, given, "backoffLimitPerIndex", "maxFailedIndexes")
    if given.max_failed_indexes is not None and given.backoff_limit_per_index is None:
        yield required_value(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    if given.completion_mode == "Indexed":
        yield from _most_failed(path, given)
        if (given.completions or 0) > _MANY and given.backoff_limit_per_index is not None:
            yield from _lower_limits(path, given)
        return
    if given.backoff_limit_per_index is not None:
        yield invalid(f"{path}.backoffLimitPerIndex", given.backoff_limit_per_index, _NOT_INDEXED)
    if given.max_failed_indexes is not None:
        yield invalid(f"{path}.maxFailedIndexes", given.max_failed_indexes, _NOT_INDEXED)


def _most_failed(path: str, given: JobSpec) -> Causes:
    most = given.max_failed_indexes
    if most is None:
        return
    if given.completions is not None and most > given.completions:
        yield invalid(f"{path}.maxFailedIndexes", most, "must be less than or equal to completions")
    if most > _MOST_FAILED:
        yield invalid(f"{path}.maxFailedIndexes", most, f"must be less than or equal to {_MOST_FAILED}")


def _lower_limits(path: str, given: JobSpec) -> Causes:
    most = given.max_failed_indexes
    if most is None:
        message = f"must be specified when completions is above {_MANY}"
        yield required_value(f"{path}.maxFailedIndexes", message)
    message = (
        f"must be less than or equal to {_LOWER_LIMIT} when completions are above {_MANY} "
        "and used with backoff limit per index"
    )
    for name, value in (("parallelism", given.parallelism), ("maxFailedIndexes", most)):
        if value is not None and value > _LOWER_LIMIT:
            yield invalid(f"{path}.{name}", value, message)


# The failure policy


def failure_policy(path: str, given: JobSpec) -> Causes:
    assert given.pod_failure_policy is not None
    per_index = given.backoff_limit_per_index is not None
    names = {c.name for c in (*given.template.spec.containers, *given.template.spec.init_containers)}
    for at, rule in enumerate(given.pod_failure_policy.rules):
        yield from _failure_rule(f"{path}.rules[{at}]", rule, names, per_index=per_index)


def _failure_rule(path: str, rule: PodFailurePolicyRule, containers: set[str], *, per_index: bool) -> Causes:
    if rule.action == "FailIndex":
        if not per_index:
            yield invalid(f"{path}.action", rule.action, "requires the backoffLimitPerIndex to be set")
    elif rule.action not in ACTIONS:
        yield not_supported(f"{path}.action", rule.action, ACTIONS)
    codes = rule.on_exit_codes
    if codes is not None:
        here = f"{path}.onExitCodes"
        yield from checks.one_of(f"{here}.operator", codes.operator, ("In", "NotIn"))
        if codes.container_name is not None and codes.container_name not in containers:
            message = "must be one of the container or initContainer names in the pod template"
            yield invalid(f"{here}.containerName", codes.container_name, message)
        if not codes.values:
            yield invalid(f"{here}.values", [], "at least one value is required")
        for at, code in enumerate(codes.values):
            if codes.operator == "In" and code == 0:
                yield invalid(f"{here}.values[{at}]", code, "must not be 0 for the In operator")
            if code in codes.values[:at]:
                yield duplicate(f"{here}.values[{at}]", code)
        if list(codes.values) != sorted(codes.values):
            yield invalid(f"{here}.values", list(codes.values), "must be ordered")
    if (codes is None) == (not rule.on_pod_conditions):
        both = "both OnExitCodes and OnPodConditions is not supported"
        message = both if codes else "one of OnExitCodes and OnPodConditions is required"
        yield Cause("FieldValueInvalid", f"Invalid value: specifying {message}", path)


# The success policy


def success_policy(path: str, given: JobSpec) -> Causes:
    policy = given.success_policy
    assert policy is not None
    if given.completion_mode != "Indexed":
        yield invalid(path, checks.to_plain(policy), _NOT_INDEXED)
        return
    if not policy.rules:
        message = "at least one rules must be specified when the successPolicy is specified"
        yield required_value(f"{path}.rules", message)
    if len(policy.rules) > _MOST_RULES:
        yield too_many(f"{path}.rules", len(policy.rules), _MOST_RULES)
    for at, rule in enumerate(policy.rules):
        yield from _success_rule(f"{path}.rules[{at}]", rule, given.completions or 0)


def _success_rule(path: str, rule: SuccessPolicyRule, completions: int) -> Causes:
    if rule.succeeded_count is None and rule.succeeded_indexes is None:
        yield required_value(path, "at least one of succeededCount or succeededIndexes must be specified")
    named = 0
    if rule.succeeded_indexes is not None:
        here = f"{path}.succeededIndexes"
        if len(rule.succeeded_indexes) > _LONGEST_INDEXES:
            yield too_long(here, _LONGEST_INDEXES)
        try:
            named = _count_indexes(rule.succeeded_indexes, completions)
        except _WrongIndexes as error:
            yield invalid(here, rule.succeeded_indexes, f"error parsing succeededIndexes: {error}")
    count, here = rule.succeeded_count, f"{path}.succeededCount"
    if count is None:
        return
    yield from checks.not_negative_fields(path, rule, "succeededCount")
    limit = "must be less than or equal to"
    if count > completions:
        yield invalid(here, count, f"{limit} {completions} (the number of specified completions)")
    if rule.succeeded_indexes is not None and count > named:
        which = "the number of indexes in the specified succeededIndexes field"
        yield invalid(here, count, f"{limit} {named} ({which})")


class _WrongIndexes(ValueError):
    """The text is not a list of increasing indexes and intervals."""


def _count_indexes(text: str, completions: int) -> int:
    total, last = 0, -1
    for interval in text.split(",") if text else ():
        first, end = _read_interval(interval, completions)
        if last >= first:
            raise _WrongIndexes(f"non-increasing order, previous: {last}, current: {first}")
        total, last = total + end - first + 1, end
    return total


def _read_interval(interval: str, completions: int) -> tuple[int, int]:
    parts = interval.split("-")
    if len(parts) > 2:
        raise _WrongIndexes(
            f"the fragment {_quote(interval)} violates the requirement that an index interval can have at "
            "most two parts separated by '-'"
        )
    first, last = _read_index(parts[0], completions), _read_index(parts[-1], completions)
    if len(parts) == 2 and first >= last:
        raise _WrongIndexes(f"non-increasing order, previous: {first}, current: {last}")
    return first, last


def _read_index(text: str, completions: int) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _WrongIndexes(f"cannot convert string to integer for index: {_quote(text)}")
    if int(text) >= completions:
        raise _WrongIndexes(f"too large index: {_quote(text)}")
    return int(text)


def _quote(text: str) -> str:
    return f'"{text}"'
