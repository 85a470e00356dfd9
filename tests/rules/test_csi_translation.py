"""In-tree EBS objects and their CSI equivalents, as Kubernetes' CSI migration translates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from volplane.api.codec import convert
from volplane.api.core import PersistentVolume, Pod, Volume
from volplane.api.object import Object
from volplane.api.storage import StorageClass
from volplane.rules import topology
from volplane.rules.csi_translation import (
    UntranslatableObject,
    find_csi_source,
    list_inline_volumes,
    translate_class,
    translate_inline_volume,
    translate_to_in_tree,
    translate_volume,
)

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
CSI_ZONE = "topology.ebs.csi.aws.com/zone"
Need = tuple[str, Sequence[str]]


def plain(obj: Object) -> Any:
    """As on the wire."""
    return msgspec.json.decode(msgspec.json.encode(obj))


def affinity(*terms: Sequence[Need]) -> dict[str, object]:
    needs = [[{"key": key, "operator": "In", "values": list(values)} for key, values in t] for t in terms]
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": term} for term in needs]}}


def in_tree(
    disk: str = "vol-1",
    *,
    labels: Mapping[str, str] | None = None,
    where: dict[str, object] | None = None,
    **more: object,
) -> PersistentVolume:
    spec: dict[str, object] = {
        "awsElasticBlockStore": {"volumeID": disk, **more},
        "capacity": {"storage": "1Gi"},
    }
    if where is not None:
        spec["nodeAffinity"] = where
    return convert(PersistentVolume, {"metadata": {"name": "pv", "labels": dict(labels or {})}, "spec": spec})


def csi(
    *, labels: Mapping[str, str] | None = None, where: dict[str, object] | None = None, **more: object
) -> PersistentVolume:
    spec: dict[str, object] = {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", **more}}
    if where is not None:
        spec["nodeAffinity"] = where
    return convert(PersistentVolume, {"metadata": {"name": "pv", "labels": dict(labels or {})}, "spec": spec})


def storage_class(provisioner: str = "kubernetes.io/aws-ebs", **more: object) -> StorageClass:
    return convert(StorageClass, {"metadata": {"name": "gp"}, "provisioner": provisioner, **more})


# --- volumes to CSI


@pytest.mark.parametrize(
    "written", ["vol-1", "aws:///vol-1", "aws://us-east-1a/vol-1", "aws://us-east-1a/vol-1/"]
)
def test_every_spelling_of_a_volume_id_is_the_same_disk(written: str) -> None:
    source = find_csi_source(in_tree(written))
    assert source is not None
    assert (source.driver, source.volume_handle) == ("ebs.csi.aws.com", "vol-1")


def test_a_bare_id_is_not_checked() -> None:
    assert plain(translate_volume(in_tree("disk")).spec)["csi"]["volumeHandle"] == "disk"


@pytest.mark.parametrize(
    "written", ["aws://", "aws://us-east-1a", "aws://us-east-1a/disk", "aws://a/b/vol-1"]
)
def test_an_id_that_names_no_disk_is_refused_with_its_field(written: str) -> None:
    volume = in_tree(written)
    with pytest.raises(
        UntranslatableObject, match=r"PersistentVolume pv: spec\.awsElasticBlockStore\.volumeID"
    ):
        translate_volume(volume)
    assert find_csi_source(volume) is None


def test_all_fields_of_the_source_are_translated_and_all_others_stay() -> None:
    translated = translate_volume(in_tree(fsType="xfs", partition=2, readOnly=True))
    assert plain(translated.spec) == {
        "capacity": {"storage": "1Gi"},
        "csi": {
            "driver": "ebs.csi.aws.com",
            "volumeHandle": "vol-1",
            "fsType": "xfs",
            "readOnly": True,
            "volumeAttributes": {"partition": "2"},
        },
    }


def test_other_volumes_are_not_changed() -> None:
    volume = csi()
    assert translate_volume(volume) is volume
    assert find_csi_source(volume) is volume.spec.csi
    assert find_csi_source(PersistentVolume()) is None
    assert find_csi_source(None) is None


TOPOLOGIES = {
    "nothing is known": (in_tree(), None),
    "zone": (in_tree(where=affinity([(ZONE, ["a"])])), affinity([(CSI_ZONE, ["a"])])),
    "zone and region, two terms": (
        in_tree(where=affinity([(ZONE, ["a"]), (REGION, ["r"])], [(ZONE, ["b"])])),
        affinity([(CSI_ZONE, ["a"]), (REGION, ["r"])], [(CSI_ZONE, ["b"])]),
    ),
    "beta labels": (
        in_tree(where=affinity([(BETA_ZONE, ["a"]), (BETA_REGION, ["r"])])),
        affinity([(CSI_ZONE, ["a"]), (REGION, ["r"])]),
    ),
    "both spellings: the present one counts": (
        in_tree(where=affinity([(BETA_ZONE, ["b"]), (ZONE, ["a"])])),
        affinity([(BETA_ZONE, ["b"]), (CSI_ZONE, ["a"])]),
    ),
    "affinity before labels": (
        in_tree(labels={ZONE: "b"}, where=affinity([(BETA_ZONE, ["a"])])),
        affinity([(CSI_ZONE, ["a"])]),
    ),
    "label": (in_tree(labels={ZONE: "a"}), affinity([(CSI_ZONE, ["a"])])),
    "beta label of two zones": (in_tree(labels={BETA_ZONE: "b__a__ "}), affinity([(CSI_ZONE, ["a", "b"])])),
    "empty label": (in_tree(labels={ZONE: " "}), None),
    "label, added to each term": (
        in_tree(labels={ZONE: "a"}, where=affinity([("x", ["1"])], [("y", ["2"])])),
        affinity([("x", ["1"]), (CSI_ZONE, ["a"])], [("y", ["2"]), (CSI_ZONE, ["a"])]),
    ),
}


@pytest.mark.parametrize(("volume", "wanted"), TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_zones_are_those_of_the_driver(volume: PersistentVolume, wanted: dict[str, object] | None) -> None:
    assert plain(translate_volume(volume).spec).get("nodeAffinity") == wanted


def test_a_node_reaches_an_in_tree_volume_by_the_zone_key_of_the_driver() -> None:
    volume = in_tree(labels={ZONE: "a"})
    assert topology.is_reachable_from(volume, {CSI_ZONE: "a"})
    assert not topology.is_reachable_from(volume, {ZONE: "a", CSI_ZONE: "b"})


def test_a_volume_of_a_pod_becomes_a_volume_named_after_its_disk() -> None:
    source = convert(
        Volume, {"name": "data", "awsElasticBlockStore": {"volumeID": "aws:///vol-1", "readOnly": True}}
    )
    volume = translate_inline_volume(source)
    assert volume is not None
    assert volume.name == "ebs.csi.aws.com-vol-1"
    assert plain(volume.spec) == {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "csi": {
            "driver": "ebs.csi.aws.com",
            "volumeHandle": "vol-1",
            "readOnly": True,
            "volumeAttributes": {"partition": "0"},
        },
    }


def test_only_translatable_volumes_of_a_pod_are_listed() -> None:
    volumes = [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "awsElasticBlockStore": {"volumeID": "aws://x"}},
        {"name": "c", "awsElasticBlockStore": {"volumeID": "vol-1"}},
    ]
    pod = convert(Pod, {"spec": {"volumes": volumes}})
    assert [volume.name for volume in list_inline_volumes(pod)] == ["ebs.csi.aws.com-vol-1"]
    with pytest.raises(UntranslatableObject, match=r"volume b: awsElasticBlockStore\.volumeID"):
        translate_inline_volume(pod.spec.volumes[1])


# --- provisioned volumes back


def test_a_provisioned_volume_gets_its_zone_and_region_in_affinity_and_labels() -> None:
    made = csi(
        fsType="ext4",
        readOnly=True,
        volumeAttributes={"partition": "3"},
        where=affinity([(CSI_ZONE, ["us-east-1a"])]),
    )
    back = plain(translate_to_in_tree(made))
    assert back["spec"]["awsElasticBlockStore"] == {
        "volumeID": "vol-1",
        "fsType": "ext4",
        "partition": 3,
        "readOnly": True,
    }
    assert "csi" not in back["spec"]
    assert back["spec"]["nodeAffinity"] == affinity([(ZONE, ["us-east-1a"]), (REGION, ["us-east-1"])])
    assert back["metadata"]["labels"] == {ZONE: "us-east-1a", REGION: "us-east-1"}


def test_zones_of_several_terms_are_joined_and_existing_labels_stay() -> None:
    made = csi(
        labels={REGION: "mine"},
        where=affinity([(ZONE, ["us-east-1b"])], [(ZONE, ["us-east-1a"]), (REGION, ["us-east-1"])]),
    )
    assert translate_to_in_tree(made).metadata.labels == {ZONE: "us-east-1a__us-east-1b", REGION: "mine"}


def test_several_regions_give_no_label_of_the_region() -> None:
    made = csi(where=affinity([(ZONE, ["us-east-1a"])], [(ZONE, ["us-west-2a"])]))
    assert translate_to_in_tree(made).metadata.labels == {ZONE: "us-east-1a__us-west-2a"}


def test_a_volume_without_topology_stays_without() -> None:
    back = translate_to_in_tree(csi())
    assert (back.metadata.labels, back.spec.node_affinity) == ({}, None)


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("us-west-2a", "us-west-2"),
        ("us-gov-east-1a", "us-gov-east-1"),
        ("us-west-2-lax-1a", "us-west-2"),
        ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
    ],
)
def test_the_region_is_part_of_the_name_of_a_zone(zone: str, region: str) -> None:
    made = csi(where=affinity([(CSI_ZONE, [zone])]))
    assert translate_to_in_tree(made).metadata.labels[REGION] == region


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        (in_tree(), "PersistentVolume pv is not a volume of ebs.csi.aws.com"),
        (
            convert(PersistentVolume, {"spec": {"csi": {"driver": "x", "volumeHandle": "y"}}}),
            "is not a volume of ebs.csi.aws.com",
        ),
        (csi(volumeAttributes={"partition": "one"}), 'volume attribute partition: "one" is not a number'),
        (csi(where=affinity([(ZONE, ["rack-7"])])), '"rack-7" is not the name of an AWS zone'),
        (csi(where=affinity([("x", ["1"])])), "must be in one region, not in: none"),
        (csi(where=affinity([(ZONE, ["us-east-1a", "us-west-2a"])])), "not in: us-east-1, us-west-2"),
    ],
)
def test_a_volume_that_has_no_in_tree_form_is_refused(volume: PersistentVolume, why: str) -> None:
    with pytest.raises(UntranslatableObject, match=why):
        translate_to_in_tree(volume)


def test_translating_back_and_forth_gives_the_same_disk() -> None:
    made = csi(fsType="xfs", where=affinity([(ZONE, ["us-east-1a"])]))
    again = translate_volume(translate_to_in_tree(made))
    assert again.spec.csi is not None
    assert (again.spec.csi.volume_handle, again.spec.csi.fs_type) == ("vol-1", "xfs")
    assert topology.is_reachable_from(again, {CSI_ZONE: "us-east-1a", REGION: "us-east-1"})


# --- classes


def test_parameters_are_those_of_the_driver() -> None:
    made = translate_class(storage_class(parameters={"type": "io1", "IopsPerGB": "10", "FSType": "xfs"}))
    assert made.parameters == {
        "type": "io1",
        "IopsPerGB": "10",
        "allowautoiopspergbincrease": "true",
        "csi.storage.k8s.io/fstype": "xfs",
    }
    assert made.provisioner == "kubernetes.io/aws-ebs"


def test_other_classes_are_not_changed() -> None:
    other = storage_class("ebs.csi.aws.com", parameters={"fsType": "xfs"})
    assert translate_class(other) is other


@pytest.mark.parametrize(
    ("parameters", "zones"), [({"zone": "a"}, ["a"]), ({"Zones": "a,b"}, ["a", "b"])], ids=["zone", "zones"]
)
def test_zone_parameters_become_topologies(parameters: dict[str, str], zones: list[str]) -> None:
    made = plain(translate_class(storage_class(parameters=parameters)))
    assert made["allowedTopologies"] == [{"matchLabelExpressions": [{"key": CSI_ZONE, "values": zones}]}]
    assert "parameters" not in made


def test_topologies_get_the_zone_key_of_the_driver() -> None:
    def terms(*keys: str) -> list[object]:
        return [{"matchLabelExpressions": [{"key": key, "values": ["a"]}]} for key in keys]

    made = translate_class(storage_class(allowedTopologies=terms(ZONE, BETA_ZONE, "rack")))
    assert plain(made)["allowedTopologies"] == terms(CSI_ZONE, CSI_ZONE, "rack")


def test_zone_parameters_and_topologies_exclude_each_other() -> None:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}]
    with pytest.raises(
        UntranslatableObject, match="StorageClass gp: parameters zone and zones cannot be used"
    ):
        translate_class(storage_class(parameters={"zone": "a"}, allowedTopologies=topologies))
