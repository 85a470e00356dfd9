"""Build patches: the style, and the preconditions in the body.

Every API server answers Conflict if a merge patch contains another uid or resourceVersion than the object
has. A JSON patch expresses the same with `test`, whose failure is Invalid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from volplane.client.transport import PatchBody, PatchStyle


class PatchOptions(TypedDict, total=False):
    merge: Mapping[str, Any]
    strategic: Mapping[str, Any]
    json: Sequence[Mapping[str, Any]]
    apply: Mapping[str, Any]
    subresource: str
    uid: str  # precondition
    revision: str  # precondition
    force: bool  # with apply: take fields that others own


STYLES = {
    "merge": PatchStyle.MERGE,
    "strategic": PatchStyle.STRATEGIC,
    "json": PatchStyle.JSON,
    "apply": PatchStyle.APPLY,
}


def build_patch(options: PatchOptions) -> tuple[PatchBody, PatchStyle]:
    given = [name for name in STYLES if name in options]
    if len(given) != 1:
        raise TypeError(f"a patch is exactly one of {', '.join(STYLES)}, not {given}")
    patch: PatchBody = options[given[0]]  # type: ignore[literal-required]
    facts = {}
    if uid := options.get("uid"):
        facts["uid"] = uid
    if revision := options.get("revision"):
        facts["resourceVersion"] = revision
    return _add_preconditions(patch, facts), STYLES[given[0]]


def _add_preconditions(patch: PatchBody, facts: Mapping[str, str]) -> PatchBody:
    if not facts:
        return patch
    if isinstance(patch, Mapping):
        return {**patch, "metadata": {**patch.get("metadata", {}), **facts}}
    return [*({"op": "test", "path": f"/metadata/{k}", "value": v} for k, v in facts.items()), *patch]
