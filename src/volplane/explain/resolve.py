"""From `KIND/NAME` to a result: which object is meant, and which module explains its kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from msgspec import Struct

from volplane.api import kinds
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.snapshot import VolumeSnapshot
from volplane.api.storage import VolumeAttachment
from volplane.explain.cluster_state import ClusterState
from volplane.explain.result import ExplainResult, Explanation, build_result

# Imported on demand: explaining a claim does not import the scheduler.
MODULES: dict[type[Resource], str] = {
    PersistentVolumeClaim: "claims",
    PersistentVolume: "volumes",
    Pod: "pods",
    VolumeAttachment: "attachments",
    Node: "nodes",
    VolumeSnapshot: "snapshots",
}
SHORT_NAMES = {"va": VolumeAttachment, "vs": VolumeSnapshot}


class UnsupportedKind(ValueError):
    def __init__(self, kind: str) -> None:
        known = ", ".join(sorted(kinds.of(type).singular for type in MODULES))
        super().__init__(f"cannot explain kind {kind or '(none)'}; choose one of: {known}")


class MissingName(ValueError):
    def __init__(self, kind: str) -> None:
        super().__init__(f"the name is missing: write {kind}/NAME")


class ExplainTarget(Struct, frozen=True):
    type: type[Resource]
    name: str
    namespace: str = ""

    @property
    def text(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        facts = kinds.of(self.type)
        kind = (
            facts.short_names[0] if self.type in (PersistentVolumeClaim, PersistentVolume) else facts.singular
        )
        return f"{kind}/{where}{self.name}"


def parse_target(text: str, namespace: str) -> ExplainTarget:
    """Parse `pvc/data`; kinds without a namespace ignore it. Raises UnsupportedKind or MissingName."""
    kind, _, name = text.partition("/")
    type = parse_kind(kind.lower())
    if not name:
        raise MissingName(kind.lower())
    return ExplainTarget(type, name, namespace if kinds.of(type).namespaced else "")


def parse_kind(kind: str) -> type[Resource]:
    """The kind of `pvc`, `persistentvolumeclaims` and so on. Raises UnsupportedKind."""
    for type in MODULES:
        facts = kinds.of(type)
        spellings = (facts.plural, facts.singular, facts.resource, *facts.short_names)
        if kind in spellings or SHORT_NAMES.get(kind) is type:
            return type
    raise UnsupportedKind(kind)


async def explain(state: ClusterState, target: ExplainTarget, obj: Any) -> ExplainResult:
    module = import_module(f"volplane.explain.{MODULES[target.type]}")
    explain_object: Callable[[ClusterState, Any], Awaitable[Explanation]] = module.explain
    summarize: Callable[[Any], str] = module.summarize
    explanation = await explain_object(state, obj)
    return build_result(target.text, explanation, state.now, summarize(obj), state.list_unknowns())
