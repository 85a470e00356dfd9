"""Write the EndpointSlices and the Endpoints of Services, woken by Services and their pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from msgspec import Struct, structs

from volplane.api.core import Endpoints, Pod, Service
from volplane.api.discovery import EndpointSlice
from volplane.controllers.endpoints.plan import (
    SERVICE_NAME,
    CreateEndpoints,
    DeleteEndpoints,
    ReplaceEndpoints,
    Step,
    plan_endpoints,
    plan_slices,
    relevant_fields,
    selects,
)
from volplane.loops.controller import Controller


class EndpointsView(Struct, frozen=True):
    service: Service | None
    pods: Sequence[Pod] = ()  # that it selects
    slices: Sequence[EndpointSlice] = ()
    endpoints: Endpoints | None = None


class ServiceEndpoints(Controller[str, EndpointsView, Step]):
    """What both controllers have in common: the key is that of a Service."""

    component = "controllermanager"

    def setup(self) -> None:
        self.services = self.watch(Service, self.keys_of_service)
        self.pods = self.watch(Pod, self.keys_of_pod)

    def keys_of_service(self, old: Service | None, new: Service | None) -> Iterable[str]:
        changed = new or old
        assert changed is not None
        return [changed.key]

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        if old is not None and new is not None and relevant_fields(old) == relevant_fields(new):
            return
        for pod in (old, new):
            if pod is not None:
                yield from (s.key for s in self.services.namespace(pod.namespace) if selects(s, pod))

    def read_service(self, key: str) -> EndpointsView:
        service = self.services.at(key)
        if service is None or service.is_deleting:
            return EndpointsView(None)
        pods = [pod for pod in self.pods.namespace(service.namespace) if selects(service, pod)]
        return EndpointsView(service, pods)

    async def act(self, key: str, view: EndpointsView, step: Step) -> None:
        match step:
            case CreateEndpoints(obj):
                await self.client.create(obj, exists_ok=True)
            case ReplaceEndpoints(old, new):
                meta = structs.replace(old.metadata, labels=new.metadata.labels)
                await self.client.update(structs.replace(new, metadata=meta))
            case DeleteEndpoints(obj):
                await self.client.delete(type(obj), obj.name, obj.namespace, uid=obj.uid, missing_ok=True)
            case _:
                assert_never(step)


class EndpointSlices(ServiceEndpoints):
    name = "endpointslice-controller"

    def setup(self) -> None:
        super().setup()
        self.slices = self.watch(EndpointSlice, self.keys_of_slice)
        self.by_service = self.slices.index("service", _service_key)

    def keys_of_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> Iterable[str]:
        for one in (old, new):
            if one is not None:
                yield from _service_key(one)

    def view(self, key: str) -> EndpointsView:
        return structs.replace(self.read_service(key), slices=self.by_service[key])

    def plan(self, view: EndpointsView) -> Iterator[Step]:
        return plan_slices(view.service, view.pods, view.slices)


class EndpointsObjects(ServiceEndpoints):
    name = "endpoints-controller"

    def setup(self) -> None:
        super().setup()
        self.endpoints = self.watch(Endpoints, self.keys_of_endpoints)

    def keys_of_endpoints(self, old: Endpoints | None, new: Endpoints | None) -> Iterable[str]:
        return [one.key for one in (new or old,) if one is not None]

    def view(self, key: str) -> EndpointsView:
        return structs.replace(self.read_service(key), endpoints=self.endpoints.at(key))

    def plan(self, view: EndpointsView) -> Iterator[Step]:
        return plan_endpoints(view.service, view.pods, view.endpoints)


def _service_key(one: EndpointSlice) -> list[str]:
    service = one.metadata.labels.get(SERVICE_NAME, "")
    return [f"{one.namespace}/{service}"] if service else []
