"""PersistentVolume and its sources."""

from collections.abc import Mapping

from volplane.api.core.refs import ObjectReference, SecretReference
from volplane.api.core.selectors import NodeSelector
from volplane.api.core.volume import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    FCVolumeSource,
    FlockerVolumeSource,
    GCEPersistentDiskVolumeSource,
    HostPathVolumeSource,
    NFSVolumeSource,
    PhotonPersistentDiskVolumeSource,
    PortworxVolumeSource,
    QuobyteVolumeSource,
    VsphereVirtualDiskVolumeSource,
)
from volplane.api.meta import Resource
from volplane.api.object import Object, Quantity, Time, field, no_omitempty


class GlusterfsPersistentVolumeSource(Object):
    endpoints: str = no_omitempty(factory=str)
    path: str = no_omitempty(factory=str)
    read_only: bool = False
    endpoints_namespace: str | None = None


class RBDPersistentVolumeSource(Object):
    monitors: tuple[str, ...] = no_omitempty(factory=tuple)
    image: str = no_omitempty(factory=str)
    fs_type: str = ""
    pool: str = ""
    user: str = ""
    keyring: str = ""
    secret_ref: SecretReference | None = None
    read_only: bool = False


class ISCSIPersistentVolumeSource(Object):
    target_portal: str = no_omitempty(factory=str)
    iqn: str = no_omitempty(factory=str)
    lun: int = no_omitempty(factory=int)
    iscsi_interface: str = ""
    fs_type: str = ""
    read_only: bool = False
    portals: tuple[str, ...] = ()
    chap_auth_discovery: bool = False
    chap_auth_session: bool = False
    secret_ref: SecretReference | None = None
    initiator_name: str | None = None


class CinderPersistentVolumeSource(Object):
    volume_id: str = no_omitempty(factory=str, name="volumeID")
    fs_type: str = ""
    read_only: bool = False
    secret_ref: SecretReference | None = None


class CephFSPersistentVolumeSource(Object):
    monitors: tuple[str, ...] = no_omitempty(factory=tuple)
    path: str = ""
    user: str = ""
    secret_file: str = ""
    secret_ref: SecretReference | None = None
    read_only: bool = False


class FlexPersistentVolumeSource(Object):
    driver: str = no_omitempty(factory=str)
    fs_type: str = ""
    secret_ref: SecretReference | None = None
    read_only: bool = False
    options: Mapping[str, str] = {}


class AzureFilePersistentVolumeSource(Object):
    secret_name: str = no_omitempty(factory=str)
    share_name: str = no_omitempty(factory=str)
    read_only: bool = False
    secret_namespace: str | None = None


class ScaleIOPersistentVolumeSource(Object):
    gateway: str = no_omitempty(factory=str)
    system: str = no_omitempty(factory=str)
    secret_ref: SecretReference | None = None
    ssl_enabled: bool = False
    protection_domain: str = ""
    storage_pool: str = ""
    storage_mode: str = ""
    volume_name: str = ""
    fs_type: str = ""
    read_only: bool = False


class LocalVolumeSource(Object):
    path: str = no_omitempty(factory=str)
    fs_type: str | None = None


class StorageOSPersistentVolumeSource(Object):
    volume_name: str = ""
    volume_namespace: str = ""
    fs_type: str = ""
    read_only: bool = False
    secret_ref: ObjectReference | None = None


class CSIPersistentVolumeSource(Object):
    driver: str = no_omitempty(factory=str)
    volume_handle: str = no_omitempty(factory=str)
    read_only: bool = False
    fs_type: str = ""
    volume_attributes: Mapping[str, str] = {}
    controller_publish_secret_ref: SecretReference | None = None
    node_stage_secret_ref: SecretReference | None = None
    node_publish_secret_ref: SecretReference | None = None
    controller_expand_secret_ref: SecretReference | None = None
    node_expand_secret_ref: SecretReference | None = None


class VolumeNodeAffinity(Object):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Object):
    capacity: Mapping[str, Quantity] = {}
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    glusterfs: GlusterfsPersistentVolumeSource | None = None
    nfs: NFSVolumeSource | None = None
    rbd: RBDPersistentVolumeSource | None = None
    iscsi: ISCSIPersistentVolumeSource | None = None
    cinder: CinderPersistentVolumeSource | None = None
    cephfs: CephFSPersistentVolumeSource | None = None
    fc: FCVolumeSource | None = None
    flocker: FlockerVolumeSource | None = None
    flex_volume: FlexPersistentVolumeSource | None = None
    azure_file: AzureFilePersistentVolumeSource | None = None
    vsphere_volume: VsphereVirtualDiskVolumeSource | None = None
    quobyte: QuobyteVolumeSource | None = None
    azure_disk: AzureDiskVolumeSource | None = None
    photon_persistent_disk: PhotonPersistentDiskVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None
    scale_io: ScaleIOPersistentVolumeSource | None = field(name="scaleIO", default=None)
    local: LocalVolumeSource | None = None
    storageos: StorageOSPersistentVolumeSource | None = None
    csi: CSIPersistentVolumeSource | None = None
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    mount_options: tuple[str, ...] = ()
    volume_mode: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeStatus(Object):
    phase: str = ""
    message: str = ""
    reason: str = ""
    last_phase_transition_time: Time | None = None


class PersistentVolume(Resource):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()
