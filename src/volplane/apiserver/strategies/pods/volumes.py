"""The volumes of a pod: unique names, exactly one source each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import structs

from volplane.api import core, names, quantity
from volplane.api.errors import Cause, Causes, duplicate, forbidden, invalid, required_value
from volplane.apiserver.strategies import checks, claim_spec

HOST_PATH_TYPES = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip

_WIRE = {f.name: f.encode_name for f in structs.fields(core.Volume)}
_PROJECTIONS = {f.name: f.encode_name for f in structs.fields(core.VolumeProjection)}
# If several sources are set, those after the first in this order are forbidden.
_FIRST = ("empty_dir", "host_path", "git_repo", "gce_persistent_disk", "aws_elastic_block_store", "secret")
_SOURCES = (*_FIRST, *(name for name in _WIRE if name not in (*_FIRST, "name")))


def volumes(
    path: str, given: tuple[core.Volume, ...], pod: str
) -> tuple[dict[str, core.Volume], list[Cause]]:
    """The valid volumes by name, which containers may mount, and the causes of the others."""
    usable: dict[str, core.Volume] = {}
    causes: list[Cause] = []
    made = (
        {names.ephemeral_claim_name(pod, v.name) for v in given if v.ephemeral is not None} if pod else set()
    )
    for at, volume in enumerate(given):
        here = f"{path}[{at}]"
        found = list(_volume(here, volume, usable))
        if not found:
            usable[volume.name] = volume
        causes += found
        claim = volume.persistent_volume_claim
        if claim is not None and claim.claim_name in made:
            message = "must not reference a PVC that gets created for an ephemeral volume"
            causes.append(invalid(f"{here}.persistentVolumeClaim.claimName", claim.claim_name, message))
    return usable, causes


def image_references(path: str, given: Iterable[core.Volume]) -> Causes:
    """A template may leave the image of a volume open."""
    for at, volume in enumerate(given):
        if volume.image is not None and not volume.image.reference:
            yield required_value(f"{path}[{at}].image.reference")


def _volume(path: str, volume: core.Volume, others: Mapping[str, core.Volume]) -> Causes:
    yield from _source(path, volume)
    if volume.name:
        yield from checks.label(f"{path}.name", volume.name)
    else:
        yield required_value(f"{path}.name")
    if volume.name in others:
        yield duplicate(f"{path}.name", volume.name)


def _source(path: str, volume: core.Volume) -> Causes:
    given = [name for name in _SOURCES if getattr(volume, name) is not None]
    if not given:
        yield required_value(path, "must specify a volume type")
        return
    yield from checks.at_most_one(path, [_WIRE[name] for name in given], "volume type")
    check = _CHECKS.get(given[0])
    if check:
        yield from check(f"{path}.{_WIRE[given[0]]}", getattr(volume, given[0]))


def host_path(path: str, source: core.HostPathVolumeSource) -> Causes:
    if not source.path:
        yield required_value(f"{path}.path")
        return
    yield from checks.no_backsteps(f"{path}.path", source.path)
    yield from checks.choice(f"{path}.type", source.type, HOST_PATH_TYPES)


def nfs(path: str, source: core.NFSVolumeSource) -> Causes:
    yield from [required_value(f"{path}.{name}") for name in ("server", "path") if not getattr(source, name)]
    if not source.path.startswith("/"):
        yield invalid(f"{path}.path", source.path, "must be an absolute path")


def _claim(path: str, source: core.PersistentVolumeClaimVolumeSource) -> Causes:
    return checks.present(f"{path}.claimName", source.claim_name)


def _empty_dir(path: str, source: Any) -> Causes:
    if source.size_limit is None or quantity.parse(source.size_limit) >= 0:
        return
    yield forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _secret(path: str, source: Any) -> Causes:
    yield from checks.present(f"{path}.secretName", source.secret_name)
    yield from _files(path, source)


def _config_map(path: str, source: Any) -> Causes:
    yield from checks.present(f"{path}.name", source.name)
    yield from _files(path, source)


def _files(path: str, source: Any) -> Causes:
    yield from checks.file_mode(f"{path}.defaultMode", source.default_mode)
    yield from _items(path, source.items)


def _items(path: str, items: tuple[core.KeyToPath, ...]) -> Causes:
    for at, item in enumerate(items):
        here = f"{path}.items[{at}]"
        yield from [required_value(f"{here}.{name}") for name in ("key", "path") if not getattr(item, name)]
        yield from checks.local_path(f"{here}.path", item.path)
        yield from checks.file_mode(f"{here}.mode", item.mode)


def _downward(path: str, source: Any) -> Causes:
    yield from checks.file_mode(f"{path}.defaultMode", source.default_mode)
    yield from _downward_files(path, source.items)


def _downward_files(path: str, files: tuple[core.DownwardAPIVolumeFile, ...]) -> Causes:
    for at, file in enumerate(files):
        here = f"{path}[{at}]"
        yield from checks.present(f"{path}.path", file.path)
        yield from checks.local_path(f"{path}.path", file.path)
        if file.field_ref is not None and file.resource_field_ref is not None:
            message = "fieldRef and resourceFieldRef can not be specified simultaneously"
            yield invalid(here, "resource", message)
        elif file.field_ref is None and file.resource_field_ref is None:
            yield required_value(here, "one of fieldRef and resourceFieldRef is required")
        yield from checks.file_mode(f"{path}.mode", file.mode)


def _projected_volume(path: str, source: core.ProjectedVolumeSource) -> Causes:
    yield from checks.file_mode(f"{path}.defaultMode", source.default_mode)
    for at, part in enumerate(source.sources):
        yield from _projection(f"{path}.sources[{at}]", part)


def _projection(path: str, part: core.VolumeProjection) -> Causes:
    given = [wire for name, wire in _PROJECTIONS.items() if getattr(part, name) is not None]
    yield from checks.at_most_one(path, given, "volume type")
    if part.secret is not None:
        yield from checks.present(f"{path}.name", part.secret.name)
        yield from _items(f"{path}.secret", part.secret.items)
    elif part.config_map is not None:
        yield from checks.present(f"{path}.name", part.config_map.name)
        yield from _items(f"{path}.configMap", part.config_map.items)
    elif part.downward_api is not None:
        yield from _downward_files(f"{path}.downwardAPI", part.downward_api.items)
    elif part.service_account_token is not None:
        yield from _token(f"{path}.serviceAccountToken", part)


def _token(path: str, part: core.VolumeProjection) -> Causes:
    token = part.service_account_token
    assert token is not None
    yield from checks.present(f"{path}.path", token.path)
    seconds = token.expiration_seconds or 0
    if seconds < 600:
        yield invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    elif seconds > 1 << 32:
        message = "may not specify a duration larger than 2^32 seconds"
        yield invalid(f"{path}.expirationSeconds", seconds, message)


def _csi(path: str, source: core.CSIVolumeSource) -> Causes:
    yield from checks.driver_name(f"{path}.driver", source.driver)
    secret = source.node_publish_secret_ref
    if secret is not None and not secret.name:
        yield required_value(f"{path}.nodePublishSecretRef.name")
    elif secret is not None:
        yield from checks.subdomain(f"{path}.name", secret.name)


def _ephemeral(path: str, source: core.EphemeralVolumeSource) -> Causes:
    if source.volume_claim_template is None:
        yield required_value(f"{path}.volumeClaimTemplate")
        return
    yield from claim_spec.validate(f"{path}.volumeClaimTemplate.spec", source.volume_claim_template.spec)


def _image(path: str, source: core.ImageVolumeSource) -> Causes:
    yield from checks.one_of(f"{path}.pullPolicy", source.pull_policy, checks.PULL_POLICIES)


def flex(path: str, source: Any) -> Causes:
    """A FlexVolume of a pod or a PersistentVolume; the kubelet and the controller add reserved options."""
    yield from checks.present(f"{path}.driver", source.driver)
    for key in source.options:
        if f".{key.partition('/')[0].lower()}".endswith((".kubernetes.io", ".k8s.io")):
            message = "kubernetes.io and k8s.io namespaces are reserved"
            yield invalid(f"{path}.options[{key}]", key, message)


_CHECKS: Mapping[str, Callable[[str, Any], Causes]] = {
    "empty_dir": _empty_dir,
    "host_path": host_path,
    "nfs": nfs,
    "persistent_volume_claim": _claim,
    "secret": _secret,
    "config_map": _config_map,
    "downward_api": _downward,
    "projected": _projected_volume,
    "csi": _csi,
    "ephemeral": _ephemeral,
    "flex_volume": flex,
    "image": _image,
}
