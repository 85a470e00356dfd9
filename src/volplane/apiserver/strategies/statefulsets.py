"""StatefulSets, of which only listed fields may change, and ControllerRevisions."""

from __future__ import annotations

from msgspec import structs

from volplane.api import apps, core
from volplane.api.errors import Causes, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks, claim_spec
from volplane.apiserver.strategies.workloads import check_selector, check_template
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.apiserver.struct_edit import replace_fields

MUTABLE = (
    "replicas",
    "ordinals",
    "template",
    "update_strategy",
    "revision_history_limit",
    "persistent_volume_claim_retention_policy",
    "min_ready_seconds",
)
_IMMUTABLE = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
    "'minReadySeconds' are forbidden"
)
_POLICIES = ("OrderedReady", "Parallel")
_KEEPS_ALL = (
    "spec.revisionHistoryLimit: a negative value retains all historical revisions; "
    "a value >= 0 is recommended"
)


class StatefulSetStrategy(Strategy[apps.StatefulSet]):
    def prepare_create(self, call: ApiCall, obj: apps.StatefulSet) -> apps.StatefulSet:
        return _drop_max_unavailable(super().prepare_create(call, obj))

    def prepare_update(self, call: ApiCall, old: apps.StatefulSet, new: apps.StatefulSet) -> apps.StatefulSet:
        return _drop_max_unavailable(super().prepare_update(call, old, new))

    def validate_create(self, call: ApiCall, obj: apps.StatefulSet) -> Causes:
        _warn(call, obj)
        yield from _spec(obj.spec)
        for at, template in enumerate(obj.spec.volume_claim_templates):
            yield from claim_spec.validate(f"spec.volumeClaimTemplates[{at}].spec", template.spec)
        if obj.spec.service_name:
            yield from checks.label("spec.serviceName", obj.spec.service_name)

    def validate_update(self, call: ApiCall, old: apps.StatefulSet, new: apps.StatefulSet) -> Causes:
        _warn(call, new)
        yield from _spec(new.spec)
        put_back = replace_fields(new.spec, **{name: getattr(old.spec, name) for name in MUTABLE})
        if put_back != old.spec:
            yield forbidden("spec", _IMMUTABLE)

    def validate_status(self, call: ApiCall, old: apps.StatefulSet, new: apps.StatefulSet) -> Causes:
        status = new.status
        yield from checks.not_negative("status.replicas", new.status.replicas)
        counts = {
            "readyReplicas": status.ready_replicas,
            "currentReplicas": status.current_replicas,
            "updatedReplicas": status.updated_replicas,
            "availableReplicas": status.available_replicas,
        }
        for name, count in counts.items():
            yield from checks.not_negative(f"status.{name}", count)
            if count > status.replicas:
                yield invalid(f"status.{name}", count, "cannot be greater than status.replicas")
        if status.available_replicas > status.ready_replicas:
            message = "cannot be greater than status.readyReplicas"
            yield invalid("status.availableReplicas", status.available_replicas, message)
        if (status.collision_count or 0) < (old.status.collision_count or 0):
            yield invalid("status.collisionCount", status.collision_count or 0, "cannot be decremented")


def _drop_max_unavailable(obj: apps.StatefulSet) -> apps.StatefulSet:
    """Drop maxUnavailable: its feature gate is off by default."""
    update = obj.spec.update_strategy
    if update.rolling_update is None or update.rolling_update.max_unavailable is None:
        return obj
    rolling = structs.replace(update.rolling_update, max_unavailable=None)
    return replace_fields(
        obj, spec=replace_fields(obj.spec, update_strategy=replace_fields(update, rolling_update=rolling))
    )


def _warn(call: ApiCall, obj: apps.StatefulSet) -> None:
    if (obj.spec.revision_history_limit or 0) < 0:
        call.warnings.append(_KEEPS_ALL)


def _spec(given: apps.StatefulSetSpec) -> Causes:
    if given.pod_management_policy not in _POLICIES:
        message = "must be 'OrderedReady' or 'Parallel'"
        yield invalid("spec.podManagementPolicy", given.pod_management_policy, message)
    yield from _update_strategy("spec.updateStrategy", given.update_strategy)
    policy = given.persistent_volume_claim_retention_policy
    if policy is not None:
        path = "spec.persistentVolumeClaimRetentionPolicy"
        for name, value in (("whenDeleted", policy.when_deleted), ("whenScaled", policy.when_scaled)):
            if value not in ("Retain", "Delete"):
                yield not_supported(f"{path}.{name}", value, ("Retain", "Delete"))
    yield from checks.not_negative("spec.replicas", given.replicas or 0)
    yield from checks.not_negative("spec.minReadySeconds", given.min_ready_seconds)
    if given.ordinals is not None:
        yield from checks.not_negative("spec.ordinals.start", given.ordinals.start)
    yield from check_selector("statefulset", given.selector)
    yield from check_template("StatefulSet", _template_with_claims(given), given.selector)


def _update_strategy(path: str, given: apps.StatefulSetUpdateStrategy) -> Causes:
    rolling = given.rolling_update
    if given.type == "OnDelete":
        message = "only allowed for updateStrategy 'RollingUpdate'"
        if rolling is not None:
            yield invalid(f"{path}.rollingUpdate", checks.to_plain(rolling), message)
        return
    if given.type != "RollingUpdate":
        yield invalid(path, checks.to_plain(given), "must be 'RollingUpdate' or 'OnDelete'")
        return
    if rolling is None:
        return
    yield from checks.not_negative(f"{path}.rollingUpdate.partition", rolling.partition or 0)


def _template_with_claims(given: apps.StatefulSetSpec) -> core.PodTemplateSpec:
    """The template as its pods get it, with a volume for each claim template."""
    claims = tuple(
        core.Volume(
            name=t.name, persistent_volume_claim=core.PersistentVolumeClaimVolumeSource(claim_name=t.name)
        )
        for t in given.volume_claim_templates
    )
    taken = {volume.name for volume in claims}
    others = tuple(v for v in given.template.spec.volumes if v.name not in taken)
    spec = structs.replace(given.template.spec, hostname="", subdomain="", volumes=(*claims, *others))
    return structs.replace(given.template, spec=spec)


class ControllerRevisionStrategy(Strategy[apps.ControllerRevision]):
    def validate_create(self, call: ApiCall, obj: apps.ControllerRevision) -> Causes:
        yield from checks.not_negative("revision", obj.number)
        if obj.data is None:
            yield required_value("data", "data is mandatory")
        elif not isinstance(obj.data, dict):
            yield required_value("data", "data must be a valid JSON object")

    def validate_update(
        self, call: ApiCall, old: apps.ControllerRevision, new: apps.ControllerRevision
    ) -> Causes:
        yield from checks.not_negative("revision", new.number)
        yield from checks.immutable_field("data", new.data, old.data)
