"""pods/resize: change the CPU and memory of the containers of an existing pod, and nothing else."""

from __future__ import annotations

from msgspec import structs

from volplane.api.core import Container, Pod, PodSpec
from volplane.api.errors import Causes, forbidden, invalid
from volplane.apiserver.strategies.pods.spec import pod_spec

_MUTABLE = ("cpu", "memory")
_ONLY = "only cpu and memory resources are mutable"


def apply_resources(old: PodSpec, new: PodSpec) -> PodSpec:
    """The old spec with the new resources; other changes are ignored."""
    return structs.replace(
        old,
        containers=_amounts(old.containers, new.containers),
        init_containers=_amounts(old.init_containers, new.init_containers),
    )


def _amounts(old: tuple[Container, ...], new: tuple[Container, ...]) -> tuple[Container, ...]:
    if [c.name for c in old] != [c.name for c in new]:
        return new  # validation rejects it
    return tuple(
        structs.replace(held, resources=given.resources, resize_policy=given.resize_policy)
        for held, given in zip(old, new, strict=True)
    )


def validate(old: Pod, new: Pod, was: str, becomes: str) -> Causes:
    """`was` and `becomes`: the QoS class before and after."""
    yield from pod_spec("spec", new.spec, pod=new.name)
    for before, after, path in (
        (old.spec.containers, new.spec.containers, "spec.containers"),
        (old.spec.init_containers, new.spec.init_containers, "spec.initContainers"),
    ):
        if [c.name for c in before] != [c.name for c in after]:
            yield forbidden(path, "containers may not be added or removed on resize")
            return
    if was != becomes:
        yield invalid("spec", was, "Pod QOS Class may not change as a result of resizing")
    for at, (held, given) in enumerate(zip(old.spec.containers, new.spec.containers, strict=True)):
        yield from _check_removed_resources(f"spec.containers[{at}].resources", held, given)
    if _without_mutable_resources(old.spec) != _without_mutable_resources(new.spec):
        yield forbidden("spec", _ONLY)


def _check_removed_resources(path: str, held: Container, given: Container) -> Causes:
    for word in ("requests", "limits"):
        before, after = getattr(held.resources, word), getattr(given.resources, word)
        if any(name in before and name not in after for name in _MUTABLE):
            yield forbidden(f"{path}.{word}", f"resource {word} cannot be removed")


def _without_mutable_resources(spec: PodSpec) -> PodSpec:
    """The spec without CPU and memory."""
    return structs.replace(
        spec,
        containers=tuple(map(_strip_mutable_resources, spec.containers)),
        init_containers=tuple(map(_strip_mutable_resources, spec.init_containers)),
    )


def _strip_mutable_resources(container: Container) -> Container:
    given = container.resources
    kept = {
        word: {name: amount for name, amount in getattr(given, word).items() if name not in _MUTABLE}
        for word in ("requests", "limits")
    }
    return structs.replace(container, resources=structs.replace(given, **kept))
