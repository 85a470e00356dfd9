"""LimitRanges: limits must agree with each other. `limit_range_admission` enforces them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from volplane.api import quantity
from volplane.api.core import LimitRange, LimitRangeItem
from volplane.api.errors import Causes, forbidden, invalid, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.resourcequotas import is_standard_resource
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.rules.limit_ranges import CLAIM, CONTAINER, POD
from volplane.rules.quotas import pods

_OF_CONTAINERS = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"


class _Bound(NamedTuple):
    """A field of an item that limits a resource, by its name in messages."""

    field: str
    words: str
    amounts: Mapping[str, str]


class LimitRangeStrategy(Strategy[LimitRange]):
    def validate_create(self, call: ApiCall, obj: LimitRange) -> Causes:
        seen: set[str] = set()
        for at, item in enumerate(obj.spec.limits):
            here = f"spec.limits[{at}]"
            yield from _type(f"{here}.type", item.type)
            yield from checks.not_duplicate(f"{here}.type", item.type, seen)
            yield from _item(here, item)


def _type(path: str, type: str) -> Causes:
    causes = checks.qualified_name(path, type)
    yield from causes
    if not causes and type not in (CONTAINER, POD, CLAIM) and "/" not in type:
        yield invalid(path, type, "must be a standard limit type or fully qualified")


def _item(path: str, item: LimitRangeItem) -> Causes:
    least, most = _Bound("min", "min value", item.min), _Bound("max", "max value", item.max)
    default = _Bound("default", "default value", item.default)
    request = _Bound("defaultRequest", "default request value", item.default_request)
    ratio = _Bound("maxLimitRequestRatio", "ratio", item.max_limit_request_ratio)
    for bound in (most, least, default, request, ratio):
        if item.type == POD and bound.amounts and bound in (default, request):
            yield forbidden(f"{path}.{bound.field}", "may not be specified when `type` is 'Pod'")
            continue
        for name in sorted(bound.amounts):
            yield from _resource_name(f"{path}.{bound.field}[{name}]", item.type, name)
    if item.type == CLAIM and "storage" not in {*item.min, *item.max}:
        why = "either minimum or maximum storage value is required, but neither was provided"
        yield required_value(f"{path}.limits", why)
    if item.type == POD:
        default, request = (bound._replace(amounts={}) for bound in (default, request))
    default_limit = default._replace(words="default limit value")
    yield from _in_order(least, most, f"{path}.min", least)
    yield from _in_order(least, request, f"{path}.defaultRequest", request)
    yield from _in_order(request, most, f"{path}.defaultRequest", request)
    yield from _in_order(request, default_limit, f"{path}.defaultRequest", request)
    yield from _in_order(least, default, f"{path}.default", least)
    yield from _in_order(default, most, f"{path}.default", most)
    yield from _ratios(path, item)
    yield from _equal_defaults(path, default, request)


def _in_order(less: _Bound, more: _Bound, path: str, shown: _Bound) -> Causes:
    for name in sorted(less.amounts.keys() & more.amounts.keys()):
        one, other = less.amounts[name], more.amounts[name]
        if quantity.parse(one) > quantity.parse(other):
            words = f"{less.words} {one} is greater than {more.words} {other}"
            yield invalid(f"{path}[{name}]", shown.amounts[name], words)


def _ratios(path: str, item: LimitRangeItem) -> Causes:
    for name, given in sorted(item.max_limit_request_ratio.items()):
        here, ratio = f"{path}.maxLimitRequestRatio[{name}]", quantity.parse(given)
        if ratio < 1:
            yield invalid(here, given, f"ratio {given} is less than 1")
        least, most = item.min.get(name), item.max.get(name)
        if least is None or most is None or not quantity.parse(least):
            continue
        widest = quantity.parse(most) / quantity.parse(least)
        if ratio > widest:
            yield invalid(here, given, f"ratio {given} is greater than max/min = {float(widest):.6f}")


def _equal_defaults(path: str, default: _Bound, request: _Bound) -> Causes:
    """Of what containers cannot share, as GPUs and huge pages, they get what they request."""
    for name in sorted(default.amounts.keys() & request.amounts.keys()):
        one, other = default.amounts[name], request.amounts[name]
        shared = pods.is_native(name) and not name.startswith(_HUGE_PAGES)
        if not shared and quantity.parse(one) != quantity.parse(other):
            words = f"default value {one} must equal to defaultRequest value {other} in {name}"
            yield invalid(f"{path}.defaultRequest[{name}]", other, words)


def _resource_name(path: str, type: str, name: str) -> Causes:
    causes = checks.qualified_name(path, name)
    yield from causes
    if not causes and "/" not in name and not is_standard_resource(name):
        yield invalid(path, name, "must be a standard resource type or fully qualified")
    if type not in (CONTAINER, POD):
        return
    if "/" not in name:
        if name not in _OF_CONTAINERS and not name.startswith(_HUGE_PAGES):
            yield invalid(path, name, "must be a standard resource for containers")
    elif not pods.is_native(name) and not pods.is_extended(name):
        yield invalid(path, name, "doesn't follow extended resource name standard")
