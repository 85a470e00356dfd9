"""Claims and volumes in every situation, and what the provisioner does about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec import structs

from volplane.api.annotations import (
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    MIGRATED_TO_ANNOTATION,
    PROVISIONED_BY_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
)
from volplane.api.core import (
    AWSElasticBlockStoreVolumeSource,
    CSIPersistentVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    SecretReference,
    TopologySelectorLabelRequirement,
    TopologySelectorTerm,
    TypedLocalObjectReference,
    TypedObjectReference,
    VolumeResourceRequirements,
)
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER, PROVISIONING_INTENT_FINALIZER
from volplane.api.meta import LabelSelector, ObjectMeta
from volplane.api.storage import (
    StorageClass,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
    VolumeAttributesClass,
)
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.sidecars.provisioner import provision_request as orders
from volplane.sidecars.provisioner.plan import (
    AddReclaimFinalizer,
    ClaimForNode,
    CreateVolume,
    DeleteVolume,
    ProvisionerDriverInfo,
    ProvisionInputs,
    RefuseDeletion,
    RemoveIntent,
    RemoveReclaimFinalizer,
    ReportProvisionError,
    Reschedule,
    plan,
    plan_reclaim,
    relevant_claim_fields,
    relevant_volume_fields,
)
from volplane.sidecars.provisioner.provision_request import CreatedVolume, ProvisionRequest
from volplane.sidecars.provisioner.topology import TopologyTerms

NAME = "test.csi.example.com"
DRIVER = ProvisionerDriverInfo(NAME)
NOW = "2026-01-01T00:00:00Z"
ASKED = {STORAGE_PROVISIONER_ANNOTATION: NAME}


def claim(
    *,
    annotations: dict[str, str] | None = None,
    finalizers: tuple[str, ...] = (),
    deleting: bool = False,
    **spec: Any,
) -> PersistentVolumeClaim:
    made = PersistentVolumeClaimSpec(
        access_modes=("ReadWriteOnce",),
        resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
        storage_class_name="fast",
        volume_mode="Filesystem",
    )
    return PersistentVolumeClaim(
        metadata=ObjectMeta(
            name="data",
            namespace="default",
            uid="1234-5678",
            annotations=ASKED if annotations is None else annotations,
            finalizers=finalizers,
            deletion_timestamp=NOW if deleting else None,
        ),
        spec=structs.replace(made, **spec),
    )


def storage_class(provisioner: str = NAME, mode: str = "Immediate", **parameters: str) -> StorageClass:
    return StorageClass(
        metadata=ObjectMeta(name="fast", uid="class-1"),
        provisioner=provisioner,
        reclaim_policy="Delete",
        volume_binding_mode=mode,
        parameters=parameters,
    )


FAST = ProvisionInputs(storage_class=storage_class())
ORDER = ProvisionRequest(
    driver=NAME,
    name="pvc-1234-5678",
    size=1 << 30,
    modes=("ReadWriteOnce",),
    storage_class="fast",
    class_uid="class-1",
    provisioner=NAME,
)
VOLUME = PersistentVolume(metadata=ObjectMeta(name="pvc-1234-5678"))
NOTED = {**ASKED, PROVISIONING_INTENT_FINALIZER: orders.encode_request(ORDER)}
DELAYED = ProvisionInputs(storage_class=storage_class(mode="WaitForFirstConsumer"))
SNAPSHOT = TypedLocalObjectReference(api_group="snapshot.storage.k8s.io", kind="VolumeSnapshot", name="s")
POPULATED = TypedLocalObjectReference(api_group="populator.example.com", kind="Seed", name="s")

CASES: dict[str, tuple[PersistentVolumeClaim, ProvisionInputs, ProvisionRequest | None, list[object]]] = {
    "asked by the annotation": (claim(), FAST, None, [CreateVolume(ORDER)]),
    "asked by the old annotation": (
        claim(annotations={BETA_STORAGE_PROVISIONER_ANNOTATION: NAME}),
        FAST,
        None,
        [CreateVolume(ORDER)],
    ),
    "the old annotation loses against the new": (
        claim(
            annotations={BETA_STORAGE_PROVISIONER_ANNOTATION: NAME, STORAGE_PROVISIONER_ANNOTATION: "other"}
        ),
        FAST,
        None,
        [],
    ),
    "migrated to us": (
        claim(annotations={STORAGE_PROVISIONER_ANNOTATION: "kubernetes.io/x", MIGRATED_TO_ANNOTATION: NAME}),
        FAST,
        None,
        [CreateVolume(ORDER)],
    ),
    "not asked yet": (claim(annotations={}), FAST, None, []),
    "has a volume already": (claim(volume_name="pv"), FAST, None, []),
    "its class is gone": (
        claim(),
        ProvisionInputs(),
        None,
        [ReportProvisionError('storageclass.storage.k8s.io "fast" not found', quiet=True)],
    ),
    "its class is another's": (claim(), ProvisionInputs(storage_class=storage_class("other")), None, []),
    "waits for its first consumer": (claim(), DELAYED, None, [Wait(WaitReason.SELECTED_NODE)]),
    "its consumer's node is known": (
        claim(annotations={**ASKED, SELECTED_NODE_ANNOTATION: "worker-1"}),
        DELAYED,
        None,
        [CreateVolume(structs.replace(ORDER, node="worker-1"))],
    ),
    "its volume exists": (claim(), ProvisionInputs(storage_class=storage_class(), volume=VOLUME), None, []),
    "its volume exists and the order is still there: settled": (
        claim(annotations=NOTED, finalizers=(PROVISIONING_INTENT_FINALIZER,)),
        ProvisionInputs(storage_class=storage_class(), volume=VOLUME),
        ORDER,
        [RemoveIntent()],
    ),
    "an order under way goes on": (
        claim(annotations=NOTED, finalizers=(PROVISIONING_INTENT_FINALIZER,)),
        FAST,
        ORDER,
        [CreateVolume(ORDER)],
    ),
    "also when the claim is being deleted": (
        claim(annotations=NOTED, finalizers=(PROVISIONING_INTENT_FINALIZER,), deleting=True),
        FAST,
        ORDER,
        [CreateVolume(ORDER)],
    ),
    "also when the class is gone": (
        claim(annotations=NOTED, finalizers=(PROVISIONING_INTENT_FINALIZER,)),
        ProvisionInputs(),
        ORDER,
        [CreateVolume(ORDER)],
    ),
    "also when the claim took another volume": (
        claim(annotations=NOTED, finalizers=(PROVISIONING_INTENT_FINALIZER,), volume_name="other"),
        FAST,
        ORDER,
        [CreateVolume(ORDER)],
    ),
    "a claim being deleted starts nothing": (claim(deleting=True), FAST, None, []),
    "unless it carries our finalizer without a legible order": (
        claim(finalizers=(PROVISIONING_INTENT_FINALIZER,), deleting=True),
        FAST,
        None,
        [CreateVolume(ORDER)],
    ),
    "a selector": (
        claim(selector=LabelSelector(match_labels={"a": "b"})),
        FAST,
        None,
        [ReportProvisionError("claim Selector is not supported")],
    ),
    "a parameter that only looks like ours": (
        claim(),
        ProvisionInputs(storage_class=storage_class(**{"csi.storage.k8s.io/foo": "x"})),
        None,
        [
            ReportProvisionError(
                'found unknown parameter key "csi.storage.k8s.io/foo" with reserved namespace '
                "csi.storage.k8s.io/"
            )
        ],
    ),
    "the driver called it infeasible": (
        claim(),
        ProvisionInputs(storage_class=storage_class(), infeasible=("class-1", 120.0)),
        None,
        [Wait(WaitReason.PROVISIONING_INFEASIBLE, WaitData(driver=NAME, class_name="fast"), 120.0)],
    ),
    "and the class was made anew since": (
        claim(),
        ProvisionInputs(storage_class=storage_class(), infeasible=("class-0", 120.0)),
        None,
        [CreateVolume(ORDER)],
    ),
    "a populator's business": (
        claim(data_source=POPULATED),
        FAST,
        None,
        [RecordEvent("Normal", "Provisioning", "Assuming an external populator will provision the volume")],
    ),
    "a snapshot is not a populator's business": (
        claim(data_source=SNAPSHOT),
        FAST,
        None,
        [
            ReportProvisionError(
                "CSI driver does not support VolumeSnapshot as a source: CREATE_DELETE_SNAPSHOT is missing"
            )
        ],
    ),
    "attributes that the driver cannot modify": (
        claim(volume_attributes_class_name="gold"),
        FAST,
        None,
        [
            ReportProvisionError(
                "CSI driver does not support VolumeAttributesClass: controller MODIFY_VOLUME is missing"
            )
        ],
    ),
}


def with_waits(steps: Iterable[object]) -> Iterator[object]:
    """What is reported is retried after the backoff."""
    for step in steps:
        yield step
        if isinstance(step, ReportProvisionError):
            yield Wait(WaitReason.PROVISIONING_IMPOSSIBLE, message=step.message, backoff=True)


@pytest.mark.parametrize("case", CASES)
def test_claims(case: str) -> None:
    made, world, order, expected = CASES[case]
    assert list(plan(made, world, order, DRIVER)) == list(with_waits(expected))


@pytest.mark.parametrize(("node", "goes_on"), [("worker-1", True), ("worker-2", False)])
def test_beside_a_driver_on_every_node_an_order_is_that_nodes_own(node: str, goes_on: bool) -> None:
    order = structs.replace(ORDER, node="worker-1")
    notes = {
        **ASKED,
        SELECTED_NODE_ANNOTATION: "worker-1",
        PROVISIONING_INTENT_FINALIZER: orders.encode_request(order),
    }
    noted = claim(annotations=notes, finalizers=(PROVISIONING_INTENT_FINALIZER,))
    here = structs.replace(DRIVER, node=node)
    made = ProvisionInputs(storage_class=storage_class(), volume=VOLUME)
    assert list(plan(noted, FAST, order, here)) == ([CreateVolume(order)] if goes_on else [])
    assert list(plan(noted, made, order, here)) == ([RemoveIntent()] if goes_on else [])


@pytest.mark.parametrize(
    ("driver", "missing"),
    [
        (ProvisionerDriverInfo(NAME, plugin=frozenset()), "plugin CONTROLLER_SERVICE"),
        (ProvisionerDriverInfo(NAME, controller=frozenset()), "controller CREATE_DELETE_VOLUME"),
    ],
)
def test_a_driver_without_the_calls_is_refused(driver: ProvisionerDriverInfo, missing: str) -> None:
    step, wait = plan(claim(), FAST, None, driver)
    assert isinstance(step, ReportProvisionError)
    assert isinstance(wait, Wait)
    assert missing in step.message


def build(
    driver: ProvisionerDriverInfo = DRIVER, world: ProvisionInputs = FAST, **spec: Any
) -> ProvisionRequest:
    (step,) = plan(claim(**spec), world, None, driver)
    assert isinstance(step, CreateVolume), step
    return step.request


def test_the_order_carries_what_the_class_and_the_flags_say() -> None:
    driver = ProvisionerDriverInfo(
        NAME,
        prefix="disk",
        uuid_length=6,
        default_fstype="ext4",
        extra_metadata=True,
        publish_readonly=True,
    )
    parameters = {"type": "gp3", "csi.storage.k8s.io/fstype": "xfs", "csiNodeStageSecretName": "x"}
    parameters["csiNodeStageSecretNamespace"] = "y"
    world = ProvisionInputs(
        storage_class=structs.replace(storage_class(**parameters), mount_options=("noatime",))
    )
    order = build(driver, world, access_modes=("ReadOnlyMany",))
    assert order.name == "disk-123456"
    assert order.fs_type == "xfs"
    assert order.mount_options == ("noatime",)
    assert order.read_only
    assert order.parameters == {
        "type": "gp3",
        "csiNodeStageSecretName": "x",
        "csiNodeStageSecretNamespace": "y",
        "csi.storage.k8s.io/pvc/name": "data",
        "csi.storage.k8s.io/pvc/namespace": "default",
        "csi.storage.k8s.io/pv/name": "disk-123456",
    }
    assert order.secrets.node_stage == SecretReference(name="x", namespace="y")
    assert build(driver).fs_type == "ext4"
    assert build(volume_mode="Block").block


def test_a_volumes_attributes_come_from_their_class() -> None:
    modifying = ProvisionerDriverInfo(NAME, controller=frozenset({"CREATE_DELETE_VOLUME", "MODIFY_VOLUME"}))
    gold = VolumeAttributesClass(metadata=ObjectMeta(name="gold"), driver_name=NAME, parameters={"iops": "9"})
    world = structs.replace(FAST, attributes=gold)
    assert build(modifying, world, volume_attributes_class_name="gold").mutable_parameters == {"iops": "9"}
    for attributes in (None, structs.replace(gold, driver_name="other")):
        world = structs.replace(FAST, attributes=attributes)
        step, _ = plan(claim(volume_attributes_class_name="gold"), world, None, modifying)
        assert isinstance(step, ReportProvisionError)


def test_an_order_is_found_again_on_its_claim_as_it_was_written() -> None:
    requirement = TopologyTerms(((("zone", "a"),), (("zone", "b"),)), ((("zone", "b"),), (("zone", "a"),)))
    order = structs.replace(ORDER, topology=requirement, topological=True, parameters={"type": "gp3"})
    noted = claim(
        annotations={PROVISIONING_INTENT_FINALIZER: orders.encode_request(order)},
        finalizers=(PROVISIONING_INTENT_FINALIZER,),
    )
    assert orders.read_request(noted, NAME) == order
    assert orders.read_request(noted, "other") is None
    assert (
        orders.read_request(
            claim(
                annotations={PROVISIONING_INTENT_FINALIZER: "{"}, finalizers=(PROVISIONING_INTENT_FINALIZER,)
            ),
            NAME,
        )
        is None
    )
    assert (
        orders.read_request(
            claim(annotations={PROVISIONING_INTENT_FINALIZER: orders.encode_request(order)}), NAME
        )
        is None
    )


def test_the_volume_is_what_was_ordered_and_what_was_answered() -> None:
    order = structs.replace(ORDER, topological=True, fs_type="ext4", mount_options=("noatime",))
    made = CreatedVolume("vol-1", 3 << 30, {"a": "b"}, ({"zone": "b"}, {"zone": "a"}))
    volume = orders.build_volume(claim(), order, made, "me")
    assert volume.name == "pvc-1234-5678"
    assert volume.metadata.annotations == {
        "pv.kubernetes.io/provisioned-by": NAME,
        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
    }
    assert volume.metadata.finalizers == ("external-provisioner.volume.kubernetes.io/finalizer",)
    spec = volume.spec
    assert spec.capacity == {"storage": "3Gi"}
    assert (spec.access_modes, spec.volume_mode) == (("ReadWriteOnce",), "Filesystem")
    assert (spec.storage_class_name, spec.persistent_volume_reclaim_policy) == ("fast", "Delete")
    assert spec.mount_options == ("noatime",)
    assert spec.claim_ref is not None
    assert (spec.claim_ref.kind, spec.claim_ref.api_version) == ("PersistentVolumeClaim", "v1")
    assert (spec.claim_ref.namespace, spec.claim_ref.name, spec.claim_ref.uid) == (
        "default",
        "data",
        "1234-5678",
    )
    assert spec.csi is not None
    assert (spec.csi.driver, spec.csi.volume_handle, spec.csi.fs_type) == (NAME, "vol-1", "ext4")
    assert spec.csi.volume_attributes == {"a": "b", "storage.kubernetes.io/csiProvisionerIdentity": "me"}
    assert spec.node_affinity is not None
    assert spec.node_affinity.required is not None
    terms = spec.node_affinity.required.node_selector_terms
    assert [(r.key, r.operator, r.values) for t in terms for r in t.match_expressions] == [
        ("zone", "In", ("b",)),
        ("zone", "In", ("a",)),
    ]


def test_a_volume_of_unknown_size_has_the_size_that_was_asked_for() -> None:
    volume = orders.build_volume(claim(), ORDER, CreatedVolume("vol-1"), "me")
    assert volume.spec.capacity == {"storage": "1Gi"}
    assert volume.spec.node_affinity is None


def test_a_block_volume_has_no_file_system() -> None:
    order = structs.replace(ORDER, block=True, fs_type="ext4")
    volume = orders.build_volume(claim(volume_mode="Block"), order, CreatedVolume("vol-1"), "me")
    assert volume.spec.csi is not None
    assert volume.spec.csi.fs_type == ""


def test_secrets_are_named_on_the_volume() -> None:
    one = SecretReference(name="n", namespace="ns")
    order = structs.replace(ORDER, secrets=orders.VolumeSecrets(one, one, one, one, one, one, one))
    volume = orders.build_volume(claim(), order, CreatedVolume("vol-1"), "me")
    notes = volume.metadata.annotations
    assert notes["volume.kubernetes.io/provisioner-deletion-secret-name"] == "n"
    assert notes["volume.kubernetes.io/controller-modify-secret-namespace"] == "ns"
    assert volume.spec.csi is not None
    assert volume.spec.csi.node_expand_secret_ref == one


# --- deletion


def pv(
    phase: str = "Released",
    policy: str = "Delete",
    *,
    held: bool = True,
    deleting: bool = False,
    annotations: dict[str, str] | None = None,
    driver: str = NAME,
) -> PersistentVolume:
    notes = {
        PROVISIONED_BY_ANNOTATION: NAME,
        orders.DELETION_SECRET + "name": "",
        orders.DELETION_SECRET + "namespace": "",
    }
    return PersistentVolume(
        metadata=ObjectMeta(
            name="pv1",
            annotations=notes if annotations is None else annotations,
            finalizers=(EXTERNAL_PROVISIONER_FINALIZER,) if held else (),
            deletion_timestamp=NOW if deleting else None,
        ),
        spec=PersistentVolumeSpec(
            persistent_volume_reclaim_policy=policy,
            csi=CSIPersistentVolumeSource(driver=driver, volume_handle="vol-1"),
        ),
        status=PersistentVolumeStatus(phase=phase),
    )


ATTACHED = VolumeAttachment(
    spec=VolumeAttachmentSpec(
        attacher=NAME, node_name="worker-1", source=VolumeAttachmentSource(persistent_volume_name="pv1")
    )
)
ATTACHER = ProvisionerDriverInfo(
    NAME, controller=frozenset({"CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"})
)
SECRET_NOTES = {
    PROVISIONED_BY_ANNOTATION: NAME,
    orders.DELETION_SECRET + "name": "n",
    orders.DELETION_SECRET + "namespace": "ns",
}

VOLUMES: dict[str, tuple[PersistentVolume, list[VolumeAttachment], list[object]]] = {
    "released": (pv(), [], [DeleteVolume("vol-1")]),
    "bound": (pv("Bound"), [], []),
    "bound without our finalizer": (pv("Bound", held=False), [], [AddReclaimFinalizer()]),
    "bound, static, ours by its driver": (
        pv("Bound", held=False, annotations={}),
        [],
        [AddReclaimFinalizer()],
    ),
    "static of another driver": (pv("Bound", held=False, annotations={}, driver="other"), [], []),
    "made by another": (pv(annotations={PROVISIONED_BY_ANNOTATION: "other"}), [], []),
    "migrated to us": (
        pv(annotations={PROVISIONED_BY_ANNOTATION: "kubernetes.io/x", MIGRATED_TO_ANNOTATION: NAME}),
        [],
        [DeleteVolume("vol-1", None, False)],
    ),
    "available": (pv("Available"), [], []),
    "failed": (pv("Failed"), [], []),
    "retained": (pv(policy="Retain"), [], [RemoveReclaimFinalizer()]),
    "retained and let go": (pv(policy="Retain", held=False), [], []),
    "recycled": (pv("Bound", policy="Recycle"), [], [RemoveReclaimFinalizer()]),
    "still attached": (
        pv(),
        [ATTACHED],
        [
            RefuseDeletion("persistentvolume pv1 is still attached to node worker-1"),
            Wait(WaitReason.VOLUME_STILL_ATTACHED, WaitData(volume="pv1", nodes=("worker-1",)), backoff=True),
        ],
    ),
    "being deleted, claim still there": (pv("Bound", deleting=True), [], []),
    "being deleted, bound, without our finalizer": (pv("Bound", held=False, deleting=True), [], []),
    "being deleted and released": (pv(deleting=True), [], [DeleteVolume("vol-1")]),
    "being deleted, and we let go already": (pv(held=False, deleting=True), [], []),
    "being deleted and retained": (pv(policy="Retain", deleting=True), [], [RemoveReclaimFinalizer()]),
    "with a secret": (
        pv(annotations=SECRET_NOTES),
        [],
        [DeleteVolume("vol-1", SecretReference(name="n", namespace="ns"))],
    ),
}


@pytest.mark.parametrize("case", VOLUMES)
def test_volumes(case: str) -> None:
    volume, attachments, expected = VOLUMES[case]
    assert list(plan_reclaim(volume, attachments, ATTACHER)) == expected


def test_a_driver_that_does_not_attach_does_not_wait_for_attachments() -> None:
    assert list(plan_reclaim(pv(), [ATTACHED], DRIVER)) == [DeleteVolume("vol-1")]


def test_our_own_notes_are_no_news() -> None:
    assert relevant_claim_fields(claim()) == relevant_claim_fields(
        claim(annotations=NOTED, finalizers=(PROVISIONING_INTENT_FINALIZER,))
    )
    assert relevant_claim_fields(claim()) != relevant_claim_fields(
        claim(annotations={**ASKED, SELECTED_NODE_ANNOTATION: "n"})
    )
    assert relevant_claim_fields(claim()) != relevant_claim_fields(claim(deleting=True))


ON_NODE = structs.replace(DRIVER, node="worker-1")


@pytest.mark.parametrize(
    ("selected", "expected"),
    [
        ("", [ClaimForNode()]),
        ("worker-2", []),
        ("worker-1", [CreateVolume(structs.replace(ORDER, node="worker-1"))]),
    ],
)
def test_beside_a_driver_on_every_node_only_its_own_claims_are_provisioned(
    selected: str, expected: list[object]
) -> None:
    made = claim(annotations={**ASKED, SELECTED_NODE_ANNOTATION: selected} if selected else ASKED)
    assert list(plan(made, FAST, None, ON_NODE)) == expected


def test_a_request_of_another_node_is_left_to_it() -> None:
    made = claim(annotations=NOTED, finalizers=(PROVISIONING_INTENT_FINALIZER,))
    assert list(plan(made, FAST, structs.replace(ORDER, node="worker-2"), ON_NODE)) == []


def test_a_selected_node_without_the_driver_sends_the_pod_back_to_the_scheduler() -> None:
    placed = structs.replace(
        DRIVER, plugin=frozenset({"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"})
    )
    made = claim(annotations={**ASKED, SELECTED_NODE_ANNOTATION: "worker-1"})
    (step,) = plan(made, FAST, None, placed)
    assert isinstance(step, Reschedule)
    assert step.node == "worker-1"


def test_without_any_registered_node_it_waits_for_nodes() -> None:
    placed = structs.replace(
        DRIVER, plugin=frozenset({"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"})
    )
    step, _ = plan(claim(), FAST, None, placed)
    assert isinstance(step, ReportProvisionError)
    assert step.needs_nodes


def test_a_source_of_another_namespace_is_refused() -> None:
    other = TypedObjectReference(kind="PersistentVolumeClaim", name="s", namespace="elsewhere")
    step, _ = plan(claim(data_source_ref=other), FAST, None, DRIVER)
    assert isinstance(step, ReportProvisionError)
    assert "elsewhere/s" in step.message


def test_a_restore_names_the_handle_of_its_snapshot() -> None:
    able = structs.replace(DRIVER, controller=DRIVER.controller | {"CREATE_DELETE_SNAPSHOT"})
    step, _ = plan(claim(data_source=SNAPSHOT), FAST, None, able)
    assert isinstance(step, ReportProvisionError)
    assert 'volumesnapshot "default/s" not found' in step.message


def test_a_volume_without_a_csi_source_is_not_deleted() -> None:
    volume = pv()
    in_tree = structs.replace(volume, spec=structs.replace(volume.spec, csi=None))
    assert list(plan_reclaim(in_tree, [], ATTACHER)) == [
        RefuseDeletion("invalid CSI PV"),
        Wait(WaitReason.RECLAIM_FAILED, message="invalid CSI PV", backoff=True),
    ]


def test_an_in_tree_class_that_cannot_be_translated_is_reported() -> None:
    ebs = structs.replace(DRIVER, name="ebs.csi.aws.com")
    need = TopologySelectorLabelRequirement(key="topology.kubernetes.io/zone", values=("a",))
    both = structs.replace(
        storage_class("kubernetes.io/aws-ebs", zone="a"),
        allowed_topologies=(TopologySelectorTerm(match_label_expressions=(need,)),),
    )
    asked = claim(annotations={STORAGE_PROVISIONER_ANNOTATION: ebs.name})
    step, _ = plan(asked, ProvisionInputs(storage_class=both), None, ebs)
    assert isinstance(step, ReportProvisionError)
    assert step.message.startswith("failed to translate storage class: StorageClass fast: parameters zone")


def test_an_in_tree_volume_is_deleted_by_the_driver_that_it_was_migrated_to() -> None:
    ebs = structs.replace(ATTACHER, name="ebs.csi.aws.com")
    source = AWSElasticBlockStoreVolumeSource(volume_id="aws://us-east-1a/vol-1")
    migrated = pv(annotations={MIGRATED_TO_ANNOTATION: ebs.name})
    in_tree = structs.replace(
        migrated, spec=structs.replace(migrated.spec, csi=None, aws_elastic_block_store=source)
    )
    assert list(plan_reclaim(in_tree, [], ebs)) == [DeleteVolume("vol-1", None, False)]
    assert list(plan_reclaim(in_tree, [], ATTACHER)) == []
    by_hand = structs.replace(in_tree, metadata=structs.replace(in_tree.metadata, annotations={}))
    assert list(plan_reclaim(by_hand, [], ebs)) == []


def test_fields_of_a_volume_that_wake_it() -> None:
    assert relevant_volume_fields(None) == relevant_claim_fields(None) == ()
    assert relevant_volume_fields(pv()) == relevant_volume_fields(pv(annotations={}))
    assert relevant_volume_fields(pv()) != relevant_volume_fields(pv("Bound"))
