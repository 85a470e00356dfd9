"""From `KIND/NAME` to an answer: which object is meant, and who explains objects of its kind."""

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

# Loaded when asked for: a question about a claim does not pay for the scheduler.
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
        super().__init__(f"{kind or 'nothing'} cannot be explained; it can be: {known}")


class MissingName(ValueError):
    def __init__(self, kind: str) -> None:
        super().__init__(f"which {kind}? Write {kind}/NAME")


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
    """`pvc/data` and the like, in the namespace where its kind has one. Raises UnknownKind or NoName."""
    kind, _, name = text.partition("/")
    kind = kind.lower()
    for type in MODULES:
        facts = kinds.of(type)
        if (
            kind in (facts.plural, facts.singular, facts.resource, *facts.short_names)
            or SHORT_NAMES.get(kind) is type
        ):
            if not name:
                raise MissingName(kind)
            return ExplainTarget(type, name, namespace if facts.namespaced else "")
    raise UnsupportedKind(kind)


async def explain(scene: ClusterState, asked: ExplainTarget, obj: Any) -> ExplainResult:
    module = import_module(f"volplane.explain.{MODULES[asked.type]}")
    tell: Callable[[ClusterState, Any], Awaitable[Explanation]] = module.story
    rest: Callable[[Any], str] = module.rest
    story = await tell(scene, obj)
    return build_result(asked.text, story, scene.now, rest(obj), scene.list_unknowns())
