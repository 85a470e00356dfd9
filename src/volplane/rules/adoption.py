"""Which objects belong to a controller: it adopts orphans that its selector matches, and releases what it
no longer matches.

An object is a controller's if its owner reference says so. A controller that is being deleted changes no
owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from volplane.api.meta import Resource
from volplane.api.selectors import LabelMatcher
from volplane.rules.workloads import controller_of

T = TypeVar("T", bound=Resource)


class AdoptObject(Struct, frozen=True):
    orphan: Resource


class ReleaseObject(Struct, frozen=True):
    object: Resource


AdoptionStep = AdoptObject | ReleaseObject


class ClaimedObjects(Struct, Generic[T], frozen=True):
    objects: Sequence[T]  # that belong to the controller, adopted ones included
    steps: Sequence[AdoptionStep] = ()


def claim_objects(
    controller: Resource,
    selector: LabelMatcher,
    owned: Iterable[T],
    orphans: Iterable[T],
    *,
    may_adopt: Callable[[T], bool] = lambda orphan: True,
) -> ClaimedObjects[T]:
    """`owned`: the objects whose controller it is; `orphans`: those of its namespace that have none."""
    matched = [obj for obj in owned if selector.matches(obj.metadata.labels)]
    if controller.is_deleting:
        return ClaimedObjects(matched)
    kept = {obj.name for obj in matched}
    released = [ReleaseObject(obj) for obj in owned if obj.name not in kept]
    adopted = [
        orphan
        for orphan in orphans
        if not orphan.is_deleting and selector.matches(orphan.metadata.labels) and may_adopt(orphan)
    ]
    return ClaimedObjects([*matched, *adopted], [*map(AdoptObject, adopted), *released])


def became_orphan(old: Resource | None, new: Resource | None) -> bool:
    """Whether this change makes an object one that a controller may adopt now."""
    if new is None or controller_of(new) is not None:
        return False
    return old is None or old.metadata.labels != new.metadata.labels or controller_of(old) is not None


def adopting_keys(
    orphan: Resource, controllers: Iterable[T], selector_of: Callable[[T], LabelMatcher]
) -> Iterator[str]:
    """The keys of the controllers that may adopt an orphan."""
    for controller in controllers:
        if not controller.is_deleting and selector_of(controller).matches(orphan.metadata.labels):
            yield controller.key
