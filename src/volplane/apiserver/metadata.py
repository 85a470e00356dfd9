"""Object metadata: what the server sets, what an update keeps from the stored object, and validation.

The same for every kind. On update, fields that only the server may change are taken from the stored object
before validation, so a client that sends them changed or empty is not refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from msgspec import structs

from volplane.api import name_validation, names
from volplane.api.errors import Cause, forbidden, invalid, required_value, too_long
from volplane.api.meta import ObjectMeta, OwnerReference
from volplane.apiserver.strategy import AnyStrategy, ApiCall
from volplane.base import clock

ANNOTATIONS_LIMIT = 256 * 1024
ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_STANDARD_FINALIZERS = frozenset({"kubernetes", ORPHAN, FOREGROUND})

_QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def initial_metadata(call: ApiCall, meta: ObjectMeta, *, generation: int) -> ObjectMeta:
    """Return the metadata of a new object."""
    return structs.replace(
        meta,
        namespace=call.namespace,
        uid=str(uuid.uuid4()),
        creation_timestamp=clock.stamp(call.now),
        generation=generation,
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
        self_link="",
        resource_version="",
    )


def keep_server_fields(old: ObjectMeta, new: ObjectMeta) -> ObjectMeta:
    """Take the fields that an update may not change from the stored object."""
    return structs.replace(
        new,
        name=old.name,
        namespace=old.namespace,
        generate_name=new.generate_name or old.generate_name,
        uid=old.uid,
        creation_timestamp=old.creation_timestamp,
        generation=old.generation,
        deletion_timestamp=old.deletion_timestamp,
        deletion_grace_period_seconds=old.deletion_grace_period_seconds,
        self_link="",
        resource_version=old.resource_version,
        managed_fields=old.managed_fields,
    )


def validate(strategy: AnyStrategy, meta: ObjectMeta) -> list[Cause]:
    return [
        *_names(strategy, meta),
        *_labels(meta),
        *_annotations(meta),
        *_owners(meta.owner_references),
        *_finalizers(meta.finalizers, qualified=strategy.kind.qualified_finalizers),
    ]


def validate_embedded(meta: ObjectMeta) -> Iterator[Cause]:
    """Validate the metadata of an embedded resource: any name that is a path segment, namespace optional."""
    for text in name_validation.path_segment_problems(meta.name, False):
        yield invalid("metadata.name", meta.name, text)
    for text in name_validation.path_segment_problems(meta.generate_name, True):
        yield invalid("metadata.generateName", meta.generate_name, text)
    yield from [*_labels(meta), *_annotations(meta), *_owners(meta.owner_references)]
    yield from _finalizers(meta.finalizers, qualified=False)


def validate_change(strategy: AnyStrategy, old: ObjectMeta, new: ObjectMeta) -> Iterator[Cause]:
    if new.labels is not old.labels and new.labels != old.labels:
        yield from _labels(new)
    if new.annotations is not old.annotations and new.annotations != old.annotations:
        yield from _annotations(new)
    if new.owner_references != old.owner_references:
        yield from _owners(new.owner_references)
    if new.finalizers != old.finalizers:
        yield from _finalizers(new.finalizers, qualified=strategy.kind.qualified_finalizers)
        yield from _late_finalizers(old, new)


def _names(strategy: AnyStrategy, meta: ObjectMeta) -> Iterator[Cause]:
    if meta.generate_name:
        wrong = strategy.validate_name(meta.generate_name, prefix=True)
        yield from [invalid("metadata.generateName", meta.generate_name, text) for text in wrong]
    if meta.name:
        yield from [invalid("metadata.name", meta.name, text) for text in strategy.validate_name(meta.name)]
    else:
        yield required_value("metadata.name", "name or generateName is required")
    if strategy.kind.namespaced and not meta.namespace:
        yield required_value("metadata.namespace")


def _labels(meta: ObjectMeta) -> Iterator[Cause]:
    for key, value in meta.labels.items():
        if not names.is_qualified(key):
            yield invalid("metadata.labels", key, _QUALIFIED)
        if len(value) > 63:
            yield invalid("metadata.labels", value, "must be no more than 63 characters")
        elif not names.is_label_value(value):
            yield invalid("metadata.labels", value, _LABEL_VALUE)


def _annotations(meta: ObjectMeta) -> list[Cause]:
    annotations = meta.annotations
    if not annotations:
        return []
    causes = [
        invalid("metadata.annotations", key, _QUALIFIED)
        for key in annotations
        if not names.is_qualified(key.lower())
    ]
    if 4 * (sum(map(len, annotations)) + sum(map(len, annotations.values()))) <= ANNOTATIONS_LIMIT:
        return causes  # a character takes at most four bytes in UTF-8: short enough without encoding
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    return (
        [*causes, too_long("metadata.annotations", ANNOTATIONS_LIMIT)] if size > ANNOTATIONS_LIMIT else causes
    )


def _owners(owners: Sequence[OwnerReference]) -> Iterator[Cause]:
    path = "metadata.ownerReferences"
    for owner in owners:
        if not owner.api_version.rpartition("/")[2]:
            yield invalid(f"{path}.apiVersion", owner.api_version, "version must not be empty")
        for word, value in (("kind", owner.kind), ("name", owner.name), ("uid", owner.uid)):
            if not value:
                yield invalid(f"{path}.{word}", value, "must not be empty")
    controllers = [o.name for o in owners if o.controller]
    if len(controllers) > 1:
        detail = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0]} and {controllers[1]}"
        )
        yield invalid(path, [o.name for o in owners], detail)


def _finalizers(finalizers: Sequence[str], *, qualified: bool) -> Iterator[Cause]:
    path = "metadata.finalizers"
    for at, name in enumerate(finalizers):
        if not names.is_qualified(name):
            yield invalid(path, name, _QUALIFIED)
        elif qualified and not is_qualified_finalizer(name):
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid(f"{path}[{at}]", name, detail)
    if ORPHAN in finalizers and FOREGROUND in finalizers:
        detail = f"finalizer {ORPHAN} and {FOREGROUND} cannot be both set"
        yield invalid(path, list(finalizers), detail)


def is_qualified_finalizer(name: str) -> bool:
    """Return whether the finalizer has a domain or is a standard one."""
    return "/" in name or name in _STANDARD_FINALIZERS


def _late_finalizers(old: ObjectMeta, new: ObjectMeta) -> list[Cause]:
    added = sorted(set(new.finalizers) - set(old.finalizers))
    if old.deletion_timestamp is None or not added:
        return []
    listed = ", ".join(f'"{name}"' for name in added)
    detail = (
        "no new finalizers can be added if the object is being deleted, "
        f"found new finalizers []string{{{listed}}}"
    )
    return [forbidden("metadata.finalizers", detail)]
