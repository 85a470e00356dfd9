"""Server-side apply: merge a configuration into the object of its name, or create the object.

The configuration is partial, so it stays plain data until it is merged; only the result is converted and then
written like an update. Undeclared fields and invalid list items are refused before merging.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import structs

from volplane.api.errors import AlreadyExists, BadRequest, Conflict
from volplane.api.meta import ObjectMeta
from volplane.apiserver import cpu_offload, decode
from volplane.apiserver.apply import document, lastapplied, managed, merging, tracking
from volplane.apiserver.apply.managed import Entries, Managed
from volplane.apiserver.apply.merging import ApplyConflict, ApplyRequest, ApplyResult
from volplane.apiserver.backend import Backend, WriteResult
from volplane.apiserver.decode.canonicalize import TypeMismatch, walker
from volplane.apiserver.decode.go_errors import type_error
from volplane.apiserver.decode.limits import MalformedBody
from volplane.apiserver.decode.parse import parse_json
from volplane.apiserver.decode.yaml_text import parse_yaml
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.create import create, resolve_namespace
from volplane.apiserver.verbs.patch import to_plain, without_owners
from volplane.apiserver.verbs.update import check_name, modify, part_of
from volplane.store import StoreRecord

Map = dict[str, Any]


async def apply(
    backend: Backend,
    entry: ServedResource,
    call: ApiCall,
    body: bytes,
    *,
    force: bool = False,
    validation: str = "Warn",
) -> WriteResult:
    call.size = len(body)
    size = len(body) if _is_json(body) else len(body) * decode.NON_JSON_COST
    config = await cpu_offload.run(size, call.warnings, _read, entry, call, body, validation)
    asked = ApplyRequest(
        config,
        managed.applier(call.manager, call.subresource),
        entry.kind.api_version,
        call.now,
        force,
    )
    if not call.subresource and await backend.record(entry, call.namespace, call.name) is None:
        try:
            return await _create(backend, entry, call, asked)
        except AlreadyExists:
            pass  # another writer was faster: update it

    async def merge_into(old: Any, record: StoreRecord) -> Any:
        size = len(body) + len(record.value)
        return await cpu_offload.run(size, call.warnings, _apply_to_stored, entry, call, asked, old, record)

    part = part_of(entry, call)._replace(owners=tracking.given_owners)
    return await modify(backend, entry, call, merge_into, part)


async def _create(backend: Backend, entry: ServedResource, call: ApiCall, asked: ApplyRequest) -> WriteResult:
    call.check_access("create")
    given = asked.config.get("metadata") or {}
    if uid := given.get("uid"):
        why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise Conflict.of(entry.kind, call.name, why)
    if given.get("resourceVersion"):
        raise Conflict.of(entry.kind, call.name)
    empty = entry.ownership.empty()
    outcome = await cpu_offload.run(call.size, call.warnings, _merge, entry, call, asked, {}, empty, {})
    meta = entry.access.metadata(outcome.obj)
    check_name(call, meta)
    return await create(
        backend,
        entry,
        structs.replace(call, verb="create"),
        outcome.obj,
        owners=managed.write(outcome.managed),
    )


def _apply_to_stored(
    entry: ServedResource, call: ApiCall, asked: ApplyRequest, old: Any, record: StoreRecord
) -> Any:
    """Merge the configuration into the stored object and set its owners."""
    access = entry.access
    meta = access.metadata(old)
    live = to_plain(entry, old, record)
    bare = live if entry.kind.type is None else without_owners(entry, old)
    held = managed.read(meta.managed_fields) or _first_owners(entry, call, bare)
    outcome = _merge(entry, call, asked, live, bare, held)
    owners: Entries = managed.write(outcome.managed, meta.managed_fields)
    wants: ObjectMeta = access.metadata(outcome.obj)
    check_name(call, wants)
    resolve_namespace(entry, call, wants.namespace)
    return access.with_metadata(outcome.obj, structs.replace(wants, managed_fields=owners))


def _first_owners(entry: ServedResource, call: ApiCall, obj: Any) -> Managed:
    """Return the owner of all fields of an untracked object before its first apply."""
    owned = entry.ownership.filter_ownable(entry.ownership.fields_of_new(obj), call.subresource)
    owner = managed.updater(managed.BEFORE_FIRST_APPLY, entry.kind.api_version, call.subresource)
    return managed.read(managed.first_entries(owner, call.now, owned))


def _merge(
    entry: ServedResource, call: ApiCall, asked: ApplyRequest, live: Map, live_obj: Any, held: Managed
) -> ApplyResult:
    typed = _converter(entry, call)
    kubectl = call.manager == lastapplied.MANAGER
    try:
        outcome = merging.apply(entry.ownership, typed, live, live_obj, held, asked)
    except ApplyConflict as clash:
        own = lastapplied.fields_still_applied(entry.ownership.type, asked.version, live) if kubectl else {}
        left = clash.without_fields(own)
        if left.found:
            raise left.to_conflict() from clash
        forced = structs.replace(asked, force=True)
        outcome = merging.apply(entry.ownership, typed, live, live_obj, held, forced)
    if kubectl and lastapplied.annotation_of(outcome.document):
        kind = {"apiVersion": entry.kind.api_version, "kind": entry.kind.kind}
        renewed = lastapplied.update_annotation(outcome.document, {**kind, **asked.config})
        return ApplyResult(renewed, typed(renewed), outcome.managed)
    return outcome


def _converter(entry: ServedResource, call: ApiCall) -> Callable[[Map], Any]:
    of = entry.kind.type
    if of is None:
        kind = {"apiVersion": entry.kind.api_version, "kind": entry.kind.kind}
        return lambda data: {**kind, **data}

    def convert(data: Map) -> Any:
        try:
            return msgspec.convert(data, of)
        except msgspec.ValidationError as error:
            raise _untypable(entry, call, type_error(of, error)) from error

    return convert


# The configuration


def _read(entry: ServedResource, call: ApiCall, body: bytes, validation: str) -> Map:
    """Parse and check the configuration; return it in canonical form without apiVersion and kind."""
    config, duplicates = _parse(body)
    _check_head(entry, config)
    if duplicates and validation == decode.STRICT:
        raise BadRequest(f"error strict decoding YAML: {_describe_duplicates(duplicates)}")
    if validation == decode.WARN:
        call.warnings.extend(duplicates)
    config = {k: v for k, v in config.items() if k not in ("apiVersion", "kind")}
    try:
        wrong = document.find_faults(entry.ownership.type, config)
        if wrong:
            raise _untypable(entry, call, _format_faults(wrong))
        if entry.kind.type is not None:
            walker(entry.kind.type)(config)
    except TypeMismatch as error:
        raise _untypable(entry, call, str(error)) from error
    except RecursionError as error:
        raise BadRequest("exceeded max depth") from error
    return config


def _parse(body: bytes) -> tuple[Map, list[str]]:
    try:
        document, duplicates = _parse_any(body)
    except MalformedBody as error:
        raise BadRequest(f"error decoding YAML: {error}") from error
    if not isinstance(document, dict):
        raise BadRequest(
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal "
            "into Go value of type map[string]interface {}"
        )
    return document, duplicates


def _is_json(body: bytes) -> bool:
    return body.lstrip()[:1] == b"{"


def _parse_any(body: bytes) -> tuple[Any, list[str]]:
    """Try JSON first: most clients send it, and it parses a hundred times faster than YAML."""
    if _is_json(body):
        with suppress(MalformedBody):
            document, duplicates = parse_json(body)
            # Upstream reads every configuration as YAML, which tells the lines of duplicates.
            return parse_yaml(body) if duplicates else (document, [])
    return parse_yaml(body)


def _describe_duplicates(duplicates: list[str]) -> str:
    lines = "".join(f"\n  {line}" for line in duplicates)
    return f"error converting YAML to JSON: yaml: unmarshal errors:{lines}"


def _check_head(entry: ServedResource, config: Map) -> None:
    version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    if version != entry.kind.api_version or kind != entry.kind.kind:
        raise BadRequest(f"invalid object type: {_gvk(str(version), str(kind))}")
    metadata = config.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        shown = msgspec.json.encode(metadata).decode()
        raise BadRequest(f"error decoding YAML: metadata: expected map, got {shown[:100]}")
    if metadata and metadata.get("managedFields") is not None:
        raise BadRequest("metadata.managedFields must be nil")


def _gvk(version: str, kind: str) -> str:
    group, _, name = version.rpartition("/")
    return f"{group}/{name}, Kind={kind}"


def _format_faults(faults: list[str]) -> str:
    return faults[0] if len(faults) == 1 else "\n  ".join(["errors:", *faults])


def _untypable(entry: ServedResource, call: ApiCall, why: str) -> BadRequest:
    # Upstream answers this with 500, but bad requests should get 4xx.
    what = f"{call.namespace}/{call.name}; {_gvk(entry.kind.api_version, entry.kind.kind)}"
    return BadRequest(f"failed to create typed patch object ({what}): {why}")
