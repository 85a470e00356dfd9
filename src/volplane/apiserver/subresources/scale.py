"""*/scale: reads and sets the replicas of a workload through a Scale object."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.autoscaling import Scale, ScaleSpec, ScaleStatus
from volplane.api.errors import Invalid, invalid
from volplane.api.meta import LabelSelector, ObjectMeta
from volplane.api.selectors import LabelMatcher
from volplane.apiserver import cpu_offload, decode, query_options, responses
from volplane.apiserver import patch as patches
from volplane.apiserver.backend import Backend
from volplane.apiserver.negotiation import negotiate
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall, ScaleAccess
from volplane.apiserver.verbs.update import check_name, modify
from volplane.store import StoreRecord
from volplane.web import Request, Response

KIND = kinds.of(Scale)


async def serve(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    format = negotiate(request.headers.get("accept"))
    if call.verb == "get":
        obj = entry.watch_cache.object(await backend.require(entry, call))
    else:
        obj = (await modify(backend, entry, call, _change(entry, call, request))).obj
    scale = _with_metadata(entry, scaling_of(entry).view(obj), obj)
    return await responses.object_response(format, 200, codec.encode(scale))


def scaling_of(entry: ServedResource) -> ScaleAccess:
    """Return the scale access of a custom kind, or the one that all built-in workloads share."""
    return entry.strategy.scaling or WORKLOAD


def _with_metadata(entry: ServedResource, scale: Scale, obj: Any) -> Scale:
    meta: ObjectMeta = entry.access.metadata(obj)
    metadata = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
    )
    return structs.replace(scale, metadata=metadata)


class _WorkloadScaling:
    def view(self, workload: Any) -> Scale:
        return Scale(
            spec=ScaleSpec(replicas=workload.spec.replicas or 0),
            status=ScaleStatus(replicas=workload.status.replicas, selector=str(_selector(workload))),
        )

    current = view

    def set(self, workload: Any, replicas: int) -> Any:
        return structs.replace(workload, spec=structs.replace(workload.spec, replicas=replicas))


WORKLOAD = _WorkloadScaling()


def _selector(workload: Any) -> LabelMatcher:
    selector = workload.spec.selector
    if not isinstance(selector, LabelSelector):  # a ReplicationController's are bare labels
        selector = LabelSelector(match_labels=selector or {})
    return LabelMatcher.of(selector)


def _patch_scale(request: Request, current: dict[str, Any], validation: str) -> Scale:
    found: list[str] = []
    content_type = request.headers.get("content-type")
    result = patches.apply_patch(KIND, content_type, current, request.body, findings=found)
    scale: Scale = decode.convert_patched(KIND, result, validation, findings=found)[0]
    return scale


def _change(entry: ServedResource, call: ApiCall, request: Request) -> Any:
    validation = query_options.field_validation(request.query, call.verb)
    scaling, access = scaling_of(entry), entry.access

    async def set_replicas(workload: Any, record: StoreRecord) -> Any:
        if call.verb == "update":
            scale, _ = await decode.decode_request(KIND, request, validation)
        else:
            current = codec.to_dict(_with_metadata(entry, scaling.current(workload), workload))
            scale = await cpu_offload.run(len(request.body), [], _patch_scale, request, current, validation)
        check_name(call, scale.metadata)
        if scale.spec.replicas < 0:
            cause = invalid("spec.replicas", scale.spec.replicas, "must be greater than or equal to 0")
            raise Invalid.of(KIND, call.name, [cause])
        given, meta = scale.metadata, access.metadata(workload)
        meta = structs.replace(
            meta,
            resource_version=given.resource_version or meta.resource_version,
            uid=given.uid or meta.uid,
        )
        return access.with_metadata(scaling.set(workload, scale.spec.replicas), meta)

    return set_replicas
