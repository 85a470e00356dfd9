"""storage.k8s.io/v1: classes, attachments, CSI drivers and nodes, capacity."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.core import PersistentVolumeSpec, TopologySelectorTerm
from volplane.api.meta import LabelSelector, Resource
from volplane.api.object import Object, Quantity, Time, merge, no_omitempty, set_list


class StorageClass(Resource):
    provisioner: str = no_omitempty(factory=str)
    parameters: Mapping[str, str] = {}
    reclaim_policy: str | None = None
    mount_options: tuple[str, ...] = ()
    allow_volume_expansion: bool | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class VolumeAttachmentSource(Object):
    persistent_volume_name: str | None = None
    inline_volume_spec: PersistentVolumeSpec | None = None


class VolumeAttachmentSpec(Object):
    attacher: str = no_omitempty(factory=str)
    source: VolumeAttachmentSource = VolumeAttachmentSource()
    node_name: str = no_omitempty(factory=str)


class VolumeError(Object):
    time: Time = ""
    message: str = ""
    error_code: int | None = None


class VolumeAttachmentStatus(Object):
    attached: bool = no_omitempty(factory=bool)
    attachment_metadata: Mapping[str, str] = {}
    attach_error: VolumeError | None = None
    detach_error: VolumeError | None = None


class VolumeAttachment(Resource):
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
    status: VolumeAttachmentStatus = no_omitempty(
        factory=VolumeAttachmentStatus
    )  # attached: false is on the wire


class TokenRequest(Object):
    audience: str = no_omitempty(factory=str)
    expiration_seconds: int | None = None


class CSIDriverSpec(Object):
    attach_required: bool | None = None
    pod_info_on_mount: bool | None = None
    volume_lifecycle_modes: Annotated[tuple[str, ...], set_list] = ()
    storage_capacity: bool | None = None
    fs_group_policy: str | None = None
    token_requests: tuple[TokenRequest, ...] = ()
    requires_republish: bool | None = None
    se_linux_mount: bool | None = None
    node_allocatable_update_period_seconds: int | None = None
    service_account_token_in_secrets: bool | None = None


class CSIDriver(Resource):
    spec: CSIDriverSpec = CSIDriverSpec()


class VolumeNodeResources(Object):
    count: int | None = None


class CSINodeDriver(Object):
    name: str = no_omitempty(factory=str)
    node_id: str = no_omitempty(factory=str, name="nodeID")
    topology_keys: tuple[str, ...] = no_omitempty(factory=tuple)
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Object):
    drivers: Annotated[tuple[CSINodeDriver, ...], merge("name")] = no_omitempty(factory=tuple)


class CSINode(Resource):
    spec: CSINodeSpec = CSINodeSpec()


class CSIStorageCapacity(Resource):
    node_topology: LabelSelector | None = None
    storage_class_name: str = no_omitempty(factory=str)
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None


class VolumeAttributesClass(Resource):
    driver_name: str = no_omitempty(factory=str)
    parameters: Mapping[str, str] = {}
