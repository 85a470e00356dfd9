"""LimitRanges: what containers get that name no amount, and which amounts a pod or claim may name.

The messages are upstream's. For each container or pod, a minimum needs a request, and a maximum a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, structs

from volplane.api.core import Container, LimitRange, LimitRangeItem, PersistentVolumeClaim, Pod
from volplane.api.quantity import Amount, format_amount
from volplane.rules.quotas.amounts import Amounts, read_amounts
from volplane.rules.quotas.pods import sum_containers

CONTAINER, POD, CLAIM = "Container", "Pod", "PersistentVolumeClaim"
ANNOTATION = "kubernetes.io/limit-ranger"
_POD_LEVEL = ("cpu", "memory")
_NANOS = 10**9


class _Limit(Struct, frozen=True):
    """What is allowed for each object of a type."""

    type: str
    least: Amounts
    most: Amounts
    ratio: Amounts  # of the limit to the request, at most


class PreparedLimitRange(Struct, frozen=True):
    requests: Mapping[str, str]  # the defaults of containers
    limits: Mapping[str, str]
    allowed: tuple[_Limit, ...]


def prepare(given: LimitRange) -> PreparedLimitRange:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for item in given.spec.limits:
        if item.type == CONTAINER:
            requests |= item.default_request
            limits |= item.default
    return PreparedLimitRange(requests, limits, tuple(_limit(item) for item in given.spec.limits))


def _limit(item: LimitRangeItem) -> _Limit:
    parts = (dict(sorted(p.items())) for p in (item.min, item.max, item.max_limit_request_ratio))
    return _Limit(item.type, *(read_amounts(part) for part in parts))


# Defaults


def set_container_defaults(pod: Pod, range: PreparedLimitRange) -> Pod:
    """The annotation says what was set."""
    said: list[str] = []
    containers = [_complete(c, range, "container", said) for c in pod.spec.containers]
    before = [_complete(c, range, "init container", said) for c in pod.spec.init_containers]
    if not said:
        return pod
    notes = {**pod.metadata.annotations, ANNOTATION: f"LimitRanger plugin set: {'; '.join(said)}"}
    spec = structs.replace(pod.spec, containers=tuple(containers), init_containers=tuple(before))
    return structs.replace(pod, spec=spec, metadata=structs.replace(pod.metadata, annotations=notes))


def _complete(container: Container, range: PreparedLimitRange, what: str, said: list[str]) -> Container:
    held = container.resources
    requests = {n: a for n, a in range.requests.items() if n not in held.requests}
    limits = {n: a for n, a in range.limits.items() if n not in held.limits}
    for word, added in (("request", requests), ("limit", limits)):
        if added:
            said.append(f"{', '.join(sorted(added))} {word} for {what} {container.name}")
    if not (requests or limits):
        return container
    resources = structs.replace(
        held, requests={**held.requests, **requests}, limits={**held.limits, **limits}
    )
    return structs.replace(container, resources=resources)


# Limits


def describe_violations(obj: Pod | PersistentVolumeClaim, range: PreparedLimitRange) -> str:
    """Upstream's message; "" if everything is allowed."""
    found = list(dict.fromkeys(text for limit in range.allowed for text in _find_violations(obj, limit)))
    return found[0] if len(found) == 1 else f"[{', '.join(found)}]" if found else ""


def _find_violations(obj: Pod | PersistentVolumeClaim, limit: _Limit) -> Iterator[str]:
    return _violations_of_pod(obj, limit) if isinstance(obj, Pod) else _violations_of_claim(obj, limit)


def _violations_of_claim(claim: PersistentVolumeClaim, limit: _Limit) -> Iterator[str]:
    if limit.type != CLAIM:
        return
    requests = read_amounts(claim.spec.resources.requests)
    for name, least in limit.least.items():
        yield from _below(name, CLAIM, least, requests.get(name), None)
    for name, most in limit.most.items():
        asked = requests.get(name)
        text = f"maximum {name} usage per {CLAIM} is {format_amount(most)}"
        if asked is None:
            yield f"{text}.  No request is specified"
        elif asked.nanos > most.nanos:
            yield f"{text}, but request is {format_amount(asked)}"


def _violations_of_pod(pod: Pod, limit: _Limit) -> Iterator[str]:
    match limit.type:
        case "Container":
            for container in (*pod.spec.containers, *pod.spec.init_containers):
                requests = read_amounts(container.resources.requests)
                yield from _violations(limit, requests, read_amounts(container.resources.limits))
        case "Pod":
            yield from _violations(limit, _requests_of_pod(pod), _limits_of_pod(pod))


def _requests_of_pod(pod: Pod) -> Amounts:
    total = sum_containers(pod, lambda c: read_amounts(c.resources.requests))
    return total | _at_pod_level(pod.spec.resources.requests if pod.spec.resources is not None else {})


def _limits_of_pod(pod: Pod) -> Amounts:
    total = sum_containers(pod, lambda c: read_amounts(c.resources.limits))
    return total | _at_pod_level(pod.spec.resources.limits if pod.spec.resources is not None else {})


def _at_pod_level(given: Mapping[str, str]) -> dict[str, Amount]:
    return read_amounts({name: amount for name, amount in given.items() if name in _POD_LEVEL})


def _violations(limit: _Limit, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, least in limit.least.items():
        yield from _below(name, limit.type, least, requests.get(name), limits.get(name))
    for name, most in limit.most.items():
        yield from _above(name, limit.type, most, requests.get(name), limits.get(name))
    for name, ratio in limit.ratio.items():
        yield from _beyond(name, limit.type, ratio, requests.get(name), limits.get(name))


def _below(
    name: str, type: str, least: Amount, asked: Amount | None, allowed: Amount | None
) -> Iterator[str]:
    text = f"minimum {name} usage per {type} is {format_amount(least)}"
    if asked is None:
        yield f"{text}.  No request is specified"
    elif asked.nanos < least.nanos:
        yield f"{text}, but request is {format_amount(asked)}"
    elif allowed is not None and allowed.nanos < least.nanos:
        yield f"{text}, but limit is {format_amount(allowed)}"


def _above(name: str, type: str, most: Amount, asked: Amount | None, allowed: Amount | None) -> Iterator[str]:
    text = f"maximum {name} usage per {type} is {format_amount(most)}"
    if allowed is None:
        yield f"{text}.  No limit is specified"
    elif allowed.nanos > most.nanos:
        yield f"{text}, but limit is {format_amount(allowed)}"
    elif asked is not None and asked.nanos > most.nanos:
        yield f"{text}, but request is {format_amount(asked)}"


def _beyond(
    name: str, type: str, ratio: Amount, asked: Amount | None, allowed: Amount | None
) -> Iterator[str]:
    text = f"{name} max limit to request ratio per {type} is {format_amount(ratio)}"
    if asked is None or not asked.nanos:
        yield f"{text}, but no request is specified or request is 0"
    elif allowed is None or not allowed.nanos:
        yield f"{text}, but no limit is specified or limit is 0"
    elif allowed.nanos * _NANOS > ratio.nanos * asked.nanos:
        yield f"{text}, but provided ratio is {allowed.nanos / asked.nanos:.6f}"
