"""Migration from `kubectl apply` to `kubectl apply --server-side` without conflicts.

Client-side apply stores the applied configuration in an annotation. kubectl owned the fields in it that still
have the same value, so it may change them without --force-conflicts. If the annotation exists it is updated,
so that users can switch back. This applies to the manager `kubectl` only.
"""

from __future__ import annotations

from typing import Any

import msgspec

from volplane.apiserver.apply import document, fields
from volplane.apiserver.apply.fields import Fields
from volplane.apiserver.apply.types import ApplyType

MANAGER = "kubectl"
ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"

Map = dict[str, Any]
_encode = msgspec.json.Encoder(order="sorted").encode


def annotation_of(data: Map) -> str:
    annotations = (data.get("metadata") or {}).get("annotations") or {}
    text = annotations.get(ANNOTATION)
    return text if isinstance(text, str) else ""


def fields_still_applied(of: ApplyType, version: str, live: Map) -> Fields:
    """Return the fields that client-side apply set and that have not changed since."""
    try:
        last = msgspec.json.decode(annotation_of(live) or b"null")
    except msgspec.DecodeError:
        return {}
    if not isinstance(last, dict) or last.get("apiVersion") != version:
        return {}
    applied = {k: v for k, v in last.items() if k not in ("apiVersion", "kind")}
    try:
        changed, removed = document.differ(of, applied, live)
        owned = document.collect(of, applied)
    except document.UntypableItem:
        return {}
    return fields.difference(owned, fields.union(changed, removed))


def update_annotation(result: Map, config: Map) -> Map:
    """Update the annotation with the configuration applied now, if the object has one."""
    if not annotation_of(result):
        return result
    metadata = dict(config.get("metadata") or {})
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != ANNOTATION}
    if annotations:
        metadata["annotations"] = annotations
    else:
        metadata.pop("annotations", None)
    text = _encode({**config, "metadata": metadata}).decode() + "\n"
    kept = {**result["metadata"]["annotations"], ANNOTATION: text}
    return {**result, "metadata": {**result["metadata"], "annotations": kept}}
