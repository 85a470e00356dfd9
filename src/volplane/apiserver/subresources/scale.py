"""*/scale: the replicas of a workload, seen and set through a small object that is alike for all kinds."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.autoscaling import Scale, ScaleSpec, ScaleStatus
from volplane.api.errors import Invalid, NotFound, invalid
from volplane.api.meta import LabelSelector, ObjectMeta
from volplane.api.selectors import Labels
from volplane.apiserver import answers, decode, effort, options
from volplane.apiserver import patch as patches
from volplane.apiserver.backend import Backend
from volplane.apiserver.negotiation import negotiate
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call, Scaling
from volplane.apiserver.verbs.update import check_name, modify
from volplane.store import Record
from volplane.web import Request, Response

KIND = kinds.of(Scale)


async def serve(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = negotiate(request.headers.get("accept"))
    if call.verb == "get":
        record = await backend.record(entry, call.namespace, call.name)
        if record is None:
            raise NotFound.of(entry.kind, call.name)
        return await answers.body(
            wanted, 200, codec.encode(scaling_of(entry).view(entry.feed.object(record)))
        )
    outcome = await modify(backend, entry, call, _change(entry, call, request))
    return await answers.body(wanted, 200, codec.encode(scaling_of(entry).view(outcome.obj)))


def scaling_of(entry: Entry) -> Scaling:
    """Workloads are alike; a custom kind says where its replicas stand."""
    return entry.strategy.scaling or WORKLOAD


class _Workload:
    def view(self, workload: Any) -> Scale:
        return scale_of(workload)

    def current(self, workload: Any) -> Scale:
        return scale_of(workload)

    def set(self, workload: Any, replicas: int) -> Any:
        return structs.replace(workload, spec=structs.replace(workload.spec, replicas=replicas))


WORKLOAD = _Workload()


def scale_of(workload: Any) -> Scale:
    meta = workload.metadata
    return Scale(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
        ),
        spec=ScaleSpec(replicas=workload.spec.replicas or 0),
        status=ScaleStatus(replicas=workload.status.replicas, selector=str(_selector(workload))),
    )


def _selector(workload: Any) -> Labels:
    selector = workload.spec.selector
    if not isinstance(selector, LabelSelector):  # a ReplicationController's are bare labels
        selector = LabelSelector(match_labels=selector or {})
    return Labels.of(selector)


def _patched(request: Request, current: dict[str, Any], validation: str) -> Scale:
    found: list[str] = []
    content_type = request.headers.get("content-type")
    result = patches.apply_patch(KIND, content_type, current, request.body, findings=found)
    scale: Scale = decode.canonical(KIND, result, validation, findings=found)[0]
    return scale


def _change(entry: Entry, call: Call, request: Request) -> Any:
    validation = options.field_validation(request.query, call.verb)
    scaling, shape = scaling_of(entry), entry.shape

    async def scaled(workload: Any, record: Record) -> Any:
        if call.verb == "update":
            scale, _ = await decode.decode_request(KIND, request, validation)
        else:
            current = codec.builtins(scaling.current(workload))
            scale = await effort.run(len(request.body), [], _patched, request, current, validation)
        check_name(call, scale.metadata)
        if scale.spec.replicas < 0:
            told = invalid("spec.replicas", scale.spec.replicas, "must be greater than or equal to 0")
            raise Invalid.of(KIND, call.name, [told])
        given, meta = scale.metadata, shape.metadata(workload)
        meta = structs.replace(
            meta,
            resource_version=given.resource_version or meta.resource_version,
            uid=given.uid or meta.uid,
        )
        return shape.with_metadata(scaling.set(workload, scale.spec.replicas), meta)

    return scaled
