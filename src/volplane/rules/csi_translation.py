"""Translate in-tree EBS volumes and classes to the EBS CSI driver, and provisioned volumes back.

The objects stay as the user wrote them. Components that attach, mount, expand or delete a volume translate it
first and then handle CSI volumes only. The rules are those of Kubernetes' CSI migration, which is complete:
no node and no feature gate is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import structs

from volplane.api.core import (
    AWSElasticBlockStoreVolumeSource,
    CSIPersistentVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PersistentVolume,
    PersistentVolumeSpec,
    Pod,
    TopologySelectorLabelRequirement,
    TopologySelectorTerm,
    Volume,
    VolumeNodeAffinity,
)
from volplane.api.labels import BETA_REGION_LABEL, BETA_ZONE_LABEL, REGION_LABEL, ZONE_LABEL
from volplane.api.meta import ObjectMeta
from volplane.api.storage import StorageClass
from volplane.rules import access

EBS_PLUGIN, EBS_DRIVER = "kubernetes.io/aws-ebs", "ebs.csi.aws.com"
EBS_ZONE_KEY = "topology.ebs.csi.aws.com/zone"
TRANSLATED_PLUGINS = (EBS_PLUGIN,)

PARTITION = "partition"  # volume attribute
FS_TYPE_PARAMETER = "csi.storage.k8s.io/fstype"
ALLOW_IOPS_INCREASE = "allowautoiopspergbincrease"
ZONE_SEPARATOR = "__"  # between zones in the value of a label

_EBS_ID = re.compile(r"vol-[^/]*")


class UntranslatableObject(ValueError):
    """An in-tree volume or class that has no CSI equivalent, or the reverse; the text is for its user."""


# --- volumes to CSI


def find_csi_source(volume: PersistentVolume | None) -> CSIPersistentVolumeSource | None:
    """The CSI source of the volume, translated if need be; None if it has none."""
    try:
        return translate_volume(volume).spec.csi if volume is not None else None
    except UntranslatableObject:
        return None


def translate_volume(volume: PersistentVolume) -> PersistentVolume:
    """The volume with a CSI source; unchanged if it is not of a translated plugin.

    Raises UntranslatableObject.
    """
    source = volume.spec.aws_elastic_block_store
    if source is None:
        return volume
    spec = structs.replace(
        volume.spec,
        aws_elastic_block_store=None,
        csi=_ebs_source(source, f"PersistentVolume {volume.name}: spec.awsElasticBlockStore"),
        node_affinity=csi_node_affinity(volume),
    )
    return structs.replace(volume, spec=spec)


def translate_inline_volume(source: Volume) -> PersistentVolume | None:
    """A PersistentVolume for an in-tree volume of a pod; None if it is not of a translated plugin.

    Raises UntranslatableObject.
    """
    ebs = source.aws_elastic_block_store
    if ebs is None:
        return None
    csi = _ebs_source(ebs, f"volume {source.name}: awsElasticBlockStore")
    spec = PersistentVolumeSpec(csi=csi, access_modes=(access.ONCE,), volume_mode="Filesystem")
    # Unique for each disk: it is part of the paths on the node.
    return PersistentVolume(metadata=ObjectMeta(name=f"{csi.driver}-{csi.volume_handle}"), spec=spec)


def list_inline_volumes(pod: Pod) -> Iterator[PersistentVolume]:
    """The in-tree volumes of the pod that have a CSI equivalent."""
    for source in pod.spec.volumes:
        try:
            volume = translate_inline_volume(source)
        except UntranslatableObject:
            continue  # the pod's node reports it
        if volume is not None:
            yield volume


def _ebs_source(source: AWSElasticBlockStoreVolumeSource, where: str) -> CSIPersistentVolumeSource:
    return CSIPersistentVolumeSource(
        driver=EBS_DRIVER,
        volume_handle=_ebs_volume_id(source.volume_id, where),
        read_only=source.read_only,
        fs_type=source.fs_type,
        volume_attributes={PARTITION: str(source.partition)},
    )


def _ebs_volume_id(name: str, where: str) -> str:
    """`vol-1`, `aws:///vol-1` and `aws://us-east-1a/vol-1` are the same disk."""
    if not name.startswith("aws://"):
        return name
    found = name.removeprefix("aws://").partition("/")[2].strip("/")
    if not _EBS_ID.fullmatch(found):
        forms = "vol-…, aws:///vol-… or aws://<zone>/vol-…"
        raise UntranslatableObject(f'{where}.volumeID: "{name}" is not a volume id: use {forms}')
    return found


# --- provisioned volumes back


def translate_to_in_tree(volume: PersistentVolume) -> PersistentVolume:
    """The in-tree form of a volume that was provisioned for a class of the in-tree plugin.

    Raises UntranslatableObject.
    """
    csi = volume.spec.csi
    if csi is None or csi.driver != EBS_DRIVER:
        raise UntranslatableObject(f"PersistentVolume {volume.name} is not a volume of {EBS_DRIVER}")
    partition = csi.volume_attributes.get(PARTITION, "0")
    if not partition.isdecimal():
        raise UntranslatableObject(f'volume attribute {PARTITION}: "{partition}" is not a number')
    source = AWSElasticBlockStoreVolumeSource(
        volume_id=csi.volume_handle,
        fs_type=csi.fs_type,
        partition=int(partition),
        read_only=csi.read_only,
    )
    zone_label, region_label = _topology_labels(volume)
    affinity = _rename_key(volume.spec.node_affinity, EBS_ZONE_KEY, zone_label)
    affinity = _change_terms(affinity, lambda term: _add_region(term, zone_label, region_label))
    labels = {**_region_labels(affinity, region_label), **_zone_labels(affinity, zone_label)}
    return structs.replace(
        volume,
        metadata=structs.replace(volume.metadata, labels={**labels, **volume.metadata.labels}),
        spec=structs.replace(volume.spec, csi=None, aws_elastic_block_store=source, node_affinity=affinity),
    )


def _add_region(term: NodeSelectorTerm, zone_label: str, region_label: str) -> NodeSelectorTerm:
    if any(need.key == region_label for need in term.match_expressions):
        return term
    zones = [value for need in term.match_expressions if need.key == zone_label for value in need.values]
    region = NodeSelectorRequirement(key=region_label, operator="In", values=(_region_of(zones),))
    return structs.replace(term, match_expressions=(*term.match_expressions, region))


def _region_of(zones: Iterable[str]) -> str:
    regions = {_region_of_zone(zone) for zone in zones}
    if len(regions) != 1:
        listed = ", ".join(sorted(regions)) or "none"
        raise UntranslatableObject(f"the zones of an EBS volume must be in one region, not in: {listed}")
    return regions.pop()


def _region_of_zone(zone: str) -> str:
    """us-west-2a, us-gov-east-1a; local zones us-west-2-lax-1a; wavelength us-east-1-wl1-bos-wlz-1."""
    parts = zone.split("-")
    if len(parts) in (3, 4) and len(parts[-1]) == 2:
        return zone[:-1]
    if len(parts) in (5, 7):
        return "-".join(parts[:3])
    raise UntranslatableObject(f'"{zone}" is not the name of an AWS zone, such as us-east-1a')


def _region_labels(affinity: VolumeNodeAffinity | None, label: str) -> dict[str, str]:
    regions = _values(affinity, label)
    return {label: regions[0]} if len(regions) == 1 else {}


def _zone_labels(affinity: VolumeNodeAffinity | None, label: str) -> dict[str, str]:
    zones = _values(affinity, label)
    return {label: ZONE_SEPARATOR.join(zones)} if zones else {}


# --- topology


def csi_node_affinity(volume: PersistentVolume) -> VolumeNodeAffinity | None:
    """The nodes that reach the volume; for an in-tree one with the zone key of the driver.

    A volume whose node affinity names no zone is in the zones of its label.
    """
    affinity = volume.spec.node_affinity
    if volume.spec.aws_elastic_block_store is None:
        return affinity
    zone_label, region_label = _topology_labels(volume)
    if _values(affinity, zone_label):
        affinity = _rename_key(affinity, zone_label, EBS_ZONE_KEY)
    else:
        names = volume.metadata.labels.get(zone_label, "").split(ZONE_SEPARATOR)
        affinity = _require_zones(affinity, {name.strip() for name in names} - {""})
    # Nodes have only the present label of the region.
    return _rename_key(affinity, region_label, REGION_LABEL)


def _require_zones(affinity: VolumeNodeAffinity | None, zones: set[str]) -> VolumeNodeAffinity | None:
    if not zones:
        return affinity
    need = NodeSelectorRequirement(key=EBS_ZONE_KEY, operator="In", values=tuple(sorted(zones)))
    terms = _terms(affinity) or (NodeSelectorTerm(),)
    added = (structs.replace(t, match_expressions=(*t.match_expressions, need)) for t in terms)
    return VolumeNodeAffinity(required=NodeSelector(node_selector_terms=tuple(added)))


def _topology_labels(volume: PersistentVolume) -> tuple[str, str]:
    """The labels of zone and region in the spelling that the volume uses; its node affinity decides first."""
    keys = {need.key for term in _terms(volume.spec.node_affinity) for need in term.match_expressions}
    for names in (keys, volume.metadata.labels):
        if ZONE_LABEL in names:
            break
        if BETA_ZONE_LABEL in names:
            return BETA_ZONE_LABEL, BETA_REGION_LABEL
    return ZONE_LABEL, REGION_LABEL


def _terms(affinity: VolumeNodeAffinity | None) -> tuple[NodeSelectorTerm, ...]:
    if affinity is None or affinity.required is None:
        return ()
    return affinity.required.node_selector_terms


def _values(affinity: VolumeNodeAffinity | None, key: str) -> list[str]:
    needs = (need for term in _terms(affinity) for need in term.match_expressions if need.key == key)
    return sorted({value for need in needs for value in need.values})


def _rename_key(affinity: VolumeNodeAffinity | None, old: str, new: str) -> VolumeNodeAffinity | None:
    def rename(term: NodeSelectorTerm) -> NodeSelectorTerm:
        needs = (structs.replace(n, key=new) if n.key == old else n for n in term.match_expressions)
        return structs.replace(term, match_expressions=tuple(needs))

    return _change_terms(affinity, rename)


def _change_terms(
    affinity: VolumeNodeAffinity | None, change: Callable[[NodeSelectorTerm], NodeSelectorTerm]
) -> VolumeNodeAffinity | None:
    terms = tuple(change(term) for term in _terms(affinity))
    return VolumeNodeAffinity(required=NodeSelector(node_selector_terms=terms)) if terms else affinity


# --- classes


def translate_class(storage_class: StorageClass) -> StorageClass:
    """The class with the parameters and topology keys of the CSI driver.

    Unchanged if it is not of a translated plugin; its provisioner stays. Raises UntranslatableObject.
    """
    if storage_class.provisioner != EBS_PLUGIN:
        return storage_class
    zones = _zone_parameter(storage_class.parameters)
    topologies = tuple(_translate_term(term) for term in storage_class.allowed_topologies)
    if zones and topologies:
        raise UntranslatableObject(
            f"StorageClass {storage_class.name}: parameters zone and zones cannot be used together with "
            "allowedTopologies"
        )
    if zones:
        need = TopologySelectorLabelRequirement(key=EBS_ZONE_KEY, values=zones)
        topologies = (TopologySelectorTerm(match_label_expressions=(need,)),)
    parameters = _ebs_parameters(storage_class.parameters)
    return structs.replace(storage_class, parameters=parameters, allowed_topologies=topologies)


def _zone_parameter(parameters: Mapping[str, str]) -> tuple[str, ...]:
    given = {key.lower(): value for key, value in parameters.items()}
    if "zones" in given:
        return tuple(given["zones"].split(","))
    return (given["zone"],) if "zone" in given else ()


def _ebs_parameters(given: Mapping[str, str]) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for key, value in given.items():
        match key.lower():
            case "fstype":
                parameters[FS_TYPE_PARAMETER] = value
            case "zone" | "zones":
                pass  # they are topologies
            case "iopspergb":
                # The in-tree plugin raised the IOPS of a small disk to the minimum.
                parameters |= {key: value, ALLOW_IOPS_INCREASE: "true"}
            case _:
                parameters[key] = value
    return parameters


def _translate_term(term: TopologySelectorTerm) -> TopologySelectorTerm:
    needs = (
        structs.replace(need, key=EBS_ZONE_KEY) if need.key in (ZONE_LABEL, BETA_ZONE_LABEL) else need
        for need in term.match_label_expressions
    )
    return TopologySelectorTerm(match_label_expressions=tuple(needs))
