"""The volumes that a pod needs, read live from the API.

Only volumes that a container mounts are needed. Claims and volumes are never taken from a cache: a mount
decided on an old claim would give a pod another pod's disk.
"""

from __future__ import annotations

from msgspec import Struct, structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod, Volume
from volplane.api.errors import APIError
from volplane.api.finalizers import PVC_PROTECTION_FINALIZER
from volplane.client.client import Client
from volplane.rules import in_tree, pods, selinux
from volplane.rules.csi_translation import (
    UntranslatableObject,
    translate_inline_volume,
    translate_volume,
)
from volplane.rules.pods import PodClaimUse
from volplane.volumes.base import PodVolumeSpec
from volplane.volumes.registry import NoPluginMatched, PluginRegistry


class UnusableVolume(Exception):
    """A volume cannot be mounted for the pod now; the text is for its user."""


class ResolvedVolumes(Struct, frozen=True):
    specs: tuple[PodVolumeSpec, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()  # (the volume's name in the pod, why)


def mounted_names(pod: Pod) -> set[str]:
    return {m.name for c in pods.containers(pod) for m in c.volume_mounts}


def device_names(pod: Pod) -> set[str]:
    return {d.name for c in pods.containers(pod) for d in c.volume_devices}


async def resolve_volumes(client: Client, plugins: PluginRegistry, pod: Pod) -> ResolvedVolumes:
    specs, problems = [], []
    used = mounted_names(pod) | device_names(pod)
    claims = {use.volume: use for use in pods.claim_uses(pod)}
    for source in pod.spec.volumes:
        if source.name not in used:
            continue
        try:
            specs.append(await _spec(client, plugins, pod, source, claims.get(source.name)))
        except UnusableVolume as error:
            problems.append((source.name, str(error)))
    return ResolvedVolumes(tuple(specs), tuple(problems))


async def _spec(
    client: Client, plugins: PluginRegistry, pod: Pod, source: Volume, use: PodClaimUse | None
) -> PodVolumeSpec:
    claim, found = await _read_claim(client, pod, use) if use is not None else (None, None)
    volume = _translate(source, found)
    if volume is not None:
        _check_mode(pod, source, volume)
    try:
        plugin = plugins.find(source, volume)
    except NoPluginMatched as error:
        removed = in_tree.unsupported_source_message(source, volume)
        raise UnusableVolume(f"{error}; {removed}" if removed else str(error)) from error
    name = volume.name if volume is not None else source.name
    spec = PodVolumeSpec(
        plugin=plugin.name,
        unique_name=plugin.unique_name(pod, name, volume),
        name=name,
        pod=pod,
        source=source,
        claim=claim,
        volume=volume,
        readonly=bool(use and use.read_only) or plugin.is_readonly(source, volume),
    )
    try:
        return structs.replace(spec, selinux_label=await plugin.selinux_label(spec))
    except selinux.SELinuxLabelConflict as error:
        raise UnusableVolume(str(error)) from error


def _translate(source: Volume, volume: PersistentVolume | None) -> PersistentVolume | None:
    """The volume as a CSI volume, if it is of a translated in-tree plugin; a pod's own one gets an object."""
    try:
        return translate_volume(volume) if volume is not None else translate_inline_volume(source)
    except UntranslatableObject as error:
        raise UnusableVolume(str(error)) from error


async def _read_claim(
    client: Client, pod: Pod, use: PodClaimUse
) -> tuple[PersistentVolumeClaim, PersistentVolume]:
    where = f"error processing PVC {pod.namespace}/{use.claim}"
    try:
        claim = await client.get(PersistentVolumeClaim, use.claim, pod.namespace)
    except APIError as error:
        raise UnusableVolume(f"{where}: failed to fetch PVC from API server: {error}") from error
    if use.ephemeral and not pods.owns(pod, claim):
        raise UnusableVolume(pods.ephemeral_conflict(pod, claim))
    if problem := _find_problem(claim):
        raise UnusableVolume(f"{where}: {problem}")
    try:
        volume = await client.get(PersistentVolume, claim.spec.volume_name)
    except APIError as error:
        raise UnusableVolume(
            f"failed to fetch PV {claim.spec.volume_name} from API server: {error}"
        ) from error
    owner = volume.spec.claim_ref
    if owner is None or owner.uid != claim.uid:
        raise UnusableVolume(f"{where}: PV {volume.name} is not bound to this claim (claimRef UID mismatch)")
    return claim, volume


def _find_problem(claim: PersistentVolumeClaim) -> str:
    # Without the finalizer the claim may disappear, and its disk with it, during the mount.
    if claim.is_deleting and PVC_PROTECTION_FINALIZER not in claim.metadata.finalizers:
        return "PVC is being deleted"
    if claim.status.phase != "Bound":
        return "PVC is not bound"
    return "" if claim.spec.volume_name else "PVC has empty pvc.Spec.VolumeName"


def _check_mode(pod: Pod, source: Volume, volume: PersistentVolume) -> None:
    mode = volume.spec.volume_mode or "Filesystem"
    if mode == "Block" and source.name in mounted_names(pod):
        raise UnusableVolume(f"volume {source.name} has volumeMode {mode}, but is specified in volumeMounts")
    if mode == "Filesystem" and source.name in device_names(pod):
        raise UnusableVolume(f"volume {source.name} has volumeMode {mode}, but is specified in volumeDevices")
