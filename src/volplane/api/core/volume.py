"""The volumes of a pod and their sources."""

from collections.abc import Mapping

from volplane.api.core.claim import PersistentVolumeClaimTemplate
from volplane.api.core.refs import KeyToPath, LocalObjectReference, ObjectFieldSelector, ResourceFieldSelector
from volplane.api.meta import LabelSelector
from volplane.api.object import Object, Quantity, field, no_omitempty


class HostPathVolumeSource(Object):
    path: str = no_omitempty(factory=str)
    type: str | None = None


class EmptyDirVolumeSource(Object):
    medium: str = ""
    size_limit: Quantity | None = None


class GCEPersistentDiskVolumeSource(Object):
    pd_name: str = no_omitempty(factory=str)
    fs_type: str = ""
    partition: int = 0
    read_only: bool = False


class AWSElasticBlockStoreVolumeSource(Object):
    volume_id: str = no_omitempty(factory=str, name="volumeID")
    fs_type: str = ""
    partition: int = 0
    read_only: bool = False


class GitRepoVolumeSource(Object):
    repository: str = no_omitempty(factory=str)
    revision: str = ""
    directory: str = ""


class SecretVolumeSource(Object):
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int | None = None
    optional: bool | None = None


class NFSVolumeSource(Object):
    server: str = no_omitempty(factory=str)
    path: str = no_omitempty(factory=str)
    read_only: bool = False


class ISCSIVolumeSource(Object):
    target_portal: str = no_omitempty(factory=str)
    iqn: str = no_omitempty(factory=str)
    lun: int = no_omitempty(factory=int)
    iscsi_interface: str = ""
    fs_type: str = ""
    read_only: bool = False
    portals: tuple[str, ...] = ()
    chap_auth_discovery: bool = False
    chap_auth_session: bool = False
    secret_ref: LocalObjectReference | None = None
    initiator_name: str | None = None


class GlusterfsVolumeSource(Object):
    endpoints: str = no_omitempty(factory=str)
    path: str = no_omitempty(factory=str)
    read_only: bool = False


class PersistentVolumeClaimVolumeSource(Object):
    claim_name: str = no_omitempty(factory=str)
    read_only: bool = False


class RBDVolumeSource(Object):
    monitors: tuple[str, ...] = no_omitempty(factory=tuple)
    image: str = no_omitempty(factory=str)
    fs_type: str = ""
    pool: str = ""
    user: str = ""
    keyring: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False


class FlexVolumeSource(Object):
    driver: str = no_omitempty(factory=str)
    fs_type: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False
    options: Mapping[str, str] = {}


class CinderVolumeSource(Object):
    volume_id: str = no_omitempty(factory=str, name="volumeID")
    fs_type: str = ""
    read_only: bool = False
    secret_ref: LocalObjectReference | None = None


class CephFSVolumeSource(Object):
    monitors: tuple[str, ...] = no_omitempty(factory=tuple)
    path: str = ""
    user: str = ""
    secret_file: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False


class FlockerVolumeSource(Object):
    dataset_name: str = ""
    dataset_uuid: str = field(name="datasetUUID", default="")


class DownwardAPIVolumeFile(Object):
    path: str = no_omitempty(factory=str)
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: int | None = None


class DownwardAPIVolumeSource(Object):
    items: tuple[DownwardAPIVolumeFile, ...] = ()
    default_mode: int | None = None


class FCVolumeSource(Object):
    target_wwns: tuple[str, ...] = field(name="targetWWNs", default=())
    lun: int | None = None
    fs_type: str = ""
    read_only: bool = False
    wwids: tuple[str, ...] = ()


class AzureFileVolumeSource(Object):
    secret_name: str = no_omitempty(factory=str)
    share_name: str = no_omitempty(factory=str)
    read_only: bool = False


class ConfigMapVolumeSource(Object):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: int | None = None
    optional: bool | None = None


class VsphereVirtualDiskVolumeSource(Object):
    volume_path: str = no_omitempty(factory=str)
    fs_type: str = ""
    storage_policy_name: str = ""
    storage_policy_id: str = field(name="storagePolicyID", default="")


class QuobyteVolumeSource(Object):
    registry: str = no_omitempty(factory=str)
    volume: str = no_omitempty(factory=str)
    read_only: bool = False
    user: str = ""
    group: str = ""
    tenant: str = ""


