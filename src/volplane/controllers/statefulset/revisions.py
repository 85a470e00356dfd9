"""The templates that a set had, each stored as a ControllerRevision.

Revisions are identified by their data, not by their name: returning to an older template gives the old
revision the newest number, and its pods are current again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, json

from volplane.api import codec
from volplane.api.apps import ControllerRevision, StatefulSet
from volplane.api.core import Pod, PodTemplateSpec
from volplane.api.labels import CONTROLLER_HASH_LABEL
from volplane.api.meta import ObjectMeta
from volplane.rules.workloads import owner_reference, template_hash

POD_LABEL = "controller-revision-hash"
LONGEST_PREFIX = 223


class TemplateRevision(Struct, frozen=True):
    """A template under its revision's name."""

    name: str
    template: PodTemplateSpec


class RevisionHistory(Struct, frozen=True):
    """The current and the update revision, and the writes that follow."""

    current: TemplateRevision
    update: TemplateRevision
    create: ControllerRevision | None = None
    renumber: tuple[ControllerRevision, int] | None = None


def history(wanted: StatefulSet, revisions: Iterable[ControllerRevision]) -> RevisionHistory:
    known = sorted(revisions, key=_order)
    newest = known[-1].number if known else 0
    data = data_of(wanted.spec.template)
    same = [r for r in known if r.data == data]
    create = None if same else new_revision(wanted, data, newest + 1)
    held = same[-1] if same else create
    assert held is not None
    update = TemplateRevision(held.name, wanted.spec.template)
    before = next((r for r in known if r.name == wanted.status.current_revision), None)
    return RevisionHistory(
        current=update
        if before is None or before.name == held.name
        else TemplateRevision(before.name, _read(before)),
        update=update,
        create=create,
        renumber=(held, newest + 1) if same and held.number < newest else None,
    )


def last_known(wanted: StatefulSet) -> RevisionHistory:
    """By name only, for a set that creates no more pods."""
    status, template = wanted.status, wanted.spec.template
    return RevisionHistory(
        TemplateRevision(status.current_revision, template),
        TemplateRevision(status.update_revision, template),
    )


def _order(revision: ControllerRevision) -> tuple[int, str, str]:
    return revision.number, revision.metadata.creation_timestamp, revision.name


def data_of(template: PodTemplateSpec) -> Mapping[str, Any]:
    """The data of a revision: a patch that restores the template, as JSON (lists, not tuples)."""
    return {"spec": {"template": {**json.decode(json.encode(template)), "$patch": "replace"}}}


def _read(revision: ControllerRevision) -> PodTemplateSpec:
    return codec.convert(PodTemplateSpec, revision.data["spec"]["template"])


def new_revision(wanted: StatefulSet, data: Mapping[str, Any], number: int) -> ControllerRevision:
    word = template_hash(wanted.spec.template, wanted.status.collision_count or 0)
    metadata = ObjectMeta(
        name=f"{wanted.name[:LONGEST_PREFIX]}-{word}",
        namespace=wanted.namespace,
        labels={**wanted.spec.template.metadata.labels, CONTROLLER_HASH_LABEL: word},
        annotations=wanted.metadata.annotations,
        owner_references=(owner_reference(wanted),),
    )
    return ControllerRevision(metadata=metadata, data=data, number=number)


def revisions_to_delete(
    wanted: StatefulSet, held: RevisionHistory, revisions: Iterable[ControllerRevision], pods: Sequence[Pod]
) -> list[ControllerRevision]:
    """The oldest unused revisions beyond revisionHistoryLimit."""
    limit = 10 if wanted.spec.revision_history_limit is None else wanted.spec.revision_history_limit
    live = {held.current.name, held.update.name, *(p.metadata.labels.get(POD_LABEL, "") for p in pods)}
    past = sorted((r for r in revisions if r.name not in live), key=_order)
    return past[: len(past) - limit] if 0 <= limit < len(past) else []
