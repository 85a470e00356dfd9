"""PersistentVolumeClaim."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.core.refs import TypedLocalObjectReference, TypedObjectReference
from volplane.api.meta import LabelSelector, ObjectMeta, Resource
from volplane.api.object import Object, Quantity, Time, merge, no_omitempty


class VolumeResourceRequirements(Object):
    limits: Mapping[str, Quantity] = {}
    requests: Mapping[str, Quantity] = {}


class PersistentVolumeClaimSpec(Object):
    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeResourceRequirements = VolumeResourceRequirements()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    data_source: TypedLocalObjectReference | None = None
    data_source_ref: TypedObjectReference | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimTemplate(Object):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class PersistentVolumeClaimCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_probe_time: Time = ""
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class ModifyVolumeStatus(Object):
    target_volume_attributes_class_name: str = ""
    status: str = no_omitempty(factory=str)


class PersistentVolumeClaimStatus(Object):
    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: Mapping[str, Quantity] = {}
    conditions: Annotated[tuple[PersistentVolumeClaimCondition, ...], merge("type")] = ()
    allocated_resources: Mapping[str, Quantity] = {}
    allocated_resource_statuses: Mapping[str, str] = {}
    current_volume_attributes_class_name: str | None = None
    modify_volume_status: ModifyVolumeStatus | None = None


class PersistentVolumeClaim(Resource):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()
