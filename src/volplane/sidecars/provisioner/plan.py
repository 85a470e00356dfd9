"""Which claims get a volume of this driver, with which request; and which volumes are deleted.

A request whose outcome is unknown comes first: whatever has happened to the claim since, the call is repeated
until its outcome is known, and only then can the claim be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from volplane.api.annotations import (
    MIGRATED_TO_ANNOTATION,
    PROVISIONED_BY_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
)
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, SecretReference
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER, PROVISIONING_INTENT_FINALIZER
from volplane.api.storage import CSINode, StorageClass, VolumeAttachment, VolumeAttributesClass
from volplane.rules import binding, classes, sizes
from volplane.rules import topology as topology_rules
from volplane.rules.csi_translation import UntranslatableObject, find_csi_source, translate_class
from volplane.rules.provisioning_intent import has_intent
from volplane.rules.steps import RecordEvent, normal
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.sidecars.provisioner import parameters as keys
from volplane.sidecars.provisioner import sources
from volplane.sidecars.provisioner.parameters import BadParameters, InvalidTemplate
from volplane.sidecars.provisioner.provision_request import (
    DELETION_SECRET,
    ProvisionRequest,
    VolumeSecrets,
)
from volplane.sidecars.provisioner.sources import SourceContent, SourceNotReady, SourceObjects
from volplane.sidecars.provisioner.topology import (
    NoTopologyFound,
    SelectedNodeUnfit,
    TopologyTerms,
    build_terms,
)


class ProvisionerDriverInfo(Struct, frozen=True):
    """What the plan must know of the driver and of the options."""

    name: str
    plugin: frozenset[str] = frozenset({"CONTROLLER_SERVICE"})
    controller: frozenset[str] = frozenset({"CREATE_DELETE_VOLUME"})
    prefix: str = "pvc"
    uuid_length: int = -1
    default_fstype: str = ""
    extra_metadata: bool = False
    publish_readonly: bool = False
    strict_topology: bool = False
    immediate_topology: bool = True
    prevent_mode_change: bool = True
    node: str = ""  # with --node-deployment: provision for this node only
    topology_segments: Mapping[str, str] | None = None  # topology of that node

    @property
    def has_topology(self) -> bool:
        return "VOLUME_ACCESSIBILITY_CONSTRAINTS" in self.plugin

    @property
    def attaches(self) -> bool:
        return "PUBLISH_UNPUBLISH_VOLUME" in self.controller


class ProvisionInputs(Struct, frozen=True):
    """The objects that a plan for a claim depends on."""

    storage_class: StorageClass | None = None
    volume: PersistentVolume | None = None  # the one created for the claim
    attributes: VolumeAttributesClass | None = None
    nodes: Mapping[str, Node] = {}
    registrations: Mapping[str, CSINode] = {}
    infeasible: tuple[str, float] | None = (
        None  # uid of a class that the driver refused; seconds to the next try
    )
    source: SourceObjects = SourceObjects()  # the claim's data source


class CreateVolume(Struct, frozen=True):
    request: ProvisionRequest


class RemoveIntent(Struct, frozen=True):
    """The outcome is known: remove the request from the claim."""


class ReportProvisionError(Struct, frozen=True):
    """It cannot be provisioned now: record an event unless `quiet`. A `Wait` for the backoff follows."""

    message: str
    quiet: bool = False
    needs_nodes: bool = False  # a new node or registration may help


class ClaimForNode(Struct, frozen=True):
    """No node was selected: select this node, if the driver has capacity here."""


class Reschedule(Struct, frozen=True):
    """The scheduler should choose another node."""

    node: str
    why: str


Step = CreateVolume | RemoveIntent | ReportProvisionError | ClaimForNode | Reschedule


def volume_name(claim: PersistentVolumeClaim, driver: ProvisionerDriverInfo) -> str:
    uid = claim.uid
    if driver.uuid_length >= 0:
        uid = uid.replace("-", "")[: driver.uuid_length]
    return f"{driver.prefix}-{uid}"


def plan(
    claim: PersistentVolumeClaim,
    inputs: ProvisionInputs,
    provision_request: ProvisionRequest | None,
    driver: ProvisionerDriverInfo,
) -> Iterator[Step | Wait | RecordEvent]:
    if provision_request is not None and driver.node and provision_request.node != driver.node:
        return  # the provisioner of another node handles it
    if inputs.volume is not None:
        if has_intent(claim) and provision_request is not None:
            yield RemoveIntent()
    elif provision_request is not None:
        yield CreateVolume(provision_request)  # its outcome is unknown: repeat it before anything else
    elif wants_volume(claim, driver.name):
        for step in _start(claim, inputs, driver):
            yield step
            if isinstance(step, ReportProvisionError):
                yield Wait(WaitReason.PROVISIONING_IMPOSSIBLE, message=step.message, backoff=True)


def wants_volume(claim: PersistentVolumeClaim, driver: str) -> bool:
    """The claim has no volume, and names this driver as its provisioner."""
    notes = claim.metadata.annotations
    if driver not in (binding.requested_provisioner(notes), notes.get(MIGRATED_TO_ANNOTATION)):
        return False
    if claim.is_deleting:
        # No request can be written any more. A claim with our finalizer and no valid request was edited by
        # hand: only a new request shows whether a volume exists.
        return PROVISIONING_INTENT_FINALIZER in claim.metadata.finalizers
    return not claim.spec.volume_name


def _start(
    claim: PersistentVolumeClaim, inputs: ProvisionInputs, driver: ProvisionerDriverInfo
) -> Iterator[Step | Wait | RecordEvent]:
    name = binding.claim_class(claim)
    storage_class = inputs.storage_class
    if storage_class is None:
        yield ReportProvisionError(f'storageclass.storage.k8s.io "{name or ""}" not found', quiet=True)
        return
    if classes.driver_name(storage_class.provisioner) != driver.name:
        return
    selected = claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION, "")
    if classes.is_delayed(storage_class) and not selected:
        yield Wait(WaitReason.SELECTED_NODE)
        return
    if driver.node and selected != driver.node:
        if not selected:
            yield ClaimForNode()
        return
    if inputs.infeasible is not None and inputs.infeasible[0] == storage_class.uid:
        data = WaitData(driver=driver.name, class_name=storage_class.name)
        yield Wait(WaitReason.PROVISIONING_INFEASIBLE, data, inputs.infeasible[1])
        return
    source = sources.source_reference(claim)
    if source is not None and not source.is_known:
        yield normal("Provisioning", "Assuming an external populator will provision the volume")
        return
    try:
        yield CreateVolume(build_request(claim, translate_class(storage_class), inputs, driver))
    except SelectedNodeUnfit as error:
        yield Reschedule(selected, f"error generating accessibility requirements: {error}")
    except NoTopologyFound as error:
        yield ReportProvisionError(f"error generating accessibility requirements: {error}", needs_nodes=True)
    except UntranslatableObject as error:
        yield ReportProvisionError(f"failed to translate storage class: {error}")
    except (BadParameters, InvalidTemplate, UnsupportedClaim, SourceNotReady) as error:
        yield ReportProvisionError(str(error))


class UnsupportedClaim(ValueError):
    """The claim requests something that the driver does not support."""


def build_request(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    inputs: ProvisionInputs,
    driver: ProvisionerDriverInfo,
) -> ProvisionRequest:
    _check_supported(claim, driver)
    name = volume_name(claim, driver)
    given = storage_class.parameters
    parameters = keys.driver_parameters(given)
    if driver.extra_metadata:
        parameters[keys.PREFIX + "pvc/name"] = claim.name
        parameters[keys.PREFIX + "pvc/namespace"] = claim.namespace
        parameters[keys.PREFIX + "pv/name"] = name
    return ProvisionRequest(
        driver=driver.name,
        name=name,
        size=sizes.requested_size(claim),
        modes=claim.spec.access_modes,
        block=claim.spec.volume_mode == "Block",
        fs_type=keys.fs_type(given, driver.default_fstype),
        mount_options=storage_class.mount_options,
        parameters=parameters,
        mutable_parameters=_attributes(claim, inputs, driver),
        topological=driver.has_topology,
        topology=_topology(claim, storage_class, inputs, driver),
        node=claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION, ""),
        content=_source_content(claim, storage_class, inputs, driver),
        secrets=_secrets(claim, given, name),
        storage_class=binding.claim_class(claim) or "",
        class_uid=storage_class.uid,
        provisioner=storage_class.provisioner,
        reclaim_policy=storage_class.reclaim_policy or "Delete",
        read_only=driver.publish_readonly and claim.spec.access_modes == ("ReadOnlyMany",),
    )


def _check_supported(claim: PersistentVolumeClaim, driver: ProvisionerDriverInfo) -> None:
    if claim.spec.selector is not None:
        raise UnsupportedClaim("claim Selector is not supported")
    if "CONTROLLER_SERVICE" not in driver.plugin:
        raise UnsupportedClaim(
            "CSI driver does not support dynamic provisioning: plugin CONTROLLER_SERVICE is missing"
        )
    if "CREATE_DELETE_VOLUME" not in driver.controller:
        raise UnsupportedClaim(
            "CSI driver does not support dynamic provisioning: controller CREATE_DELETE_VOLUME is missing"
        )
    source = sources.source_reference(claim)
    if source is None:
        return
    if source.namespace != claim.namespace:
        raise UnsupportedClaim(
            f"data sources of other namespaces ({source.namespace}/{source.name}) are not enabled"
        )
    needed = "CREATE_DELETE_SNAPSHOT" if source.kind == sources.SNAPSHOT else "CLONE_VOLUME"
    if needed not in driver.controller:
        raise UnsupportedClaim(f"CSI driver does not support {source.kind} as a source: {needed} is missing")


def _source_content(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    inputs: ProvisionInputs,
    driver: ProvisionerDriverInfo,
) -> SourceContent | None:
    reference = sources.source_reference(claim)
    if reference is None:
        return None
    return sources.resolve_content(
        claim,
        storage_class,
        reference,
        inputs.source,
        prevent_mode_change=driver.prevent_mode_change,
    )


def _attributes(
    claim: PersistentVolumeClaim, inputs: ProvisionInputs, driver: ProvisionerDriverInfo
) -> Mapping[str, str]:
    name = claim.spec.volume_attributes_class_name
    if not name:
        return {}
    if "MODIFY_VOLUME" not in driver.controller:
        raise UnsupportedClaim(
            "CSI driver does not support VolumeAttributesClass: controller MODIFY_VOLUME is missing"
        )
    found = inputs.attributes
    if found is None:
        raise UnsupportedClaim(f'volumeattributesclass.storage.k8s.io "{name}" not found')
    if found.driver_name != driver.name:
        raise UnsupportedClaim(
            f'VolumeAttributesClass "{name}" is for driver {found.driver_name}, not {driver.name}'
        )
    return found.parameters


def _topology(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    inputs: ProvisionInputs,
    driver: ProvisionerDriverInfo,
) -> TopologyTerms | None:
    if not driver.has_topology:
        return None
    return build_terms(
        claim.name,
        storage_class,
        claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION, ""),
        inputs.nodes,
        inputs.registrations,
        driver.name,
        strict=driver.strict_topology,
        immediate=driver.immediate_topology,
    )


def _secrets(claim: PersistentVolumeClaim, parameters: Mapping[str, str], volume: str) -> VolumeSecrets:
    if not any("secret" in key.lower() for key in parameters):
        return VolumeSecrets()  # most classes name none

    def secret(which: keys.SecretParameterKeys) -> SecretReference | None:
        return keys.secret_reference(which, parameters, volume, claim)

    return VolumeSecrets(
        secret(keys.PROVISIONER),
        secret(keys.CONTROLLER_PUBLISH),
        secret(keys.NODE_STAGE),
        secret(keys.NODE_PUBLISH),
        secret(keys.CONTROLLER_EXPAND),
        secret(keys.NODE_EXPAND),
        secret(keys.CONTROLLER_MODIFY),
    )


# --- deletion


class AddReclaimFinalizer(Struct, frozen=True):
    """Add our finalizer, which keeps the object until the volume is deleted at the driver."""


class RemoveReclaimFinalizer(Struct, frozen=True):
    """Remove our finalizer: the volume is retained at the driver."""


class DeleteVolume(Struct, frozen=True):
    handle: str
    secret: SecretReference | None = None
    secret_known: bool = True  # False: only the class names it


class RefuseDeletion(Struct, frozen=True):
    """The disk cannot be deleted now: record an event. A `Wait` for the backoff follows."""

    message: str


class ReclaimView(Struct, frozen=True):
    volume: PersistentVolume
    attachments: Sequence[VolumeAttachment]


ReclaimStep = AddReclaimFinalizer | RemoveReclaimFinalizer | DeleteVolume | RefuseDeletion


def plan_reclaim(
    volume: PersistentVolume, attachments: Sequence[VolumeAttachment], driver: ProvisionerDriverInfo
) -> Iterator[ReclaimStep | Wait]:
    if not is_responsible(volume, driver.name) or not is_ours(volume, driver.topology_segments):
        return
    held = EXTERNAL_PROVISIONER_FINALIZER in volume.metadata.finalizers
    if volume.spec.persistent_volume_reclaim_policy != "Delete":
        if held:
            yield RemoveReclaimFinalizer()
        return
    if volume.status.phase == "Bound" and not held and not volume.is_deleting:
        yield AddReclaimFinalizer()
    if volume.status.phase != "Released" or (volume.is_deleting and not held):
        return
    source = find_csi_source(volume)
    if driver.attaches and attachments:
        node = attachments[0].spec.node_name
        yield RefuseDeletion(f"persistentvolume {volume.name} is still attached to node {node}")
        data = WaitData(volume=volume.name, nodes=(node,))
        yield Wait(WaitReason.VOLUME_STILL_ATTACHED, data, backoff=True)
    elif source is None:
        yield RefuseDeletion("invalid CSI PV")
        yield Wait(WaitReason.RECLAIM_FAILED, message="invalid CSI PV", backoff=True)
    else:
        yield DeleteVolume(source.volume_handle, *_deletion_secret(volume))


def _deletion_secret(volume: PersistentVolume) -> tuple[SecretReference | None, bool]:
    notes = volume.metadata.annotations
    name, namespace = (notes.get(DELETION_SECRET + part) for part in ("name", "namespace"))
    if name is None or namespace is None:
        return None, False
    return (SecretReference(name=name, namespace=namespace) if name and namespace else None), True


def is_responsible(volume: PersistentVolume, driver: str) -> bool:
    notes = volume.metadata.annotations
    maker = notes.get(PROVISIONED_BY_ANNOTATION)
    migrated = notes.get(MIGRATED_TO_ANNOTATION) == driver
    if maker is not None:
        return classes.driver_name(maker) == driver or migrated
    return volume.spec.csi.driver == driver if volume.spec.csi is not None else migrated


def is_ours(volume: PersistentVolume, segments: Mapping[str, str] | None) -> bool:
    """With --node-deployment, each provisioner handles the volumes that its node can access."""
    return segments is None or topology_rules.is_reachable_from(volume, segments)


# --- which changes matter


def relevant_claim_fields(claim: PersistentVolumeClaim | None) -> tuple[object, ...]:
    """The fields whose change wakes the claim. Our own writes must not cut the backoff short."""
    if claim is None:
        return ()
    notes = claim.metadata.annotations
    return (
        claim.uid,
        claim.spec,
        claim.is_deleting,
        binding.claim_class(claim),
        binding.requested_provisioner(notes),
        notes.get(MIGRATED_TO_ANNOTATION),
        notes.get(SELECTED_NODE_ANNOTATION),
    )


def relevant_volume_fields(volume: PersistentVolume | None) -> tuple[object, ...]:
    if volume is None:
        return ()
    return (
        volume.uid,
        volume.status.phase,
        volume.spec.persistent_volume_reclaim_policy,
        volume.is_deleting,
        EXTERNAL_PROVISIONER_FINALIZER in volume.metadata.finalizers,
    )
