"""Pod admission: service account and token, priority, default tolerations for failing nodes."""

from __future__ import annotations

import asyncio

from msgspec import Struct, structs

from volplane.api import core, names
from volplane.api.annotations import MIRROR_POD_ANNOTATION
from volplane.api.errors import Forbidden
from volplane.api.scheduling import PriorityClass
from volplane.apiserver import cpu_offload
from volplane.apiserver.defaults import FILE_MODE
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.struct_edit import map_items, replace_fields
from volplane.rules.taints import NOT_READY, UNREACHABLE

DEFAULT_ACCOUNT = "default"
DEFAULT_ACCOUNT_TRIES, DEFAULT_ACCOUNT_PAUSE = 10, 0.1
TOKEN_PREFIX = "kube-api-access-"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 3607  # upstream's mark of an injected token: an hour and seven seconds


class TolerationSeconds(Struct, frozen=True):
    """How long pods without such tolerations stay on a failing node."""

    not_ready: int = 300
    unreachable: int = 300


async def admit(call: ApiCall, pod: core.Pod, seconds: TolerationSeconds) -> core.Pod:
    spec = pod.spec
    if MIRROR_POD_ANNOTATION not in pod.metadata.annotations:
        spec = await _with_account(call, pod)
    spec = await _with_priority(call, pod, spec)
    return replace_fields(pod, spec=with_default_tolerations(spec, seconds))


def _forbid(call: ApiCall, pod: core.Pod, why: str) -> Forbidden:
    return Forbidden.to(call.kind, pod.metadata.name or call.name, why)


# Service account


async def _with_account(call: ApiCall, pod: core.Pod) -> core.PodSpec:
    name = pod.spec.service_account_name or DEFAULT_ACCOUNT
    account = await _account(call, name)
    if account is None:
        where = f"{call.namespace}/{name}"
        raise _forbid(
            call, pod, f'error looking up service account {where}: serviceaccount "{name}" not found'
        )
    spec = replace_fields(pod.spec, service_account_name=name, service_account=name)
    if _mounts_token(account, spec):
        spec = await cpu_offload.run(call.size, call.warnings, with_token, spec)
    if not spec.image_pull_secrets and account.image_pull_secrets:
        secrets = tuple(core.LocalObjectReference(name=s.name) for s in account.image_pull_secrets)
        spec = structs.replace(spec, image_pull_secrets=secrets)
    return spec


async def _account(call: ApiCall, name: str) -> core.ServiceAccount | None:
    """Retries for the default account, which a new namespace gets a moment after its creation."""
    tries = DEFAULT_ACCOUNT_TRIES if name == DEFAULT_ACCOUNT else 1
    for left in reversed(range(tries)):
        found = await call.reader.get(core.ServiceAccount, name, call.namespace)
        if found is not None or not left:
            return found
        await asyncio.sleep(DEFAULT_ACCOUNT_PAUSE)
    return None


def _mounts_token(account: core.ServiceAccount, spec: core.PodSpec) -> bool:
    if spec.automount_service_account_token is not None:
        return spec.automount_service_account_token
    return account.automount_service_account_token is not False


def with_token(spec: core.PodSpec) -> core.PodSpec:
    """Mount the account's token into every container that has no mount at that path."""
    held = next((v.name for v in spec.volumes if v.name.startswith(TOKEN_PREFIX)), "")
    name = held or names.generate(TOKEN_PREFIX)
    mount = core.VolumeMount(name=name, read_only=True, mount_path=TOKEN_PATH)

    def with_mount(container: core.Container) -> core.Container:
        if any(m.mount_path == TOKEN_PATH for m in container.volume_mounts):
            return container
        return structs.replace(container, volume_mounts=(*container.volume_mounts, mount))

    made = replace_fields(
        spec,
        containers=map_items(spec.containers, with_mount),
        init_containers=map_items(spec.init_containers, with_mount),
    )
    if held or made is spec:
        return made
    return structs.replace(made, volumes=(*spec.volumes, core.Volume(name=name, projected=_token_source())))


def _token_source() -> core.ProjectedVolumeSource:
    root = core.ConfigMapProjection(
        name="kube-root-ca.crt", items=(core.KeyToPath(key="ca.crt", path="ca.crt"),)
    )
    place = core.ObjectFieldSelector(api_version="v1", field_path="metadata.namespace")
    return core.ProjectedVolumeSource(
        default_mode=FILE_MODE,
        sources=(
            core.VolumeProjection(
                service_account_token=core.ServiceAccountTokenProjection(
                    path="token", expiration_seconds=TOKEN_SECONDS
                )
            ),
            core.VolumeProjection(config_map=root),
            core.VolumeProjection(
                downward_api=core.DownwardAPIProjection(
                    items=(core.DownwardAPIVolumeFile(path="namespace", field_ref=place),)
                )
            ),
        ),
    )


# Priority

# Known without an object: system pods may be created before any PriorityClass.
_SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_PREEMPTION = "PreemptLowerPriority"


async def _with_priority(call: ApiCall, pod: core.Pod, spec: core.PodSpec) -> core.PodSpec:
    name, value, policy = await _priority(call, pod, spec.priority_class_name)
    if spec.priority is not None and spec.priority != value:
        raise _forbid(
            call,
            pod,
            f"the integer value of priority ({spec.priority}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name",
        )
    if spec.preemption_policy is not None and spec.preemption_policy != policy:
        raise _forbid(
            call,
            pod,
            f"the string value of PreemptionPolicy ({spec.preemption_policy}) must not be provided in "
            f"pod spec; priority admission controller computed {policy} from the given PriorityClass name",
        )
    return replace_fields(spec, priority_class_name=name, priority=value, preemption_policy=policy)


async def _priority(call: ApiCall, pod: core.Pod, name: str) -> tuple[str, int, str]:
    if not name:
        classes = [c for c in await call.reader.list(PriorityClass) if c.global_default]
        chosen = min(classes, key=lambda c: c.value, default=None)
        if chosen is None:
            return "", 0, _PREEMPTION
    else:
        chosen = await call.reader.get(PriorityClass, name)
    if chosen is not None:
        return chosen.name, chosen.value, chosen.preemption_policy or _PREEMPTION
    if name in _SYSTEM:
        return name, _SYSTEM[name], _PREEMPTION
    raise _forbid(call, pod, f"no PriorityClass with name {name} was found")


# Tolerations


def with_default_tolerations(spec: core.PodSpec, seconds: TolerationSeconds) -> core.PodSpec:
    """Tolerate a node that is not ready or unreachable for a while, by default five minutes."""
    added = tuple(
        core.Toleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=tolerated)
        for key, tolerated in ((NOT_READY, seconds.not_ready), (UNREACHABLE, seconds.unreachable))
        if not any(t.key in (key, "") and t.effect in ("NoExecute", "") for t in spec.tolerations)
    )
    return structs.replace(spec, tolerations=(*spec.tolerations, *added)) if added else spec
