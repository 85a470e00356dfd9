"""The span of a write: who changed which state of which object of a volume, and the claim it belongs to."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.meta import Resource
from volplane.apiserver.strategy import ApiCall
from volplane.base import trace
from volplane.base.trace_context import root_span_id
from volplane.rules.state_changes import changed_volumes, list_changes
from volplane.rules.trace_subjects import has_new_facts, list_trace_facts, subject_of_unique_name

if TYPE_CHECKING:
    from volplane.apiserver.backend import Backend

log = logging.getLogger(__name__)

RELEASED = ("status.phase", "Bound", "Released")  # only PersistentVolumes have this phase
DECODED_IN_A_ROW = 64  # volumes, before other requests get to run
TRACED = {
    "nodes": "node",
    "pods": "pod",
    "persistentvolumeclaims": "pvc",
    "persistentvolumes": "pv",
    "volumeattachments.storage.k8s.io": "va",
}
_REFERRED: dict[str, type[Resource]] = {"pv": PersistentVolume, "pvc": PersistentVolumeClaim}


async def build_write_span(backend: Backend, call: ApiCall, subject: str, old: Any, new: Any) -> trace.span:
    """The span of one commit, to be entered around it. What goes wrong here must not fail the write."""
    made = backend.trace.span("apiserver", call.verb, subject, user=call.user.name)
    try:
        await _describe_write(backend, call, made, old, new)
    except Exception:
        log.exception("cannot record the changes of %s", subject)
    return made


async def _describe_write(backend: Backend, call: ApiCall, made: trace.span, old: Any, new: Any) -> None:
    changes, subject = list_changes(old, new), made.subject
    if changes:
        made.attrs["changes"] = changes
    if RELEASED in changes:  # tells whether the volume is deleted next
        made.attrs["reclaim policy"] = new.spec.persistent_volume_reclaim_policy
    if call.manager:
        made.attrs["manager"] = call.manager
    if call.subresource:
        made.attrs["subresource"] = call.subresource
    obj = new if new is not None else old
    if new is None or has_new_facts(old, new) or not backend.trace.index.is_known(subject):
        await _learn(backend, obj)
    if subject.startswith("node/"):
        made.traces = await _find_traces_of_volumes(backend, changes)
    elif subject.startswith("pvc/") and old is None:
        made.traces = backend.trace.index.find(subject)
        made.id = root_span_id(made.traces[0])
    if uid := obj.metadata.uid:
        made.attrs["uid"] = uid


async def _learn(backend: Backend, obj: Any) -> None:
    """Learn the traces of the object. What it refers to is read if this process has not seen it yet."""
    index = backend.trace.index
    for fact, refs in list_trace_facts(obj):
        index.learn(fact, refs)
        for ref in refs:
            kind, _, name = ref.partition("/")
            if kind in _REFERRED and not index.find(ref):
                namespace, _, short = name.rpartition("/")
                found = await backend.reader.get(_REFERRED[kind], short, namespace)
                index.learn_all(list_trace_facts(found) if found is not None else ())


async def _find_traces_of_volumes(backend: Backend, changes: list[tuple[str, str, str]]) -> tuple[str, ...]:
    """The traces of the volumes that a node lists, by their handles."""
    index, found = backend.trace.index, dict[str, None]()
    for name in changed_volumes(changes):
        subject = subject_of_unique_name(name)
        if not index.is_known(subject):
            # Another API server has stored the volume, or this one has started since.
            await _learn_all_volumes(backend)
            if not index.is_known(subject):
                index.learn(subject, ())  # inline volumes have no object: do not search for it again
        found |= dict.fromkeys(index.find(subject))
    return tuple(found)


async def _learn_all_volumes(backend: Backend) -> None:
    entry = backend.registry.of(PersistentVolume)
    listing = await backend.store.list(entry.namespace_prefix(""))
    for number, record in enumerate(listing.records):
        backend.trace.index.learn_all(list_trace_facts(entry.watch_cache.object(record)))
        if number % DECODED_IN_A_ROW == 0:
            await asyncio.sleep(0)
