"""The identity of a pod in a set: its ordinal, name, labels and claims, and the owners of those claims.

A claim outlives its pod and is used by the next one. The retention policy is expressed in owner references
alone, and garbage collection deletes: a claim to be deleted with the set is owned by the set, one to be
deleted with a pod after scaling down is owned by that pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import structs

from volplane.api import kinds
from volplane.api.apps import StatefulSet
from volplane.api.core import PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume
from volplane.api.labels import POD_INDEX_LABEL, STATEFULSET_POD_NAME_LABEL
from volplane.api.meta import LabelSelector, OwnerReference, Resource
from volplane.controllers.statefulset.revisions import POD_LABEL, TemplateRevision
from volplane.rules.workloads import owner_reference, pod_of

_NUMBERED = re.compile(r"(.*)-([0-9]+)")
_LARGEST = (1 << 31) - 1


def parse(name: str) -> tuple[str, int]:
    """The set and the ordinal of a pod's name; -1 if it has none."""
    match = _NUMBERED.fullmatch(name)
    if match is None or int(match[2]) > _LARGEST:
        return "", -1
    return match[1], int(match[2])


def start(wanted: StatefulSet) -> int:
    return wanted.spec.ordinals.start if wanted.spec.ordinals else 0


def replicas(wanted: StatefulSet) -> int:
    return 1 if wanted.spec.replicas is None else wanted.spec.replicas


def ordinals(wanted: StatefulSet) -> range:
    return range(start(wanted), start(wanted) + replicas(wanted))


def new_pod(wanted: StatefulSet, revision: TemplateRevision, ordinal: int) -> Pod:
    name = f"{wanted.name}-{ordinal}"
    labels = {STATEFULSET_POD_NAME_LABEL: name, POD_INDEX_LABEL: str(ordinal), POD_LABEL: revision.name}
    pod = pod_of(revision.template, wanted, name=name, labels=labels)
    mounted = tuple(
        _volume(template.name, wanted, ordinal) for template in wanted.spec.volume_claim_templates
    )
    taken = {volume.name for volume in mounted}
    spec = structs.replace(
        pod.spec,
        hostname=name,
        subdomain=wanted.spec.service_name,
        volumes=(*mounted, *(v for v in pod.spec.volumes if v.name not in taken)),
    )
    return structs.replace(pod, spec=spec)


def missing_labels(pod: Pod) -> dict[str, str]:
    """The identity labels that an adopted pod lacks."""
    _, ordinal = parse(pod.name)
    if pod.metadata.labels.get(STATEFULSET_POD_NAME_LABEL) == pod.name:
        return {}
    return {STATEFULSET_POD_NAME_LABEL: pod.name, POD_INDEX_LABEL: str(ordinal)}


def _volume(template: str, wanted: StatefulSet, ordinal: int) -> Volume:
    source = PersistentVolumeClaimVolumeSource(claim_name=claim_name(template, wanted, ordinal))
    return Volume(name=template, persistent_volume_claim=source)


# Claims


def claim_name(template: str, wanted: StatefulSet, ordinal: int) -> str:
    return f"{template}-{wanted.name}-{ordinal}"


def claims_of(wanted: StatefulSet, ordinal: int) -> Iterator[PersistentVolumeClaim]:
    """The claims of an ordinal, with the labels of the templates and of the selector."""
    selector = wanted.spec.selector or LabelSelector()
    owners = (owner_reference(wanted),) if _follows_set(wanted, given_up=False) else ()
    for template in wanted.spec.volume_claim_templates:
        metadata = structs.replace(
            template.metadata,
            name=claim_name(template.name, wanted, ordinal),
            namespace=wanted.namespace,
            labels={**template.metadata.labels, **selector.match_labels},
            owner_references=owners,
        )
        yield structs.replace(template, metadata=metadata)


def _follows_set(wanted: StatefulSet, *, given_up: bool) -> bool:
    policy = wanted.spec.persistent_volume_claim_retention_policy
    if policy is None or policy.when_deleted != "Delete":
        return False
    return not (given_up and policy.when_scaled == "Delete")


def _follows_pod(wanted: StatefulSet, *, given_up: bool) -> bool:
    policy = wanted.spec.persistent_volume_claim_retention_policy
    return policy is not None and policy.when_scaled == "Delete" and given_up


def is_stale(claim: PersistentVolumeClaim, wanted: StatefulSet, pod: Pod) -> bool:
    """Whether the claim is deleted with an earlier pod of this name, so that a new pod must not use it."""
    policy = wanted.spec.persistent_volume_claim_retention_policy
    return policy is not None and policy.when_scaled == "Delete" and _names_another(claim, pod)


def has_rival(claim: PersistentVolumeClaim, wanted: StatefulSet, pod: Pod) -> bool:
    """Whether another controller owns the claim; then the policy does not apply."""
    policy = wanted.spec.persistent_volume_claim_retention_policy
    if policy is None or "Delete" not in (policy.when_deleted, policy.when_scaled):
        return False
    ours = {wanted.uid, pod.uid}
    foreign = any(r.controller and r.uid not in ours for r in claim.metadata.owner_references)
    return foreign or _names_another(claim, wanted) or _names_another(claim, pod)


def owners(
    claim: PersistentVolumeClaim, wanted: StatefulSet, pod: Pod, *, given_up: bool
) -> tuple[OwnerReference, ...]:
    """The owner references that the claim should have."""
    held = claim.metadata.owner_references
    if _names_another(claim, wanted) or _names_another(claim, pod):
        return held  # of an earlier object of the same name: left to garbage collection
    others = tuple(r for r in held if not _is_reference_to(r, wanted) and not _is_reference_to(r, pod))
    if has_rival(claim, wanted, pod):
        return others
    mine: tuple[Resource, ...] = ()
    if _follows_set(wanted, given_up=given_up):
        mine = (wanted,)
    elif _follows_pod(wanted, given_up=given_up):
        mine = (pod,)
    ought = (*others, *(owner_reference(owner) for owner in mine))
    return held if set(held) == set(ought) else ought


def _is_reference_to(reference: OwnerReference, owner: Resource) -> bool:
    """Whether it refers to an object of this kind and name, with any uid."""
    kind = kinds.of(type(owner))
    target = (reference.api_version, reference.kind, reference.name)
    return target == (kind.api_version, kind.kind, owner.name)


def _names_another(claim: PersistentVolumeClaim, owner: Resource) -> bool:
    return any(_is_reference_to(r, owner) and r.uid != owner.uid for r in claim.metadata.owner_references)
