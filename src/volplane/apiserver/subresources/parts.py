"""Endpoints that write one part of an object and leave the rest as stored."""

from __future__ import annotations

from msgspec import structs

from volplane.api.core import Namespace, Pod
from volplane.api.errors import Cause, forbidden
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.update import Part


def _new(call: Call, old: object, new: object) -> object:
    return new


def _fine(call: Call, old: object, new: object) -> list[Cause]:
    return []


def _finalizers(call: Call, old: Namespace, new: Namespace) -> Namespace:
    return structs.replace(old, spec=structs.replace(old.spec, finalizers=new.spec.finalizers))


def _ephemeral(call: Call, old: Pod, new: Pod) -> Pod:
    spec = structs.replace(old.spec, ephemeral_containers=new.spec.ephemeral_containers)
    return structs.replace(old, spec=spec)


def _only_added(call: Call, old: Pod, new: Pod) -> list[Cause]:
    had, has = old.spec.ephemeral_containers, new.spec.ephemeral_containers
    kept = {container.name: container for container in has}
    if all(kept.get(container.name) == container for container in had):
        return []
    return [forbidden("spec.ephemeralContainers", "existing ephemeral containers may not be changed")]


AS_IT_IS = Part(_new, _fine, counts=False)  # the server's own writes, judged before
FINALIZE = Part(_finalizers, _fine, counts=False)
EPHEMERAL_CONTAINERS = Part(_ephemeral, _only_added)
