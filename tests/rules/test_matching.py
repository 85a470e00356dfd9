"""Which volume a claim gets: contract provisioning A.5 and the checks of A.2, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.rules import matching

ME = {"namespace": "default", "name": "data", "uid": "u-data"}
ZONE = "topology.kubernetes.io/zone"


def claim(size: str = "1Gi", **spec: Any) -> PersistentVolumeClaim:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", **spec}
    spec["resources"] = {"requests": {"storage": size}}
    return codec.convert(PersistentVolumeClaim, {"metadata": ME, "spec": spec})


def volume(
    name: str,
    size: str = "1Gi",
    phase: str = "Available",
    labels: dict[str, str] | None = None,
    deleting: bool = False,
    **spec: Any,
) -> PersistentVolume:
    metadata = {"name": name, "labels": labels or {}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, **spec}
    return codec.convert(PersistentVolume, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def for_me(uid: str = "") -> dict[str, str]:
    return {"namespace": "default", "name": "data", "uid": uid}


def in_zone(zone: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    return {"required": {"nodeSelectorTerms": [term]}}


BEST = {
    "the smallest that is big enough": (
        claim("1Gi"),
        [volume("five", "5Gi"), volume("two", "2Gi"), volume("ten", "10Gi")],
        "two",
    ),
    "too small is no match": (claim("3Gi"), [volume("two", "2Gi")], None),
    "equal sizes by name": (claim(), [volume("b"), volume("a")], "a"),
    "fewest access modes before smallest": (
        claim(),
        [volume("many", "1Gi", accessModes=["ReadWriteOnce", "ReadOnlyMany"]), volume("one", "8Gi")],
        "one",
    ),
    "every wanted mode is offered": (
        claim(accessModes=["ReadWriteOnce", "ReadOnlyMany"]),
        [volume("a")],
        None,
    ),
    "another class": (claim(storageClassName="fast"), [volume("a", storageClassName="slow")], None),
    "no class wants no class": (claim(), [volume("a", storageClassName="slow")], None),
    "unset class acts like none": (claim(storageClassName=None), [volume("a")], "a"),
    "block wants block": (claim(volumeMode="Block"), [volume("a"), volume("b", volumeMode="Block")], "b"),
    "unset mode is Filesystem": (claim(volumeMode="Filesystem"), [volume("a")], "a"),
    "another attributes class": (claim(volumeAttributesClassName="gold"), [volume("a")], None),
    "empty attributes class is none": (claim(volumeAttributesClassName=""), [volume("a")], "a"),
    "terminating": (claim(), [volume("a", deleting=True)], None),
    "not yet Available": (claim(), [volume("a", phase="Pending")], None),
    "Released": (claim(), [volume("a", phase="Released")], None),
    "claimed by another": (claim(), [volume("a", claimRef=for_me() | {"name": "other"})], None),
    "claimed by an earlier claim of the name": (claim(), [volume("a", claimRef=for_me("u-old"))], None),
    "selector met": (
        claim(selector={"matchLabels": {"disk": "ssd"}}),
        [volume("a"), volume("b", labels={"disk": "ssd"})],
        "b",
    ),
    "reserved by name beats smaller": (claim(), [volume("a"), volume("b", "9Gi", claimRef=for_me())], "b"),
    "reserved ignores phase, class and selector": (
        claim(selector={"matchLabels": {"disk": "ssd"}}),
        [volume("a", phase="Pending", storageClassName="slow", claimRef=for_me("u-data"))],
        "a",
    ),
    "reserved but too small": (claim("2Gi"), [volume("a", claimRef=for_me())], None),
    "a smaller mode set beats a reserved volume": (
        claim(),
        [volume("a"), volume("b", accessModes=["ReadWriteOnce", "ReadWriteMany"], claimRef=for_me())],
        "a",
    ),
}


@pytest.mark.parametrize(("wanted", "volumes", "name"), BEST.values(), ids=BEST.keys())
def test_the_binder_takes(
    wanted: PersistentVolumeClaim, volumes: list[PersistentVolume], name: str | None
) -> None:
    for order in (volumes, volumes[::-1]):
        found = matching.best(wanted, order)
        assert (found.name if found else None) == name


def test_a_delayed_claim_takes_only_what_is_reserved_for_it() -> None:
    free, mine = volume("a"), volume("b", claimRef=for_me())
    assert matching.best(claim(), [free], delayed=True) is None
    assert matching.best(claim(), [free, mine], delayed=True) is mine


ON_A_NODE = {
    "reachable": ([volume("a", nodeAffinity=in_zone("z1"))], "a"),
    "elsewhere": ([volume("a", nodeAffinity=in_zone("z2"))], None),
    "no affinity": ([volume("a")], "a"),
    "smallest whatever its modes": (
        [volume("a", "2Gi"), volume("b", "1Gi", accessModes=["ReadWriteOnce", "ReadOnlyMany"])],
        "b",
    ),
    "reserved elsewhere spoils the node": (
        [volume("a"), volume("b", claimRef=for_me(), nodeAffinity=in_zone("z2"))],
        None,
    ),
    "already chosen": ([volume("taken"), volume("z", "5Gi")], "z"),
}


@pytest.mark.parametrize(("volumes", "name"), ON_A_NODE.values(), ids=ON_A_NODE.keys())
def test_the_scheduler_takes(volumes: list[PersistentVolume], name: str | None) -> None:
    found = matching.best(claim(), volumes, delayed=True, labels={ZONE: "z1"}, taken={"taken"})
    assert (found.name if found else None) == name


REFUSALS = {
    "size": (volume("a", "1Gi"), "too small by 4Gi (1Gi of 5Gi)"),
    "class": (
        volume("a", "5Gi", labels={"disk": "ssd"}, storageClassName="slow"),
        'storage class is "slow", not ""',
    ),
    "selector before class": (
        volume("a", "5Gi", storageClassName="slow"),
        "selector disk=ssd is not met",
    ),
    "mode": (volume("a", "5Gi", volumeMode="Block"), "volumeMode is Block, not Filesystem"),
    "access": (volume("a", "5Gi", accessModes=["ReadOnlyMany"]), "does not offer ReadWriteOnce"),
    "selector": (volume("a", "5Gi"), "selector disk=ssd is not met"),
    "phase": (volume("a", "5Gi", "Failed", {"disk": "ssd"}), "phase is Failed"),
    "claimed": (volume("a", "5Gi", claimRef=for_me("u-old")), "claimed by default/data"),
    "deleting": (volume("a", "5Gi", deleting=True), "being deleted"),
    "none": (volume("a", "5Gi", labels={"disk": "ssd"}), ""),
}


@pytest.mark.parametrize(("candidate", "why"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_says_why(candidate: PersistentVolume, why: str) -> None:
    wanted = claim("5Gi", selector={"matchLabels": {"disk": "ssd"}})
    assert matching.refusal(candidate, wanted) == why


def test_refusals_name_the_first_volumes_and_count_the_rest() -> None:
    volumes = [volume(f"v{i}") for i in range(7)] + [volume("hers", claimRef=for_me() | {"name": "other"})]
    assert matching.refusals(claim("2Gi"), volumes, most=2) == (
        "v0: too small by 1Gi (1Gi of 2Gi); v1: too small by 1Gi (1Gi of 2Gi); and 5 more"
    )


MISMATCHES = {
    "fits": (volume("a", "5Gi", "Bound"), ""),
    "deleting comes first": (volume("a", deleting=True), 'the volume is marked for deletion "a"'),
    "size before class": (volume("a", storageClassName="slow"), "requested PV is too small"),
    "class": (volume("a", "5Gi", storageClassName="slow"), "storageClassName does not match"),
    "attributes": (
        volume("a", "5Gi", volumeAttributesClassName="gold"),
        "volumeAttributesClassName does not match",
    ),
    "mode": (volume("a", "5Gi", volumeMode="Block"), "incompatible volumeMode"),
    "access": (volume("a", "5Gi", accessModes=["ReadOnlyMany"]), "incompatible accessMode"),
}


@pytest.mark.parametrize(("asked", "why"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_a_volume_asked_for_by_name_is_checked(asked: PersistentVolume, why: str) -> None:
    assert matching.mismatch(asked, claim("5Gi")) == why