class AzureDiskVolumeSource(Object):
    disk_name: str = no_omitempty(factory=str)
    disk_uri: str = no_omitempty(factory=str, name="diskURI")
    caching_mode: str | None = None
    fs_type: str | None = None
    read_only: bool | None = None
    kind: str | None = None


class PhotonPersistentDiskVolumeSource(Object):
    pd_id: str = no_omitempty(factory=str, name="pdID")
    fs_type: str = ""


class SecretProjection(Object):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


class DownwardAPIProjection(Object):
    items: tuple[DownwardAPIVolumeFile, ...] = ()


class ConfigMapProjection(Object):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


class ServiceAccountTokenProjection(Object):
    audience: str = ""
    expiration_seconds: int | None = None
    path: str = no_omitempty(factory=str)


class ClusterTrustBundleProjection(Object):
    name: str | None = None
    signer_name: str | None = None
    label_selector: LabelSelector | None = None
    optional: bool | None = None
    path: str = no_omitempty(factory=str)


class PodCertificateProjection(Object):
    signer_name: str = ""
    key_type: str = ""
    max_expiration_seconds: int | None = None
    credential_bundle_path: str = ""
    key_path: str = ""
    certificate_chain_path: str = ""
    user_annotations: Mapping[str, str] = {}


class VolumeProjection(Object):
    secret: SecretProjection | None = None
    downward_api: DownwardAPIProjection | None = field(name="downwardAPI", default=None)
    config_map: ConfigMapProjection | None = None
    service_account_token: ServiceAccountTokenProjection | None = None
    cluster_trust_bundle: ClusterTrustBundleProjection | None = None
    pod_certificate: PodCertificateProjection | None = None


class ProjectedVolumeSource(Object):
    sources: tuple[VolumeProjection, ...] = no_omitempty(factory=tuple)
    default_mode: int | None = None


class PortworxVolumeSource(Object):
    volume_id: str = no_omitempty(factory=str, name="volumeID")
    fs_type: str = ""
    read_only: bool = False


class ScaleIOVolumeSource(Object):
    gateway: str = no_omitempty(factory=str)
    system: str = no_omitempty(factory=str)
    secret_ref: LocalObjectReference | None = None
    ssl_enabled: bool = False
    protection_domain: str = ""
    storage_pool: str = ""
    storage_mode: str = ""
    volume_name: str = ""
    fs_type: str = ""
    read_only: bool = False


class StorageOSVolumeSource(Object):
    volume_name: str = ""
    volume_namespace: str = ""
    fs_type: str = ""
    read_only: bool = False
    secret_ref: LocalObjectReference | None = None


class CSIVolumeSource(Object):
    driver: str = no_omitempty(factory=str)
    read_only: bool | None = None
    fs_type: str | None = None
    volume_attributes: Mapping[str, str] = {}
    node_publish_secret_ref: LocalObjectReference | None = None


class EphemeralVolumeSource(Object):
    volume_claim_template: PersistentVolumeClaimTemplate | None = None


class ImageVolumeSource(Object):
    reference: str = ""
    pull_policy: str = ""


class Volume(Object):
    name: str = no_omitempty(factory=str)
    host_path: HostPathVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    git_repo: GitRepoVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    nfs: NFSVolumeSource | None = None
    iscsi: ISCSIVolumeSource | None = None
    glusterfs: GlusterfsVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    rbd: RBDVolumeSource | None = None
    flex_volume: FlexVolumeSource | None = None
    cinder: CinderVolumeSource | None = None
    cephfs: CephFSVolumeSource | None = None
    flocker: FlockerVolumeSource | None = None
    downward_api: DownwardAPIVolumeSource | None = field(name="downwardAPI", default=None)
    fc: FCVolumeSource | None = None
    azure_file: AzureFileVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    vsphere_volume: VsphereVirtualDiskVolumeSource | None = None
    quobyte: QuobyteVolumeSource | None = None
    azure_disk: AzureDiskVolumeSource | None = None
    photon_persistent_disk: PhotonPersistentDiskVolumeSource | None = None
    projected: ProjectedVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None
    scale_io: ScaleIOVolumeSource | None = field(name="scaleIO", default=None)
    storageos: StorageOSVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    image: ImageVolumeSource | None = None
