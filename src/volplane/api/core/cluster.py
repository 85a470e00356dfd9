"""Namespace, Event, Secret, ConfigMap, ServiceAccount and the quota kinds."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from volplane.api.core.refs import LocalObjectReference, ObjectReference
from volplane.api.meta import Resource
from volplane.api.object import MicroTime, Object, Quantity, Time, merge, no_omitempty


class NamespaceSpec(Object):
    finalizers: tuple[str, ...] = ()


class NamespaceCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class NamespaceStatus(Object):
    phase: str = ""
    conditions: Annotated[tuple[NamespaceCondition, ...], merge("type")] = ()


class Namespace(Resource):
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class EventSource(Object):
    component: str = ""
    host: str = ""


class EventSeries(Object):
    count: int = 0
    last_observed_time: MicroTime = ""


class Event(Resource):
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: Time = ""
    last_timestamp: Time = ""
    count: int = 0
    type: str = ""
    event_time: MicroTime = ""
    series: EventSeries | None = None
    action: str = ""
    related: ObjectReference | None = None
    reporting_component: str = no_omitempty(factory=str)
    reporting_instance: str = no_omitempty(factory=str)


class Secret(Resource):
    immutable: bool | None = None
    data: Mapping[str, bytes] = {}
    string_data: Mapping[str, str] = {}
    type: str = ""


class ConfigMap(Resource):
    immutable: bool | None = None
    data: Mapping[str, str] = {}
    binary_data: Mapping[str, bytes] = {}


class ServiceAccount(Resource):
    secrets: Annotated[tuple[ObjectReference, ...], merge("name")] = ()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    automount_service_account_token: bool | None = None


class LimitRangeItem(Object):
    type: str = no_omitempty(factory=str)
    max: Mapping[str, Quantity] = {}
    min: Mapping[str, Quantity] = {}
    default: Mapping[str, Quantity] = {}
    default_request: Mapping[str, Quantity] = {}
    max_limit_request_ratio: Mapping[str, Quantity] = {}


class LimitRangeSpec(Object):
    limits: tuple[LimitRangeItem, ...] = no_omitempty(factory=tuple)


class LimitRange(Resource):
    spec: LimitRangeSpec = LimitRangeSpec()


class ScopedResourceSelectorRequirement(Object):
    scope_name: str = no_omitempty(factory=str)
    operator: str = no_omitempty(factory=str)
    values: tuple[str, ...] = ()


class ScopeSelector(Object):
    atomic: ClassVar[bool] = True
    match_expressions: tuple[ScopedResourceSelectorRequirement, ...] = ()


class ResourceQuotaSpec(Object):
    hard: Mapping[str, Quantity] = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Object):
    hard: Mapping[str, Quantity] = {}
    used: Mapping[str, Quantity] = {}


class ResourceQuota(Resource):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class ComponentCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    message: str = ""
    error: str = ""


class ComponentStatus(Resource):
    conditions: Annotated[tuple[ComponentCondition, ...], merge("type")] = ()
