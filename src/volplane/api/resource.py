"""resource.k8s.io/v1: devices and their claims."""

from collections.abc import Mapping
from typing import Annotated, Any

from volplane.api.core import NodeSelector
from volplane.api.meta import Condition, ObjectMeta, Resource
from volplane.api.object import Object, Quantity, Time, field, map_list, merge, no_omitempty


class CELDeviceSelector(Object):
    expression: str = no_omitempty(factory=str)


class DeviceSelector(Object):
    cel: CELDeviceSelector | None = None


class DeviceToleration(Object):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Object):
    requests: Mapping[str, Quantity] = {}


class ExactDeviceRequest(Object):
    device_class_name: str = no_omitempty(factory=str)
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(Object):
    name: str = no_omitempty(factory=str)
    device_class_name: str = no_omitempty(factory=str)
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(Object):
    name: str = no_omitempty(factory=str)
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Object):
    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueDeviceConfiguration(Object):
    driver: str = no_omitempty(factory=str)
    parameters: Any = None


class DeviceClaimConfiguration(Object):
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(Object):
    requests: tuple[DeviceRequest, ...] = no_omitempty(factory=tuple)
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(Object):
    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Object):
    request: str = no_omitempty(factory=str)
    driver: str = no_omitempty(factory=str)
    pool: str = no_omitempty(factory=str)
    device: str = no_omitempty(factory=str)
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = field(name="shareID", default=None)
    consumed_capacity: Mapping[str, Quantity] = {}


class DeviceAllocationConfiguration(Object):
    source: str = no_omitempty(factory=str)
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(Object):
    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(Object):
    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: Time | None = None


class ResourceClaimConsumerReference(Object):
    api_group: str = ""
    resource: str = no_omitempty(factory=str)
    name: str = no_omitempty(factory=str)
    uid: str = no_omitempty(factory=str)


class NetworkDeviceData(Object):
    interface_name: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""


class AllocatedDeviceStatus(Object):
    driver: str = no_omitempty(factory=str)
    pool: str = no_omitempty(factory=str)
    device: str = no_omitempty(factory=str)
    share_id: str | None = field(name="shareID", default=None)
    conditions: Annotated[tuple[Condition, ...], map_list("type")] = no_omitempty(factory=tuple)
    data: Any = None
    network_data: NetworkDeviceData | None = None


class ResourceClaimStatus(Object):
    allocation: AllocationResult | None = None
    reserved_for: Annotated[tuple[ResourceClaimConsumerReference, ...], merge("uid")] = ()
    devices: Annotated[
        tuple[AllocatedDeviceStatus, ...], map_list("driver", "device", "pool", "shareID")
    ] = ()


class ResourceClaim(Resource):
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(Object):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Resource):
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class ResourcePool(Object):
    name: str = no_omitempty(factory=str)
    generation: int = no_omitempty(factory=int)
    resource_slice_count: int = no_omitempty(factory=int)


class DeviceAttribute(Object):
    int_: int | None = field(name="int", default=None)
    bool_: bool | None = field(name="bool", default=None)
    string: str | None = None
    version: str | None = None


class CapacityRequestPolicyRange(Object):
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(Object):
    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(Object):
    value: Quantity = no_omitempty(factory=str)
    request_policy: CapacityRequestPolicy | None = None


class Counter(Object):
    value: Quantity = no_omitempty(factory=str)


class DeviceCounterConsumption(Object):
    counter_set: str = no_omitempty(factory=str)
    counters: Mapping[str, Counter] = {}


class DeviceTaint(Object):
    key: str = no_omitempty(factory=str)
    value: str = ""
    effect: str = no_omitempty(factory=str)
    time_added: Time | None = None


class Device(Object):
    name: str = no_omitempty(factory=str)
    attributes: Mapping[str, DeviceAttribute] = {}
    capacity: Mapping[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None


class CounterSet(Object):
    name: str = no_omitempty(factory=str)
    counters: Mapping[str, Counter] = {}


class ResourceSliceSpec(Object):
    driver: str = no_omitempty(factory=str)
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    devices: tuple[Device, ...] = ()
    per_device_node_selection: bool | None = None
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Resource):
    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceClassConfiguration(Object):
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(Object):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Resource):
    spec: DeviceClassSpec = DeviceClassSpec()
