"""From `kubectl apply` to `kubectl apply --server-side` without conflicts with oneself.

Client-side apply leaves what it applied in an annotation. Fields that are there with the value they still
have were kubectl's own, so kubectl may change them without being asked to insist; and where the annotation
exists it is kept up to date, so that the way back works too. Only for the manager `kubectl`.
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
    """The fields that client-side apply set and nobody has changed since."""
    try:
        last = msgspec.json.decode(annotation_of(live) or b"null")
    except msgspec.DecodeError:
        return {}
    if not isinstance(last, dict) or last.get("apiVersion") != version:
        return {}
    mine = {k: v for k, v in last.items() if k not in ("apiVersion", "kind")}
    try:
        changed, removed = document.differ(of, mine, live)
        owned = document.collect(of, mine)
    except document.UntypableItem:
        return {}
    return fields.difference(owned, fields.union(changed, removed))


def update_annotation(result: Map, config: Map) -> Map:
    """The object with its annotation saying what was applied now; as it is where there is none."""
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
