"""Whatever claims and volumes look like: the binder comes to rest, outlives any crash, gives nothing twice.

The plans are played against a little world in memory that applies their patches as the API server does. A
crash is a plan of which only the first steps happen.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from volplane.api import codec
from volplane.api.annotations import (
    BIND_COMPLETED_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    PROVISIONED_BY_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
)
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.storage import StorageClass
from volplane.controllers.binder import steps as s
from volplane.controllers.binder.plan import ClaimView, VolumeView, plan_claim, plan_volume
from volplane.rules import binding, classes

CLASSES = {
    name: codec.convert(
        StorageClass, {"metadata": {"name": name}, "provisioner": made_by, "volumeBindingMode": mode}
    )
    for name, made_by, mode in [
        ("now", "ebs.csi.aws.com", "Immediate"),
        ("later", "ebs.csi.aws.com", "WaitForFirstConsumer"),
        ("hand", classes.NO_PROVISIONER, "Immediate"),
    ]
}
CLAIMS = ("a", "b", "c")
VOLUMES = ("v", "w", "x")
SIZES = ("1Gi", "2Gi")
CLASS_NAMES = ("", "now", "later", "hand", "missing")


class BinderWorld:
    def __init__(
        self, claims: list[PersistentVolumeClaim], volumes: list[PersistentVolume], default: str
    ) -> None:
        self.claims = {c.name: c for c in claims}
        self.volumes = {v.name: v for v in volumes}
        self.default = default

    def view(self, claim: PersistentVolumeClaim) -> ClaimView:
        volumes = list(self.volumes.values())
        name = binding.claim_class(claim)
        return ClaimView(
            claim,
            volume=self.volumes.get(claim.spec.volume_name),
            candidates=[v for v in volumes if binding.is_free_for(v, claim)],
            unclaimed=[v for v in volumes if v.spec.claim_ref is None],
            storage_class=CLASSES.get(name or ""),
            default_class=self.default,
        )

    def act(self, step: object) -> bool:
        """Whether the step wrote anything."""
        match step:
            case s.SetClaimRef(target) | s.SetVolumePhase(target) | s.UnbindVolume(target):
                self.volumes[target.name] = apply_merge_patch(self.volumes[target.name], step.patch)
            case (
                s.SetVolumeName(_, target)
                | s.SetClaimStatus(target)
                | s.SetDefaultClass(target)
                | s.SetProvisioner(target)
            ):
                self.claims[target.name] = apply_merge_patch(self.claims[target.name], step.patch)
            case s.FixMetadata(PersistentVolume() as target):
                self.volumes[target.name] = apply_merge_patch(self.volumes[target.name], step.patch)
            case s.FixMetadata(target):
                self.claims[target.name] = apply_merge_patch(self.claims[target.name], step.patch)
            case _:
                return False
        return True

    def rounds(self, crashes: list[int]) -> int:
        """Plan and act for everybody until nothing is written any more; how many rounds that took."""
        budget = iter(crashes)
        for turn in range(40):
            wrote = False
            for name in CLAIMS:
                if name in self.claims:
                    wrote |= self._play(list(plan_claim(self.view(self.claims[name]))), next(budget, 99))
            for name in VOLUMES:
                if name in self.volumes:
                    view = VolumeView(self.volumes[name], self._claim_of(self.volumes[name]), proven=True)
                    wrote |= self._play(list(plan_volume(view)), next(budget, 99))
            if not wrote:
                return turn
        raise AssertionError("the binder does not come to rest")

    def _play(self, steps: list[Any], most: int) -> bool:
        return any([self.act(step) for step in steps[:most]]) or (most < len(steps))

    def _claim_of(self, volume: PersistentVolume) -> PersistentVolumeClaim | None:
        ref = volume.spec.claim_ref
        return self.claims.get(ref.name) if ref else None


def apply_merge_patch(obj: Any, patch: Any) -> Any:
    return codec.convert(type(obj), merge(codec.to_dict(obj), patch))


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge(made.get(key), value)
    return made


@st.composite
def claims(draw: st.DrawFn, name: str) -> PersistentVolumeClaim:
    notes = {}
    if draw(st.booleans()):
        notes[BIND_COMPLETED_ANNOTATION] = "yes"
    if draw(st.booleans()):
        notes[BOUND_BY_CONTROLLER_ANNOTATION] = "yes"
    if draw(st.booleans()):
        notes[SELECTED_NODE_ANNOTATION] = "n1"
    spec: dict[str, Any] = {
        "accessModes": draw(st.sampled_from([["ReadWriteOnce"], ["ReadWriteMany"]])),
        "resources": {"requests": {"storage": draw(st.sampled_from(SIZES))}},
        "volumeName": draw(st.sampled_from(["", "", *VOLUMES])),
    }
    wanted = draw(st.sampled_from([None, *CLASS_NAMES]))
    if wanted is not None:
        spec["storageClassName"] = wanted
    # What no sequence of writes leads to is not drawn: Bound and Lost come after the mark.
    marked = BIND_COMPLETED_ANNOTATION in notes
    phase = draw(st.sampled_from(["Pending", "Bound", "Lost"] if marked else ["Pending"]))
    metadata = {"namespace": "default", "name": name, "uid": f"u-{name}", "annotations": notes}
    return codec.convert(
        PersistentVolumeClaim, {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
    )


@st.composite
def volumes(draw: st.DrawFn, name: str) -> PersistentVolume:
    notes = {}
    if draw(st.booleans()):
        notes[BOUND_BY_CONTROLLER_ANNOTATION] = "yes"
    if draw(st.booleans()):
        notes[PROVISIONED_BY_ANNOTATION] = draw(
            st.sampled_from(["ebs.csi.aws.com", "kubernetes.io/aws-ebs", "kubernetes.io/x"])
        )
    spec: dict[str, Any] = {
        "accessModes": draw(st.sampled_from([["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"]])),
        "capacity": {"storage": draw(st.sampled_from(SIZES))},
        "storageClassName": draw(st.sampled_from(CLASS_NAMES)),
        "persistentVolumeReclaimPolicy": draw(st.sampled_from(["Retain", "Delete", "Recycle"])),
    }
    owner = draw(st.sampled_from([None, None, *CLAIMS]))
    if owner is not None:
        uid = draw(st.sampled_from(["", f"u-{owner}", "u-old"]))
        spec["claimRef"] = {"namespace": "default", "name": owner, "uid": uid}
    phase = draw(st.sampled_from(["Pending", "Available", "Bound", "Released", "Failed"]))
    metadata = {"name": name, "uid": f"u-{name}", "annotations": notes}
    return codec.convert(PersistentVolume, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


@st.composite
def worlds(draw: st.DrawFn) -> BinderWorld:
    some = [draw(claims(name)) for name in CLAIMS if draw(st.booleans())]
    others = [draw(volumes(name)) for name in VOLUMES if draw(st.booleans())]
    return BinderWorld(some, others, draw(st.sampled_from(["", "now"])))


@settings(max_examples=300, deadline=None)
@given(worlds(), st.lists(st.integers(0, 4), max_size=12))
def test_the_binder_comes_to_rest_and_no_volume_has_two_claims(
    world: BinderWorld, crashes: list[int]
) -> None:
    before = {name: claim for name, claim in world.claims.items() if is_whole(world, claim)}
    world.rounds(crashes)
    assert world.rounds([]) == 0  # applied to its own result, the plan writes nothing

    holders = [c.spec.volume_name for c in world.claims.values() if c.status.phase == "Bound"]
    assert len(holders) == len(set(holders)), "a volume is bound to two claims"
    for claim in world.claims.values():
        if claim.status.phase == "Bound":
            assert binding.is_pair(claim, world.volumes[claim.spec.volume_name])
            assert world.volumes[claim.spec.volume_name].status.phase == "Bound"
    for name, claim in before.items():
        assert world.claims[name].spec.volume_name == claim.spec.volume_name, "a bound claim lost its volume"
        assert world.claims[name].status.phase == "Bound"


def is_whole(world: BinderWorld, claim: PersistentVolumeClaim) -> bool:
    volume = world.volumes.get(claim.spec.volume_name)
    return volume is not None and binding.is_bound(claim) and binding.is_pair(claim, volume)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4), st.sampled_from(["", "v"]))
def test_a_crash_after_any_of_the_four_writes_is_finished_without_a_second_volume(
    most: int, named: str
) -> None:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
        "volumeName": named,
    }
    metadata = {"namespace": "default", "name": "a", "uid": "u-a"}
    claim = codec.convert(
        PersistentVolumeClaim, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    )
    free = [
        codec.convert(
            PersistentVolume,
            {
                "metadata": {"name": name, "uid": f"u-{name}"},
                "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}},
                "status": {"phase": "Available"},
            },
        )
        for name in ("v", "w")
    ]
    world = BinderWorld([claim], free, "")
    world.rounds([most])
    assert world.claims["a"].spec.volume_name == "v"
    assert world.claims["a"].status.phase == "Bound"
    assert world.volumes["v"].status.phase == "Bound"
    assert world.volumes["w"].status.phase == "Available"
    assert world.volumes["w"].spec.claim_ref is None
