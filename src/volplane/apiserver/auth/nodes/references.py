"""Which objects a pod or a volume references, as far as a kubelet has to read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from volplane.api import names
from volplane.api.core import Container, EphemeralContainer, PersistentVolume, Pod, Volume
from volplane.api.core.refs import LocalObjectReference


def secrets(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    found = [reference.name for reference in spec.image_pull_secrets]
    for container in _containers(pod):
        found += [source.secret_ref.name for source in container.env_from if source.secret_ref]
        found += [
            variable.value_from.secret_key_ref.name
            for variable in container.env
            if variable.value_from and variable.value_from.secret_key_ref
        ]
    for volume in spec.volumes:
        found += _volume_secrets(volume)
    return (name for name in found if name)


def config_maps(pod: Pod) -> Iterator[str]:
    found: list[str] = []
    for container in _containers(pod):
        found += [source.config_map_ref.name for source in container.env_from if source.config_map_ref]
        found += [
            variable.value_from.config_map_key_ref.name
            for variable in container.env
            if variable.value_from and variable.value_from.config_map_key_ref
        ]
    for volume in pod.spec.volumes:
        if volume.config_map is not None:
            found.append(volume.config_map.name)
        for source in volume.projected.sources if volume.projected else ():
            if source.config_map is not None:
                found.append(source.config_map.name)
    return (name for name in found if name)


def claim(pod: Pod, volume: Volume) -> str:
    """Return the claim behind a volume of the pod, or "" for other volume types."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return names.ephemeral_claim_name(pod.name, volume.name) if volume.ephemeral is not None else ""


def claims(pod: Pod) -> Iterator[str]:
    found = (claim(pod, volume) for volume in pod.spec.volumes)
    return (name for name in found if name)


def _containers(pod: Pod) -> Iterator[Container | EphemeralContainer]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers
    yield from pod.spec.ephemeral_containers


def _volume_secrets(volume: Volume) -> Iterator[str]:
    if volume.secret is not None:
        yield volume.secret.secret_name
    if volume.azure_file is not None:
        yield volume.azure_file.secret_name
    if volume.csi is not None:
        yield from _secret_name(volume.csi.node_publish_secret_ref)
    for source in volume.projected.sources if volume.projected else ():
        if source.secret is not None:
            yield source.secret.name
    for old in (volume.cephfs, volume.cinder, volume.flex_volume, volume.rbd, volume.iscsi):
        if old is not None:
            yield from _secret_name(old.secret_ref)
    for older in (volume.scale_io, volume.storageos):
        if older is not None:
            yield from _secret_name(older.secret_ref)


def _secret_name(reference: LocalObjectReference | None) -> Iterator[str]:
    if reference is not None:
        yield reference.name


def volume_secrets(volume: PersistentVolume) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of the secrets that a node needs; controller secrets are left out."""
    spec = volume.spec
    own = spec.claim_ref.namespace if spec.claim_ref else ""
    references = []
    if spec.csi is not None:
        csi = spec.csi
        references += [csi.node_publish_secret_ref, csi.node_stage_secret_ref, csi.node_expand_secret_ref]
    for old in (spec.cephfs, spec.cinder, spec.flex_volume, spec.rbd, spec.iscsi, spec.scale_io):
        if old is not None:
            references.append(old.secret_ref)
    for reference in references:
        if reference is not None and reference.name:
            yield reference.namespace or own, reference.name
    if spec.storageos is not None and spec.storageos.secret_ref is not None:
        yield spec.storageos.secret_ref.namespace or own, spec.storageos.secret_ref.name
    if spec.azure_file is not None:
        yield spec.azure_file.secret_namespace or own, spec.azure_file.secret_name
