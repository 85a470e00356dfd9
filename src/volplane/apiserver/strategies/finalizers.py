"""Storage object in use protection: a finalizer, added on create, keeps an object that is in use."""

from __future__ import annotations

from typing import TypeVar

from msgspec import structs

from volplane.api.meta import Resource

R = TypeVar("R", bound=Resource)


def add_finalizer(obj: R, finalizer: str) -> R:
    if finalizer in obj.metadata.finalizers:
        return obj
    held = structs.replace(obj.metadata, finalizers=(*obj.metadata.finalizers, finalizer))
    return structs.replace(obj, metadata=held)
