"""Storage classes and volume attributes classes: what they promise does not change after the fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volplane.api.core import TopologySelectorTerm
from volplane.api.errors import Cause, duplicate, forbidden, invalid, not_supported, required_value, too_long
from volplane.api.storage import StorageClass, VolumeAttributesClass
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.finalizers import add_finalizer
from volplane.apiserver.strategy import ApiCall, Strategy

ATTRIBUTES_FINALIZER = "kubernetes.io/vac-protection"
MAX_PARAMETERS = 512
MAX_PARAMETERS_SIZE = 256 * 1024
POLICIES = ("Delete", "Retain")
BINDING_MODES = ("Immediate", "WaitForFirstConsumer")


class StorageClassStrategy(Strategy[StorageClass]):
    def validate_create(self, call: ApiCall, obj: StorageClass) -> list[Cause]:
        causes = checks.qualified_name("provisioner", obj.provisioner.lower()) if obj.provisioner else []
        causes += checks.present("provisioner", obj.provisioner)
        causes += _parameters(obj.parameters)
        causes += checks.choice("reclaimPolicy", obj.reclaim_policy or None, POLICIES)
        if obj.volume_binding_mode not in BINDING_MODES:
            causes.append(not_supported("volumeBindingMode", obj.volume_binding_mode, BINDING_MODES))
        return causes + _topologies("allowedTopologies", obj.allowed_topologies)

    def validate_update(self, call: ApiCall, old: StorageClass, new: StorageClass) -> list[Cause]:
        causes = self.validate_create(call, new)
        for name, attribute in (
            ("parameters", "parameters"),
            ("provisioner", "provisioner"),
            ("reclaimPolicy", "reclaim_policy"),
        ):
            if getattr(old, attribute) != getattr(new, attribute):
                causes.append(forbidden(name, f"updates to {name} are forbidden."))
        return causes + checks.immutable_field(
            "volumeBindingMode", new.volume_binding_mode, old.volume_binding_mode
        )


class VolumeAttributesClassStrategy(Strategy[VolumeAttributesClass]):
    async def admit_create(self, call: ApiCall, obj: VolumeAttributesClass) -> VolumeAttributesClass:
        return add_finalizer(obj, ATTRIBUTES_FINALIZER)

    def validate_create(self, call: ApiCall, obj: VolumeAttributesClass) -> list[Cause]:
        causes = checks.driver_name("driverName", obj.driver_name)
        if not obj.parameters:
            causes.append(required_value("parameters", "must contain at least one key/value pair"))
        return causes + _parameters(obj.parameters)

    def validate_update(
        self, call: ApiCall, old: VolumeAttributesClass, new: VolumeAttributesClass
    ) -> list[Cause]:
        causes = self.validate_create(call, new)
        for name, attribute in (("driverName", "driver_name"), ("parameters", "parameters")):
            if getattr(old, attribute) != getattr(new, attribute):
                causes.append(forbidden(name, f"updates to {name} are forbidden."))
        return causes


def _parameters(given: Mapping[str, str]) -> list[Cause]:
    if len(given) > MAX_PARAMETERS:
        return [too_long("parameters", MAX_PARAMETERS)]
    causes = [invalid("parameters", key, "field can not be empty.") for key in given if not key]
    if sum(len(key.encode()) + len(value.encode()) for key, value in given.items()) > MAX_PARAMETERS_SIZE:
        causes.append(too_long("parameters", MAX_PARAMETERS_SIZE))
    return causes


def _topologies(path: str, terms: Sequence[TopologySelectorTerm]) -> list[Cause]:
    causes: list[Cause] = []
    seen: list[dict[str, frozenset[str]]] = []
    for at, term in enumerate(terms):
        here = f"{path}[{at}].matchLabelExpressions"
        places: dict[str, frozenset[str]] = {}
        for index, need in enumerate(term.match_label_expressions):
            causes += _requirement(f"{here}[{index}]", need.key, need.values, places)
            places[need.key] = frozenset(need.values)
        if places in seen:
            causes.append(duplicate(here, ""))
        seen.append(places)
    return causes


def _requirement(
    path: str, key: str, values: Sequence[str], others: Mapping[str, frozenset[str]]
) -> list[Cause]:
    causes = checks.present(f"{path}.values", values)
    for at, value in enumerate(values):
        if value in values[:at]:
            causes.append(duplicate(f"{path}.values[{at}]", value))
    causes += checks.qualified_name(f"{path}.key", key)
    if key in others:
        causes.append(duplicate(f"{path}.key", key))
    return causes
