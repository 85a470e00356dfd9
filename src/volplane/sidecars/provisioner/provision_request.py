"""An order: everything that CreateVolume is called with, and that the volume's object is made from later.

It is written down on the claim before the driver is called. Whoever finds it there, after a crash or a
year, can repeat the very same call: only so does a driver recognise the volume it may have made already.
Secrets are in it by name only.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from volplane.api import quantity
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
from volplane.api.meta import ObjectMeta
from volplane.rules import binding
from volplane.sidecars.provisioner.sources import SourceContent
from volplane.sidecars.provisioner.topology import TopologyTerms

INTENT = "volplane.dev/provisioning"  # finalizer, and annotation with the order, on the claim

DELETION_SECRET = "volume.kubernetes.io/provisioner-deletion-secret-"
MODIFY_SECRET = "volume.kubernetes.io/controller-modify-secret-"
IDENTITY = "storage.kubernetes.io/csiProvisionerIdentity"


class VolumeSecrets(Struct, frozen=True, omit_defaults=True):
    """By operation; the first is for CreateVolume and DeleteVolume."""

    provisioner: SecretReference | None = None
    controller_publish: SecretReference | None = None
    node_stage: SecretReference | None = None
    node_publish: SecretReference | None = None
    controller_expand: SecretReference | None = None
    node_expand: SecretReference | None = None
    controller_modify: SecretReference | None = None


class ProvisionRequest(Struct, frozen=True, omit_defaults=True):
    driver: str
    name: str  # of the volume to be
    size: int
    modes: tuple[str, ...] = ()
    block: bool = False
    fs_type: str = ""
    mount_options: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    mutable_parameters: Mapping[str, str] = field(default_factory=dict)
    topological: bool = False  # the driver has its volumes in places
    topology: TopologyTerms | None = None
    node: str = ""  # selected by the scheduler
    content: SourceContent | None = None  # what the volume is a copy of
    secrets: VolumeSecrets = VolumeSecrets()
    storage_class: str = ""
    class_uid: str = ""
    provisioner: str = ""  # the class's word for the driver, an old in-tree name perhaps
    reclaim_policy: str = "Delete"
    read_only: bool = False


class CreatedVolume(Struct, frozen=True):
    """What the driver answered."""

    handle: str
    size: int = 0  # 0: as ordered
    context: Mapping[str, str] = {}
    topologies: tuple[Mapping[str, str], ...] = ()


def encode_request(order: ProvisionRequest) -> str:
    return msgspec.json.encode(order).decode()


def read_request(claim: PersistentVolumeClaim, driver: str) -> ProvisionRequest | None:
    """The order that is under way for the claim, if it is this driver's."""
    text = claim.metadata.annotations.get(INTENT)
    if text is None or INTENT not in claim.metadata.finalizers:
        return None
    try:
        order = msgspec.json.decode(text, type=ProvisionRequest)
    except msgspec.MsgspecError:
        return None  # edited by hand: as good as none
    return order if order.driver == driver else None


def has_intent(claim: PersistentVolumeClaim) -> bool:
    return INTENT in claim.metadata.finalizers or INTENT in claim.metadata.annotations


def build_volume(
    claim: PersistentVolumeClaim, order: ProvisionRequest, made: CreatedVolume, identity: str
) -> PersistentVolume:
    """The volume's object."""
    secrets = order.secrets
    source = CSIPersistentVolumeSource(
        driver=order.driver,
        volume_handle=made.handle,
        fs_type="" if order.block else order.fs_type,
        read_only=order.read_only,
        volume_attributes={**made.context, IDENTITY: identity},
        controller_publish_secret_ref=secrets.controller_publish,
        node_stage_secret_ref=secrets.node_stage,
        node_publish_secret_ref=secrets.node_publish,
        controller_expand_secret_ref=secrets.controller_expand,
        node_expand_secret_ref=secrets.node_expand,
    )
    spec = PersistentVolumeSpec(
        capacity={"storage": quantity.from_bytes(made.size or order.size)},
        access_modes=claim.spec.access_modes,
        claim_ref=_reference(claim),
        storage_class_name=order.storage_class,
        persistent_volume_reclaim_policy=order.reclaim_policy,
        mount_options=order.mount_options,
        volume_mode=claim.spec.volume_mode,
        volume_attributes_class_name=claim.spec.volume_attributes_class_name or None,
        node_affinity=_affinity(made.topologies) if order.topological else None,
        csi=source,
    )
    metadata = ObjectMeta(
        name=order.name, annotations=_annotations(order), finalizers=(binding.EXTERNAL_FINALIZER,)
    )
    return PersistentVolume(metadata=metadata, spec=spec)


def _reference(claim: PersistentVolumeClaim) -> ObjectReference:
    return ObjectReference(
        kind="PersistentVolumeClaim",
        api_version="v1",
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        resource_version=claim.metadata.resource_version,
    )


def _annotations(order: ProvisionRequest) -> dict[str, str]:
    deletion = order.secrets.provisioner or SecretReference()
    annotations = {
        binding.PROVISIONED_BY: order.provisioner,
        DELETION_SECRET + "name": deletion.name,
        DELETION_SECRET + "namespace": deletion.namespace,
    }
    if modify := order.secrets.controller_modify:
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
