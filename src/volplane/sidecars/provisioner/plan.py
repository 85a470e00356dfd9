"""Which claims get a volume of this driver, with which order; and which volumes are to be deleted.

An order whose outcome is open comes before everything else: whatever happened to the claim meanwhile, the
call is repeated until its outcome is known, and only then the claim can be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, SecretReference
from volplane.api.storage import CSINode, StorageClass, VolumeAttachment, VolumeAttributesClass
from volplane.rules import binding, classes, sizes
from volplane.rules import topology as topology_rules
from volplane.rules.steps import RecordEvent, normal
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.sidecars.provisioner import parameters as keys
from volplane.sidecars.provisioner import sources
from volplane.sidecars.provisioner.parameters import BadParameters, InvalidTemplate
from volplane.sidecars.provisioner.provision_request import (
    DELETION_SECRET,
    INTENT,
    ProvisionRequest,
    VolumeSecrets,
    has_intent,
)
from volplane.sidecars.provisioner.sources import SourceContent, SourceNotReady, SourceObjects
from volplane.sidecars.provisioner.topology import (
    NoTopologyFound,
    SelectedNodeUnfit,
    TopologyTerms,
    build_terms,
)


class ProvisionerDriverInfo(Struct, frozen=True):
    """What the plan must know of the driver, and of how we were told to use it."""

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
    node: str = ""  # the one node that we work for; "": for all
    topology_segments: Mapping[str, str] | None = None  # that node's own segments

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
    infeasible: tuple[str, float] | None = None  # class (uid) that cannot do it; seconds to the next try
    source: SourceObjects = SourceObjects()  # what the claim's data comes from


class CreateVolume(Struct, frozen=True):
    request: ProvisionRequest


class RemoveIntent(Struct, frozen=True):
    """The outcome is known: remove the order from the claim."""


class ReportProvisionError(Struct, frozen=True):
    """It cannot be provisioned now: record an event unless `quiet`. A `Wait` for the backoff follows."""

    message: str
    quiet: bool = False
    needs_nodes: bool = False  # nodes or registrations may cure it


class ClaimForNode(Struct, frozen=True):
    """No node was chosen for the volume: it may be ours, if the driver has room here."""


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
    order: ProvisionRequest | None,
    driver: ProvisionerDriverInfo,
) -> Iterator[Step | Wait | RecordEvent]:
    if order is not None and driver.node and order.node != driver.node:
        return  # another node's provisioner has it in work
    if inputs.volume is not None:
        if has_intent(claim) and order is not None:
            yield RemoveIntent()
    elif order is not None:
        yield CreateVolume(order)  # it may be half done: nothing else matters until we know
    elif wants_volume(claim, driver.name):
        for step in _start(claim, inputs, driver):
            yield step
            if isinstance(step, ReportProvisionError):
                yield Wait(WaitReason.PROVISIONING_IMPOSSIBLE, message=step.message, backoff=True)


def wants_volume(claim: PersistentVolumeClaim, driver: str) -> bool:
    """The claim has no volume, and this driver was asked for one."""
    notes = claim.metadata.annotations
    if driver not in (binding.requested_provisioner(notes), notes.get(binding.MIGRATED_TO)):
        return False
    if claim.is_deleting:
        # No order can be written down any more. With our finalizer and no legible order somebody has edited
        # it; then ordering anew is the only way to learn whether there is a disk.
        return INTENT in claim.metadata.finalizers
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
    selected = claim.metadata.annotations.get(binding.SELECTED_NODE, "")
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
        yield CreateVolume(build_request(claim, storage_class, inputs, driver))
    except SelectedNodeUnfit as error:
        yield Reschedule(selected, f"error generating accessibility requirements: {error}")
    except NoTopologyFound as error:
        yield ReportProvisionError(f"error generating accessibility requirements: {error}", needs_nodes=True)
    except (BadParameters, InvalidTemplate, UnsupportedClaim, SourceNotReady) as error:
        yield ReportProvisionError(str(error))


class UnsupportedClaim(ValueError):
    """The claim asks for what the driver does not offer."""


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
        node=claim.metadata.annotations.get(binding.SELECTED_NODE, ""),
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
            f"data sources of other namespaces ({source.namespace}/{source.name}) are switched off"
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
        claim.metadata.annotations.get(binding.SELECTED_NODE, ""),
        inputs.nodes,
        inputs.registrations,
        driver.name,
        strict=driver.strict_topology,
        immediate=driver.immediate_topology,
    )


def _secrets(claim: PersistentVolumeClaim, parameters: Mapping[str, str], volume: str) -> VolumeSecrets:
    if not any("secret" in key.lower() for key in parameters):
        return VolumeSecrets()  # as most classes

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


# --- the other end of a volume's life


class AddReclaimFinalizer(Struct, frozen=True):
    """Our finalizer: the object stays until the disk behind it is gone."""


class RemoveReclaimFinalizer(Struct, frozen=True):
    """Without our finalizer: the disk is to stay."""


class DeleteVolume(Struct, frozen=True):
    handle: str
    secret: SecretReference | None = None
    secret_known: bool = True  # False: only the class can tell


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
    held = binding.EXTERNAL_FINALIZER in volume.metadata.finalizers
    if volume.spec.persistent_volume_reclaim_policy != "Delete":
        if held:
            yield RemoveReclaimFinalizer()
        return
    if volume.status.phase == "Bound" and not held and not volume.is_deleting:
        yield AddReclaimFinalizer()
    if volume.status.phase != "Released" or (volume.is_deleting and not held):
        return
    if driver.attaches and attachments:
        node = attachments[0].spec.node_name
        yield RefuseDeletion(f"persistentvolume {volume.name} is still attached to node {node}")
        data = WaitData(volume=volume.name, nodes=(node,))
        yield Wait(WaitReason.VOLUME_STILL_ATTACHED, data, backoff=True)
    elif volume.spec.csi is None:
        yield RefuseDeletion("invalid CSI PV")
        yield Wait(WaitReason.RECLAIM_FAILED, message="invalid CSI PV", backoff=True)
    else:
        yield DeleteVolume(volume.spec.csi.volume_handle, *_deletion_secret(volume))


def _deletion_secret(volume: PersistentVolume) -> tuple[SecretReference | None, bool]:
    notes = volume.metadata.annotations
    name, namespace = (notes.get(DELETION_SECRET + part) for part in ("name", "namespace"))
    if name is None or namespace is None:
        return None, False
    return (SecretReference(name=name, namespace=namespace) if name and namespace else None), True


def is_responsible(volume: PersistentVolume, driver: str) -> bool:
    notes = volume.metadata.annotations
    maker = notes.get(binding.PROVISIONED_BY)
    if maker is not None:
        return driver in (classes.driver_name(maker), notes.get(binding.MIGRATED_TO))
    return volume.spec.csi is not None and volume.spec.csi.driver == driver


def is_ours(volume: PersistentVolume, places: Mapping[str, str] | None) -> bool:
    """Beside a driver on every node, each looks after the volumes that its node can reach."""
    return places is None or topology_rules.is_reachable_from(volume, places)


# --- which changes matter


def relevant_claim_fields(claim: PersistentVolumeClaim | None) -> tuple[object, ...]:
    """The fields whose change matters. Our own writes must not cut a backoff short."""
    if claim is None:
        return ()
    notes = claim.metadata.annotations
    return (
        claim.uid,
        claim.spec,
        claim.is_deleting,
        binding.claim_class(claim),
        binding.requested_provisioner(notes),
        notes.get(binding.MIGRATED_TO),
        notes.get(binding.SELECTED_NODE),
    )


def relevant_volume_fields(volume: PersistentVolume | None) -> tuple[object, ...]:
    if volume is None:
        return ()
    return (
        volume.uid,
        volume.status.phase,
        volume.spec.persistent_volume_reclaim_policy,
        volume.is_deleting,
        binding.EXTERNAL_FINALIZER in volume.metadata.finalizers,
    )
