"""Every situation of a claim and of a volume, by the numbers in the plan, and the steps it leads to."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from tests.support.waits import describe_wait
from volplane.api import codec
from volplane.api.annotations import (
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    BIND_COMPLETED_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    MIGRATED_TO_ANNOTATION,
    PRE_RESIZE_CAPACITY_ANNOTATION,
    PROVISIONED_BY_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
)
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import (
    EXTERNAL_PROVISIONER_FINALIZER,
    PROVISIONING_INTENT_FINALIZER,
    PV_CONTROLLER_FINALIZER,
)
from volplane.api.storage import StorageClass
from volplane.controllers.binder import plan as p
from volplane.controllers.binder.controller import is_same_volume
from volplane.controllers.binder.plan import ClaimView, VolumeView, plan_claim, plan_volume
from volplane.controllers.binder.steps import group_steps
from volplane.rules.steps import RecordEvent, Requeue
from volplane.rules.waits import Wait

DONE = {BIND_COMPLETED_ANNOTATION: "yes"}
OURS = {BOUND_BY_CONTROLLER_ANNOTATION: "yes"}
ASKED = {
    STORAGE_PROVISIONER_ANNOTATION: "ebs.csi.aws.com",
    BETA_STORAGE_PROVISIONER_ANNOTATION: "ebs.csi.aws.com",
}


def claim(
    phase: str = "Pending",
    notes: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> PersistentVolumeClaim:
    metadata = {
        "namespace": "default",
        "name": "c",
        "uid": "u-c",
        "resourceVersion": "7",
        "annotations": notes or {},
    }
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    whole = {"metadata": metadata, "spec": spec, "status": {"phase": phase, **(status or {})}}
    return codec.convert(PersistentVolumeClaim, whole)


def bound_claim(phase: str = "Bound", **spec: Any) -> PersistentVolumeClaim:
    shown = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}} if phase == "Bound" else {}
    return claim(phase, DONE, shown, **{"volumeName": "v", **spec})


def volume(
    phase: str = "Available", ref: str | None = None, notes: dict[str, str] | None = None, **spec: Any
) -> PersistentVolume:
    """`ref`: None is unclaimed, "" reserved for c without a uid, anything else the uid it names."""
    metadata: dict[str, Any] = {"name": "v", "uid": "u-v", "resourceVersion": "9", "annotations": notes or {}}
    metadata["finalizers"] = spec.pop("finalizers", [])
    source = {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, **source, **spec}
    if ref is not None:
        spec["claimRef"] = {"namespace": "default", "name": "c", "uid": ref}
    return codec.convert(PersistentVolume, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def storage_class(mode: str = "Immediate", provisioner: str = "ebs.csi.aws.com") -> StorageClass:
    whole = {"metadata": {"name": "fast"}, "provisioner": provisioner, "volumeBindingMode": mode}
    return codec.convert(StorageClass, whole)


SCRUBBED: dict[str, Any] = {
    "persistentVolumeReclaimPolicy": "Recycle",
    "csi": None,
    "hostPath": {"path": "/srv/data"},
}
NO_SCRUB = "Recycle failed: the pod that deletes its files failed"


def scrubber(phase: str) -> Pod:
    metadata = {"name": "recycler-for-v", "namespace": "default"}
    return codec.convert(Pod, {"metadata": metadata, "status": {"phase": phase}})


def describe_step(step: object) -> str:
    """A step in a few words, so that the tables can be read."""
    match step:
        case RecordEvent(kind, reason, message, about):
            return f"{kind} {reason}: {message}" + (f" @{type(about).__name__}" if about else "")
        case Wait():
            return describe_wait(step)
        case p.SetVolumePhase(_, phase, message):
            return f"SetVolumePhase {phase} {message}".strip()
        case p.SetClaimStatus(_, phase):
            return f"SetClaimStatus {phase}"
        case p.SetDefaultClass(_, name):
            return f"SetDefaultClass {name}"
        case p.SetProvisioner(_, driver, migrated):
            return f"SetProvisioner {driver}" + (" migrated" if migrated else "")
        case p.VerifyClaimDeleted(key) | Requeue(key):
            return f"{type(step).__name__} {key}"
    return type(step).__name__


BIND = ["SetClaimRef", "SetVolumePhase Bound", "SetVolumeName", "SetClaimStatus Bound"]
OUTSIDE = p.AWAITS_OUTSIDE.format("ebs.csi.aws.com")
MISMATCH = 'Cannot bind to requested volume "v": requested PV is too small'
TAKEN = 'volume "v" already bound to a different claim.'
DELAYED = storage_class("WaitForFirstConsumer")
REMOVED = "the in-tree plugin kubernetes.io/rbd was removed from Kubernetes in v1.31"
NO_PLUGIN = "no volume plugin matched name: kubernetes.io/no-provisioner"

CLAIMS: dict[str, tuple[ClaimView, list[str]]] = {
    "0.1 migrated-to without its plugin": (
        ClaimView(claim(notes=ASKED | {MIGRATED_TO_ANNOTATION: "x"})),
        ["FixMetadata"],
    ),
    "0.1 in-tree provisioner without migrated-to": (
        ClaimView(claim(notes={BETA_STORAGE_PROVISIONER_ANNOTATION: "kubernetes.io/aws-ebs"})),
        ["FixMetadata"],
    ),
    "1.1 class without a binding mode": (
        ClaimView(claim(storageClassName="fast"), storage_class=storage_class("")),
        ["Wait BindingModeNotSet(fast)"],
    ),
    "1.2 a volume fits": (ClaimView(claim(), candidates=[volume()]), BIND),
    "1.2 a volume is reserved": (ClaimView(claim(), candidates=[volume(ref="")]), BIND),
    "1.2 provisioned: the volume names the claim": (
        ClaimView(
            claim(storageClassName="fast"),
            candidates=[volume("Pending", "u-c", storageClassName="fast")],
            storage_class=storage_class(),
        ),
        BIND[1:],
    ),
    "1.2 delayed, the volume names the claim": (
        ClaimView(
            claim(storageClassName="fast"),
            candidates=[volume("Pending", "u-c", storageClassName="fast")],
            storage_class=DELAYED,
        ),
        BIND[1:],
    ),
    "1.3 a default class has appeared": (ClaimView(claim(), default_class="fast"), ["SetDefaultClass fast"]),
    "1.3 a volume comes before the default": (
        ClaimView(claim(), candidates=[volume()], default_class="fast"),
        BIND,
    ),
    "1.3 the empty class gets no default": (
        ClaimView(claim(storageClassName=""), default_class="fast"),
        [f"Normal FailedBinding: {p.NO_VOLUME}", "Wait NoMatchingVolume"],
    ),
    "1.4 delayed, no pod": (
        ClaimView(claim(storageClassName="fast"), storage_class=DELAYED),
        [f"Normal WaitForFirstConsumer: {p.NO_CONSUMER}", "Wait FirstConsumer"],
    ),
    "1.4 delayed, one pod": (
        ClaimView(claim(storageClassName="fast"), storage_class=DELAYED, pods=["a"]),
        [
            "Normal WaitForPodScheduled: waiting for pod a to be scheduled",
            "Wait PodNotScheduled(a)",
        ],
    ),
    "1.4 delayed, two pods": (
        ClaimView(claim(phase="", storageClassName="fast"), storage_class=DELAYED, pods=["a", "b"]),
        [
            "Normal WaitForPodScheduled: waiting for pods a,b to be scheduled",
            "SetClaimStatus Pending",
            "Wait PodNotScheduled(a+b)",
        ],
    ),
    "1.51 provisioning is off": (
        ClaimView(claim(storageClassName="fast"), storage_class=storage_class(), dynamic=False),
        ["Wait ProvisioningDisabled"],
    ),
    "1.52 no such class": (
        ClaimView(claim(storageClassName="slow")),
        [
            'Warning ProvisioningFailed: storageclass.storage.k8s.io "slow" not found',
            "Wait StorageClassNotFound(slow)",
        ],
    ),
    "1.53 no-provisioner": (
        ClaimView(
            claim(storageClassName="fast"),
            storage_class=storage_class(provisioner="kubernetes.io/no-provisioner"),
        ),
        [f"Warning ProvisioningFailed: {NO_PLUGIN}", "Wait NoVolumePlugin(kubernetes.io/no-provisioner)"],
    ),
    "1.53 a plugin that was removed": (
        ClaimView(
            claim(storageClassName="fast"), storage_class=storage_class(provisioner="kubernetes.io/rbd")
        ),
        [
            f"Warning ProvisioningFailed: no volume plugin matched name: kubernetes.io/rbd: {REMOVED}",
            f"Wait NoVolumePlugin(kubernetes.io/rbd): {REMOVED}",
        ],
    ),
    "1.54 hand-off": (
        ClaimView(claim(storageClassName="fast"), storage_class=storage_class()),
        [
            "SetProvisioner ebs.csi.aws.com",
            f"Normal ExternalProvisioning: {OUTSIDE}",
            "Wait ExternalProvisioner(ebs.csi.aws.com)",
        ],
    ),
    "1.54 handed off before": (
        ClaimView(claim(notes=ASKED, storageClassName="fast"), storage_class=storage_class()),
        [f"Normal ExternalProvisioning: {OUTSIDE}", "Wait ExternalProvisioner(ebs.csi.aws.com)"],
    ),
    "1.54 delayed, a node is selected": (
        ClaimView(
            claim(notes={SELECTED_NODE_ANNOTATION: "n1"}, storageClassName="fast"), storage_class=DELAYED
        ),
        [
            "SetProvisioner ebs.csi.aws.com",
            f"Normal ExternalProvisioning: {OUTSIDE}",
            "Wait ExternalProvisioner(ebs.csi.aws.com)",
        ],
    ),
    "1.54 an in-tree name stands for a driver": (
        ClaimView(
            claim(storageClassName="fast"), storage_class=storage_class(provisioner="kubernetes.io/aws-ebs")
        ),
        [
            "SetProvisioner ebs.csi.aws.com migrated",
            f"Normal ExternalProvisioning: {OUTSIDE}",
            "Wait ExternalProvisioner(ebs.csi.aws.com)",
        ],
    ),
    "1.54 migrated, handed off before": (
        ClaimView(
            claim(notes=ASKED | {MIGRATED_TO_ANNOTATION: "ebs.csi.aws.com"}, storageClassName="fast"),
            storage_class=storage_class(provisioner="kubernetes.io/aws-ebs"),
        ),
        [f"Normal ExternalProvisioning: {OUTSIDE}", "Wait ExternalProvisioner(ebs.csi.aws.com)"],
    ),
    "1.6 nothing fits, with the reasons": (
        ClaimView(claim(), unclaimed=[volume(capacity={"storage": "512Mi"})]),
        [
            f"Normal FailedBinding: {p.NO_VOLUME}",
            "Normal NoVolumeFits: no persistent volume fits: v: too small by 512Mi (512Mi of 1Gi)",
            "Wait NoMatchingVolume: v: too small by 512Mi (512Mi of 1Gi)",
        ],
    ),
    "1.6 a phase that is not Pending becomes it": (
        ClaimView(claim(phase="Bound", status={"capacity": {"storage": "1Gi"}})),
        [f"Normal FailedBinding: {p.NO_VOLUME}", "SetClaimStatus Pending", "Wait NoMatchingVolume"],
    ),
    "2.1 the volume does not exist": (
        ClaimView(claim(volumeName="v")),
        ["Wait VolumeNotFound(v)"],
    ),
    "2.2 the volume does not fit": (
        ClaimView(claim(volumeName="v"), volume=volume(capacity={"storage": "1Mi"})),
        [f"Warning VolumeMismatch: {MISMATCH}", f"Wait VolumeMismatch(v): {MISMATCH}"],
    ),
    "2.3 the volume fits": (ClaimView(claim(volumeName="v"), volume=volume()), BIND),
    "2.4 both ask for each other, sizes do not matter": (
        ClaimView(claim(volumeName="v"), volume=volume(ref="", capacity={"storage": "1Mi"})),
        BIND,
    ),
    "2.4 crashed after the volume was taken": (
        ClaimView(claim(volumeName="v"), volume=volume(ref="u-c")),
        BIND[1:],
    ),
    "2.5 another's volume": (
        ClaimView(claim(volumeName="v"), volume=volume("Bound", "u-x")),
        [f"Warning FailedBinding: {TAKEN}", "Wait VolumeBoundToOtherClaim(v)"],
    ),
    "2.6 another's volume, the pointer was ours": (
        ClaimView(claim("Lost", OURS, volumeName="v"), volume=volume("Bound", "u-x")),
        [f"Warning FailedBinding: {TAKEN}", "Wait VolumeBoundToOtherClaim(v)"],
    ),
    "3.1 the pointer was emptied": (
        ClaimView(bound_claim(volumeName="")),
        [
            "SetClaimStatus Lost",
            f"Warning ClaimLost: {p.LOST_REFERENCE}",
            f"Wait ClaimLost: {p.LOST_REFERENCE}",
        ],
    ),
    "3.2 the volume is gone": (
        ClaimView(bound_claim()),
        ["SetClaimStatus Lost", f"Warning ClaimLost: {p.LOST_VOLUME}", f"Wait ClaimLost: {p.LOST_VOLUME}"],
    ),
    "3.2 recorded once": (ClaimView(bound_claim("Lost")), [f"Wait ClaimLost: {p.LOST_VOLUME}"]),
    "3.3 the volume came loose": (
        ClaimView(bound_claim(), volume=volume()),
        ["SetClaimRef", "SetVolumePhase Bound"],
    ),
    "3.3 the volume is back": (
        ClaimView(bound_claim("Lost"), volume=volume()),
        ["SetClaimRef", "SetVolumePhase Bound", "SetClaimStatus Bound"],
    ),
    "3.4 all is well": (ClaimView(bound_claim(), volume=volume("Bound", "u-c")), []),
    "3.4 crashed before the last write": (
        ClaimView(bound_claim("Pending"), volume=volume("Bound", "u-c")),
        ["SetClaimStatus Bound"],
    ),
    "3.4 crashed with the claim pointed and the volume's phase not written": (
        ClaimView(bound_claim("Pending"), volume=volume("Pending", "u-c")),
        ["SetVolumePhase Bound", "SetClaimStatus Bound"],
    ),
    "3.5 another's volume": (
        ClaimView(bound_claim(), volume=volume("Bound", "u-x")),
        ["SetClaimStatus Lost", f"Warning ClaimMisbound: {p.MISBOUND}", f"Wait ClaimLost: {p.MISBOUND}"],
    ),
    "3.5 reserved without a uid is not enough": (
        ClaimView(bound_claim("Lost"), volume=volume(ref="")),
        [f"Wait ClaimLost: {p.MISBOUND}"],
    ),
}


@pytest.mark.parametrize(("view", "steps"), CLAIMS.values(), ids=CLAIMS.keys())
def test_claim(view: ClaimView, steps: list[str]) -> None:
    assert [describe_step(step) for step in plan_claim(view)] == steps


MADE = {PROVISIONED_BY_ANNOTATION: "ebs.csi.aws.com"}
BY_HAND: dict[str, Any] = {"csi": None, "nfs": {"server": "s", "path": "/"}}
NO_DELETER = p.NO_DELETER.format("v")
WHY = "due to incompatible volumeMode."
MINE = f'Cannot bind PersistentVolume to requested PersistentVolumeClaim "c" {WHY}'
THEIRS = f'Cannot bind PersistentVolume "v" to requested PersistentVolumeClaim {WHY}'

VOLUMES: dict[str, tuple[VolumeView, list[str]]] = {
    "0.2 provisioned by a migrated plugin": (
        VolumeView(volume(notes={PROVISIONED_BY_ANNOTATION: "kubernetes.io/aws-ebs"})),
        ["FixMetadata"],
    ),
    "0.2 in-tree and Delete: our finalizer": (
        VolumeView(
            volume(
                notes={PROVISIONED_BY_ANNOTATION: "kubernetes.io/x"}, persistentVolumeReclaimPolicy="Delete"
            )
        ),
        ["FixMetadata"],
    ),
    "0.2 external: its finalizers are its own": (
        VolumeView(volume(notes=MADE, finalizers=[EXTERNAL_PROVISIONER_FINALIZER])),
        [],
    ),
    "4.1 unclaimed": (VolumeView(volume("Pending")), ["SetVolumePhase Available"]),
    "4.1 unclaimed and Available": (VolumeView(volume()), []),
    "4.1 given back by hand": (VolumeView(volume("Released")), ["SetVolumePhase Available"]),
    "4.2 reserved": (VolumeView(volume("Pending", "")), ["SetVolumePhase Available"]),
    "4.3 the claim is not in the cache": (
        VolumeView(volume("Bound", "u-c")),
        ["VerifyClaimDeleted default/c"],
    ),
    "4.4 a claim of that name with another uid": (
        VolumeView(volume("Bound", "u-old"), claim()),
        ["VerifyClaimDeleted default/c"],
    ),
    "4.4 also when Released": (
        VolumeView(volume("Released", "u-old"), claim()),
        ["VerifyClaimDeleted default/c"],
    ),
    "4.5 gone, Retain": (
        VolumeView(volume("Bound", "u-c", persistentVolumeReclaimPolicy="Retain"), proven=True),
        ["SetVolumePhase Released", "Wait VolumeRetained"],
    ),
    "4.5 replaced": (
        VolumeView(volume("Bound", "u-old"), claim(), proven=True),
        ["SetVolumePhase Released", "Wait VolumeRetained"],
    ),
    "4.5 Released needs no second proof": (
        VolumeView(volume("Released", "u-c")),
        ["Wait VolumeRetained"],
    ),
    "4.5 the server knows the claim": (
        VolumeView(volume("Pending", "u-c"), claim(), proven=True),
        ["Requeue pvc/default/c"],
    ),
    "4.6 the modes differ": (
        VolumeView(volume("Pending", "u-c", volumeMode="Block"), claim()),
        [
            f"Warning VolumeMismatch: {MINE}",
            f"Warning VolumeMismatch: {THEIRS} @PersistentVolumeClaim",
            f"Wait VolumeMismatch(default/c): {MINE}",
        ],
    ),
    "4.7 the claim does not know yet": (
        VolumeView(volume("Pending", "u-c"), claim()),
        ["Requeue pvc/default/c"],
    ),
    "4.8 bound": (VolumeView(volume("Available", "u-c"), claim(volumeName="v")), ["SetVolumePhase Bound"]),
    "4.8 all is well": (VolumeView(volume("Bound", "u-c"), bound_claim()), []),
    "4.9 made for a claim that took another": (
        VolumeView(
            volume("Pending", "u-c", MADE, persistentVolumeReclaimPolicy="Delete"),
            bound_claim(volumeName="w"),
        ),
        ["SetVolumePhase Released", "Wait DiskDeletion(ebs.csi.aws.com)"],
    ),
    "4.10 its claim took another": (
        VolumeView(volume("Bound", "u-c", OURS), bound_claim(volumeName="w")),
        ["UnbindVolume", "SetVolumePhase Available"],
    ),
    "5.1 migrated": (
        VolumeView(
            volume(
                "Released",
                "u-c",
                {
                    PROVISIONED_BY_ANNOTATION: "kubernetes.io/aws-ebs",
                    MIGRATED_TO_ANNOTATION: "ebs.csi.aws.com",
                },
                persistentVolumeReclaimPolicy="Delete",
            )
        ),
        ["Wait DiskDeletion(ebs.csi.aws.com)"],
    ),
    "5.3 Delete, the provisioner's": (
        VolumeView(volume("Bound", "u-c", MADE, persistentVolumeReclaimPolicy="Delete"), proven=True),
        ["SetVolumePhase Released", "Wait DiskDeletion(ebs.csi.aws.com)"],
    ),
    "5.3 Delete, static CSI": (
        VolumeView(volume("Released", "u-c", persistentVolumeReclaimPolicy="Delete")),
        ["Wait DiskDeletion(ebs.csi.aws.com)"],
    ),
    "5.4 Delete, no deleter": (
        VolumeView(volume("Released", "u-c", persistentVolumeReclaimPolicy="Delete", **BY_HAND)),
        [
            f"SetVolumePhase Failed {NO_DELETER}",
            f"Warning VolumeFailedDelete: {NO_DELETER}",
            f"Wait ReclaimFailed: {NO_DELETER}",
        ],
    ),
    "5.4 Failed stays, recorded once": (
        VolumeView(volume("Failed", "u-c", persistentVolumeReclaimPolicy="Delete", **BY_HAND)),
        [f"Wait ReclaimFailed: {NO_DELETER}"],
    ),
    "5.5 Recycle, no recycler": (
        VolumeView(volume("Released", "u-c", persistentVolumeReclaimPolicy="Recycle")),
        [
            f"SetVolumePhase Failed {p.NO_RECYCLER}",
            f"Warning VolumeFailedRecycle: {p.NO_RECYCLER}",
            f"Wait ReclaimFailed: {p.NO_RECYCLER}",
        ],
    ),
    "5.51 Recycle, still used": (
        VolumeView(volume("Released", "u-c", **SCRUBBED), users=("default/web", "default/api")),
        [
            "Normal VolumeFailedRecycle: Volume is used by pods: default/api, default/web",
            "Wait RecycledVolumeInUse(default/api+default/web)",
        ],
    ),
    "5.52 Recycle begins": (
        VolumeView(volume("Released", "u-c", **SCRUBBED)),
        ["CreateRecycler", "Wait Recycling(recycler-for-v)"],
    ),
    "5.53 Recycle done": (
        VolumeView(volume("Released", "u-c", **SCRUBBED), recycler=scrubber("Succeeded")),
        [
            "DeleteRecycler",
            "Normal VolumeRecycled: Volume recycled",
            "UnbindVolume",
            "SetVolumePhase Available",
        ],
    ),
    "5.54 Recycle failed": (
        VolumeView(volume("Released", "u-c", **SCRUBBED), recycler=scrubber("Failed")),
        [
            "DeleteRecycler",
            f"SetVolumePhase Failed {NO_SCRUB}",
            f"Warning VolumeFailedRecycle: {NO_SCRUB}",
            f"Wait ReclaimFailed: {NO_SCRUB}",
        ],
    ),
    "5.55 Recycle goes on": (
        VolumeView(volume("Released", "u-c", **SCRUBBED), recycler=scrubber("Running")),
        ["Wait Recycling(recycler-for-v)"],
    ),
    "5.6 unknown policy": (
        VolumeView(volume("Released", "u-c", persistentVolumeReclaimPolicy="Burn")),
        [
            f"SetVolumePhase Failed {p.UNKNOWN_POLICY}",
            f"Warning VolumeUnknownReclaimPolicy: {p.UNKNOWN_POLICY}",
            f"Wait ReclaimFailed: {p.UNKNOWN_POLICY}",
        ],
    ),
}


@pytest.mark.parametrize(("view", "steps"), VOLUMES.values(), ids=VOLUMES.keys())
def test_volume(view: VolumeView, steps: list[str]) -> None:
    assert [describe_step(step) for step in plan_volume(view)] == steps


def test_the_volumes_phase_and_the_claims_pointer_go_group_steps_and_nothing_else_does() -> None:
    steps = list(plan_claim(ClaimView(claim(), candidates=[volume()])))
    assert [[describe_step(step) for step in batch] for batch in group_steps(steps)] == [
        ["SetClaimRef"],
        ["SetVolumePhase Bound", "SetVolumeName"],
        ["SetClaimStatus Bound"],
    ]


# --- what each write says


def test_6_1_a_taken_volume_names_the_claim_in_full_and_bears_our_mark() -> None:
    patch = p.SetClaimRef(volume(), claim()).patch
    assert patch["spec"]["claimRef"] == {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": "default",
        "name": "c",
        "uid": "u-c",
        "resourceVersion": "7",
    }
    assert patch["metadata"] == {"annotations": OURS}


def test_6_1_a_volume_reserved_by_a_user_bears_no_mark_of_ours() -> None:
    assert "metadata" not in p.SetClaimRef(volume(ref=""), claim()).patch


def test_6_3_the_claim_is_marked_as_ours_only_when_we_pointed_it() -> None:
    assert p.SetVolumeName("v", claim()).patch == {
        "metadata": {"annotations": DONE | OURS},
        "spec": {"volumeName": "v"},
    }
    assert p.SetVolumeName("v", claim(volumeName="v")).patch == {"metadata": {"annotations": DONE}}


@pytest.mark.parametrize("named", ["", "v"])
def test_6_3_the_write_that_binds_removes_the_intent_of_the_provisioner(named: str) -> None:
    intent = {PROVISIONING_INTENT_FINALIZER: '{"driver":"d","name":"v","size":1}'}
    kept = ["kubernetes.io/pvc-protection"]
    provisioned = _with_intent(claim(volumeName=named), [*kept, PROVISIONING_INTENT_FINALIZER], intent)
    metadata = p.SetVolumeName("v", provisioned).patch["metadata"]
    removed = {PROVISIONING_INTENT_FINALIZER: None}
    assert metadata == {"finalizers": kept, "annotations": DONE | removed | ({} if named else OURS)}
    alone = _with_intent(claim(), [PROVISIONING_INTENT_FINALIZER], intent)
    assert p.SetVolumeName("v", alone).patch["metadata"]["finalizers"] is None


@pytest.mark.parametrize("request_text", ['{"name":"other"}', "edited by hand", '{"name":1}', "{}"])
def test_6_3_an_intent_for_another_volume_stays(request_text: str) -> None:
    intent = {PROVISIONING_INTENT_FINALIZER: request_text}
    provisioned = _with_intent(claim(), [PROVISIONING_INTENT_FINALIZER], intent)
    assert p.SetVolumeName("v", provisioned).patch["metadata"] == {"annotations": DONE | OURS}


def _with_intent(
    claim: PersistentVolumeClaim, finalizers: list[str], annotations: dict[str, str]
) -> PersistentVolumeClaim:
    metadata = structs.replace(claim.metadata, finalizers=tuple(finalizers), annotations=annotations)
    return structs.replace(claim, metadata=metadata)


def test_6_4_size_and_attributes_are_told_when_the_claim_becomes_bound_and_not_again() -> None:
    grown = volume("Bound", "u-c", capacity={"storage": "2Gi"}, volumeAttributesClassName="gold")
    assert p.SetClaimStatus(claim(), "Bound", grown).patch["status"] == {
        "phase": "Bound",
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "2Gi"},
        "currentVolumeAttributesClassName": "gold",
    }
    assert p.SetClaimStatus(bound_claim(), "Bound", grown).patch["status"] == {
        "phase": "Bound",
        "accessModes": ["ReadWriteOnce"],
    }
    assert (
        "currentVolumeAttributesClassName"
        not in p.SetClaimStatus(bound_claim("Lost"), "Bound", grown).patch["status"]
    )


def test_6_4_a_volume_that_is_being_resized_tells_its_size_before() -> None:
    growing = volume(notes={PRE_RESIZE_CAPACITY_ANNOTATION: "512Mi"})
    assert p.SetClaimStatus(claim(), "Bound", growing).patch["status"]["capacity"] == {"storage": "512Mi"}


def test_6_4_without_a_volume_the_status_is_emptied() -> None:
    assert p.SetClaimStatus(bound_claim(), "Lost").patch == {
        "status": {
            "phase": "Lost",
            "accessModes": None,
            "capacity": None,
            "currentVolumeAttributesClassName": None,
        }
    }


def test_unbinding_removes_our_pointer_and_only_the_uid_of_a_users() -> None:
    assert p.UnbindVolume(volume("Bound", "u-c", OURS)).patch == {
        "metadata": {"annotations": {BOUND_BY_CONTROLLER_ANNOTATION: None}},
        "spec": {"claimRef": None},
    }
    assert p.UnbindVolume(volume("Bound", "u-c")).patch == {"spec": {"claimRef": {"uid": None}}}


def test_0_2_finalizers_follow_the_policy() -> None:
    in_tree = {PROVISIONED_BY_ANNOTATION: "kubernetes.io/x"}
    kept = volume(
        notes=in_tree,
        persistentVolumeReclaimPolicy="Retain",
        finalizers=[PV_CONTROLLER_FINALIZER, EXTERNAL_PROVISIONER_FINALIZER, "mine"],
    )
    (step,) = plan_volume(VolumeView(kept))
    assert isinstance(step, p.FixMetadata)
    assert step.patch == {"metadata": {"finalizers": ["mine"]}}


@pytest.mark.parametrize(
    ("annotations", "change", "wakes"),
    [
        ({}, {"finalizers": ("a",)}, False),
        ({"pv.kubernetes.io/provisioned-by": "csi.example.com"}, {"finalizers": ("a",)}, False),
        ({"pv.kubernetes.io/provisioned-by": "kubernetes.io/host-path"}, {"finalizers": ("a",)}, True),
        ({}, {"labels": {"a": "b"}}, True),
        ({}, {"annotations": {"a": "b"}}, True),
        ({}, {"deletion_timestamp": "2026-11-15T20:00:00Z"}, True),
        ({}, {"uid": "other"}, True),
    ],
)
def test_a_finalizer_of_a_volume_wakes_nobody_unless_its_plugin_is_in_tree(
    annotations: dict[str, str], change: dict[str, Any], wakes: bool
) -> None:
    old = volume("Bound", "u-c")
    old = structs.replace(old, metadata=structs.replace(old.metadata, annotations=annotations))
    new = structs.replace(old, metadata=structs.replace(old.metadata, **change))
    assert is_same_volume(old, new) is not wakes
