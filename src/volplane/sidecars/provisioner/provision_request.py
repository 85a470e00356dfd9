"""A provision request: everything that CreateVolume is called with and the PersistentVolume is created from.

It is written to the claim before the driver is called, so that the same call can be repeated after a crash:
only then does the driver recognise a volume that it may have created already. It names secrets, and does not
contain them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from volplane.api import quantity
from volplane.api.annotations import PROVISIONED_BY_ANNOTATION
from volplane.api.core import (
    CSIPersistentVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    SecretReference,
    VolumeNodeAffinity,
)
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER, PROVISIONING_INTENT_FINALIZER
from volplane.api.meta import ObjectMeta
from volplane.rules.csi_translation import TRANSLATED_PLUGINS, translate_to_in_tree
from volplane.sidecars.provisioner.sources import SourceContent
from volplane.sidecars.provisioner.topology import TopologyTerms

DELETION_SECRET = "volume.kubernetes.io/provisioner-deletion-secret-"
MODIFY_SECRET = "volume.kubernetes.io/controller-modify-secret-"
IDENTITY = "storage.kubernetes.io/csiProvisionerIdentity"


class VolumeSecrets(Struct, frozen=True, omit_defaults=True):
    """Secrets by operation; `provisioner` is for CreateVolume and DeleteVolume."""

    provisioner: SecretReference | None = None
    controller_publish: SecretReference | None = None
    node_stage: SecretReference | None = None
    node_publish: SecretReference | None = None
    controller_expand: SecretReference | None = None
    node_expand: SecretReference | None = None
    controller_modify: SecretReference | None = None


class ProvisionRequest(Struct, frozen=True, omit_defaults=True):
    driver: str
    name: str  # of the PersistentVolume
    size: int
    modes: tuple[str, ...] = ()
    block: bool = False
    fs_type: str = ""
    mount_options: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    mutable_parameters: Mapping[str, str] = field(default_factory=dict)
    topological: bool = False  # the driver has VOLUME_ACCESSIBILITY_CONSTRAINTS
    topology: TopologyTerms | None = None
    node: str = ""  # selected by the scheduler
    content: SourceContent | None = None  # what the volume is copied from
    secrets: VolumeSecrets = VolumeSecrets()
    storage_class: str = ""
    class_uid: str = ""
    provisioner: str = ""  # as the class names the driver; may be the name of an in-tree plugin
    reclaim_policy: str = "Delete"
    read_only: bool = False

    @property
    def is_migrated(self) -> bool:
        """Whether the class names an in-tree plugin."""
        return self.provisioner in TRANSLATED_PLUGINS


class CreatedVolume(Struct, frozen=True):
    """What the driver returned."""

    handle: str
    size: int = 0  # 0: as requested
    context: Mapping[str, str] = {}
    topologies: tuple[Mapping[str, str], ...] = ()


def encode_request(provision_request: ProvisionRequest) -> str:
    return msgspec.json.encode(provision_request).decode()


def read_request(claim: PersistentVolumeClaim, driver: str) -> ProvisionRequest | None:
    """The request that is in progress for the claim, if it is for this driver."""
    text = claim.metadata.annotations.get(PROVISIONING_INTENT_FINALIZER)
    if text is None or PROVISIONING_INTENT_FINALIZER not in claim.metadata.finalizers:
        return None
    try:
        provision_request = msgspec.json.decode(text, type=ProvisionRequest)
    except msgspec.MsgspecError:
        return None  # edited by hand: treat it as missing
    return provision_request if provision_request.driver == driver else None


def build_volume(
    claim: PersistentVolumeClaim, provision_request: ProvisionRequest, created: CreatedVolume, identity: str
) -> PersistentVolume:
    """The PersistentVolume of a volume that the driver has created: in-tree if its class is.

    Raises UntranslatableObject.
    """
    secrets = provision_request.secrets
    source = CSIPersistentVolumeSource(
        driver=provision_request.driver,
        volume_handle=created.handle,
        fs_type="" if provision_request.block else provision_request.fs_type,
        read_only=provision_request.read_only,
        volume_attributes={**created.context, IDENTITY: identity},
        controller_publish_secret_ref=secrets.controller_publish,
        node_stage_secret_ref=secrets.node_stage,
        node_publish_secret_ref=secrets.node_publish,
        controller_expand_secret_ref=secrets.controller_expand,
        node_expand_secret_ref=secrets.node_expand,
    )
    spec = PersistentVolumeSpec(
        capacity={"storage": quantity.from_bytes(created.size or provision_request.size)},
        access_modes=claim.spec.access_modes,
        claim_ref=_reference(claim),
        storage_class_name=provision_request.storage_class,
        persistent_volume_reclaim_policy=provision_request.reclaim_policy,
        mount_options=provision_request.mount_options,
        volume_mode=claim.spec.volume_mode,
        volume_attributes_class_name=claim.spec.volume_attributes_class_name or None,
        node_affinity=_affinity(created.topologies) if provision_request.topological else None,
        csi=source,
    )
    metadata = ObjectMeta(
        name=provision_request.name,
        annotations=_annotations(provision_request),
        finalizers=(EXTERNAL_PROVISIONER_FINALIZER,),
    )
    volume = PersistentVolume(metadata=metadata, spec=spec)
    return translate_to_in_tree(volume) if provision_request.is_migrated else volume


def _reference(claim: PersistentVolumeClaim) -> ObjectReference:
    return ObjectReference(
        kind="PersistentVolumeClaim",
        api_version="v1",
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        resource_version=claim.metadata.resource_version,
    )


def _annotations(provision_request: ProvisionRequest) -> dict[str, str]:
    deletion = provision_request.secrets.provisioner or SecretReference()
    annotations = {
        PROVISIONED_BY_ANNOTATION: provision_request.provisioner,
        DELETION_SECRET + "name": deletion.name,
        DELETION_SECRET + "namespace": deletion.namespace,
    }
    if modify := provision_request.secrets.controller_modify:
        annotations |= {MODIFY_SECRET + "name": modify.name, MODIFY_SECRET + "namespace": modify.namespace}
    return annotations


def _affinity(topologies: tuple[Mapping[str, str], ...]) -> VolumeNodeAffinity | None:
    if not topologies:
        return None
    terms = tuple(
        NodeSelectorTerm(
            match_expressions=tuple(
                NodeSelectorRequirement(key=key, operator="In", values=(segments[key],))
                for key in sorted(segments)
            )
        )
        for segments in topologies
    )
    return VolumeNodeAffinity(required=NodeSelector(node_selector_terms=terms))
