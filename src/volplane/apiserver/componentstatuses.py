"""componentstatuses: a deprecated API for the health of the control plane, which kubectl still supports.

It shows the store only. The other components report their health themselves (`/readyz`, Leases, node
conditions).
"""

from __future__ import annotations

from volplane.api import codec
from volplane.api.core import ComponentCondition, ComponentStatus
from volplane.api.errors import NotFound
from volplane.api.meta import ObjectMeta
from volplane.apiserver import query_options, responses
from volplane.apiserver.backend import Backend
from volplane.apiserver.negotiation import negotiate
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.list import ListResult
from volplane.store import StoreError, StoreRecord
from volplane.web import Request, Response

STORE = "etcd-0"  # the name that clients expect, for every store
DEPRECATED = "v1 ComponentStatus is deprecated in v1.19+"


async def serve(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    call.warnings.append(DEPRECATED)
    format, include = negotiate(request.headers.get("accept")), query_options.include_object(request.query)
    record = await _store_status(backend, entry)
    if not call.name:
        options = query_options.list_options_of(request.query, entry.kind)
        found = [record] if options.selection.matches(entry.selector_reader.read(record.value)) else []
        return await responses.list_response(
            entry, ListResult(found, backend.store.revision), format, include
        )
    if call.name != STORE:
        message = f'componentstatus "{call.name}" not found'
        raise NotFound(message, details={"name": call.name, "kind": "componentstatus"})
    return await responses.record_response(entry, record, format, include)


async def _store_status(backend: Backend, entry: ServedResource) -> StoreRecord:
    try:
        await backend.store.check()
        condition = ComponentCondition(type="Healthy", status="True", message="ok")
    except StoreError as error:
        condition = ComponentCondition(type="Healthy", status="False", message=str(error))
    status = ComponentStatus(metadata=ObjectMeta(name=STORE), conditions=(condition,))
    return StoreRecord(key=entry.key("", STORE), value=codec.encode_stored(status), revision=0, created=0)
