"""StorageClasses and VolumeAttributesClasses: their parameters are immutable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volplane.api.core import TopologySelectorTerm
from volplane.api.errors import (
    Causes,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required_value,
    too_long,
)
from volplane.api.finalizers import VAC_PROTECTION_FINALIZER
from volplane.api.meta import Resource
from volplane.api.storage import StorageClass, VolumeAttributesClass
from volplane.apiserver.object_access import path_reader
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.finalizers import add_finalizer
from volplane.apiserver.strategy import ApiCall, Strategy

MAX_PARAMETERS = 512
MAX_PARAMETERS_SIZE = 256 * 1024
POLICIES = ("Delete", "Retain")
BINDING_MODES = ("Immediate", "WaitForFirstConsumer")


class StorageClassStrategy(Strategy[StorageClass]):
    def validate_create(self, call: ApiCall, obj: StorageClass) -> Causes:
        if obj.provisioner:
            yield from checks.qualified_name("provisioner", obj.provisioner.lower())
        yield from checks.present("provisioner", obj.provisioner)
        yield from _parameters(obj.parameters)
        yield from checks.choice("reclaimPolicy", obj.reclaim_policy or None, POLICIES)
        if obj.volume_binding_mode not in BINDING_MODES:
            yield not_supported("volumeBindingMode", obj.volume_binding_mode, BINDING_MODES)
        yield from _topologies("allowedTopologies", obj.allowed_topologies)

    def validate_update(self, call: ApiCall, old: StorageClass, new: StorageClass) -> Causes:
        yield from self.validate_create(call, new)
        yield from _forbidden_updates(new, old, "parameters", "provisioner", "reclaimPolicy")
        yield from checks.immutable_field(
            "volumeBindingMode", new.volume_binding_mode, old.volume_binding_mode
        )


class VolumeAttributesClassStrategy(Strategy[VolumeAttributesClass]):
    async def admit_create(self, call: ApiCall, obj: VolumeAttributesClass) -> VolumeAttributesClass:
        return add_finalizer(obj, VAC_PROTECTION_FINALIZER)

    def validate_create(self, call: ApiCall, obj: VolumeAttributesClass) -> Causes:
        yield from checks.driver_name("driverName", obj.driver_name)
        if not obj.parameters:
            yield required_value("parameters", "must contain at least one key/value pair")
        yield from _parameters(obj.parameters)

    def validate_update(
        self, call: ApiCall, old: VolumeAttributesClass, new: VolumeAttributesClass
    ) -> Causes:
        yield from self.validate_create(call, new)
        yield from _forbidden_updates(new, old, "driverName", "parameters")


def _forbidden_updates(new: Resource, old: Resource, *names: str) -> Causes:
    for name in names:
        read = path_reader(type(new), name)
        if read(old) != read(new):
            yield forbidden(name, f"updates to {name} are forbidden.")


def _parameters(given: Mapping[str, str]) -> Causes:
    if len(given) > MAX_PARAMETERS:
        yield too_long("parameters", MAX_PARAMETERS)
        return
    yield from [invalid("parameters", key, "field can not be empty.") for key in given if not key]
    if sum(len(key.encode()) + len(value.encode()) for key, value in given.items()) > MAX_PARAMETERS_SIZE:
        yield too_long("parameters", MAX_PARAMETERS_SIZE)


def _topologies(path: str, terms: Sequence[TopologySelectorTerm]) -> Causes:
    seen: list[dict[str, frozenset[str]]] = []
    for at, term in enumerate(terms):
        here = f"{path}[{at}].matchLabelExpressions"
        places: dict[str, frozenset[str]] = {}
        for index, need in enumerate(term.match_label_expressions):
            yield from _requirement(f"{here}[{index}]", need.key, need.values, places)
            places[need.key] = frozenset(need.values)
        if places in seen:
            yield duplicate(here, "")
        seen.append(places)


def _requirement(path: str, key: str, values: Sequence[str], others: Mapping[str, frozenset[str]]) -> Causes:
    yield from checks.present(f"{path}.values", values)
    for at, value in enumerate(values):
        if value in values[:at]:
            yield duplicate(f"{path}.values[{at}]", value)
    yield from checks.qualified_name(f"{path}.key", key)
    if key in others:
        yield duplicate(f"{path}.key", key)
