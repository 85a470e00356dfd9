"""CSIDriver, CSINode and CSIStorageCapacity."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from volplane.api import storage
from volplane.api.errors import Causes, duplicate, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

FS_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
LIFECYCLE_MODES = ("Persistent", "Ephemeral")
NODE_ID_LENGTH = 256
MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 1 << 32


class CSIDriverStrategy(Strategy[storage.CSIDriver]):
    def validate_create(self, call: ApiCall, obj: storage.CSIDriver) -> Causes:
        return _driver("spec", obj.spec)

    def validate_update(self, call: ApiCall, old: storage.CSIDriver, new: storage.CSIDriver) -> Causes:
        yield from _driver("spec", new.spec)
        # Upstream spells this path `attachedRequired`.
        yield from checks.immutable_field(
            "spec.attachedRequired", new.spec.attach_required, old.spec.attach_required
        )
        modes = (new.spec.volume_lifecycle_modes, old.spec.volume_lifecycle_modes)
        yield from checks.immutable_field("spec.volumeLifecycleModes", *modes)


def _driver(path: str, spec: storage.CSIDriverSpec) -> Causes:
    yield from checks.choice(f"{path}.fsGroupPolicy", spec.fs_group_policy, FS_GROUP_POLICIES)
    yield from _tokens(f"{path}.tokenRequests", spec.token_requests)
    for mode in spec.volume_lifecycle_modes:
        if mode not in LIFECYCLE_MODES:
            yield not_supported(f"{path}.volumeLifecycleModes", mode, LIFECYCLE_MODES)
    period = spec.node_allocatable_update_period_seconds
    if period is not None and period < 10:
        message = "must be greater than or equal to 10 seconds"
        yield invalid(f"{path}.nodeAllocatableUpdatePeriodSeconds", period, message)
    if spec.service_account_token_in_secrets is not None and not spec.token_requests:
        message = "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        here = f"{path}.serviceAccountTokenInSecrets"
        yield invalid(here, spec.service_account_token_in_secrets, message)


def _tokens(path: str, requests: Sequence[storage.TokenRequest]) -> Causes:
    seen: set[str] = set()
    for at, request in enumerate(requests):
        if request.audience in seen:
            yield duplicate(f"{path}[{at}].audience", request.audience)
            continue
        seen.add(request.audience)
        here, seconds = f"{path}[{at}].expirationSeconds", request.expiration_seconds
        if seconds is not None and seconds < MIN_TOKEN_SECONDS:
            yield invalid(here, seconds, "may not specify a duration less than 10 minutes")
        if seconds is not None and seconds > MAX_TOKEN_SECONDS:
            yield invalid(here, seconds, "may not specify a duration larger than 2^32 seconds")


class CSINodeStrategy(Strategy[storage.CSINode]):
    def validate_create(self, call: ApiCall, obj: storage.CSINode) -> Causes:
        seen: set[str] = set()
        for at, driver in enumerate(obj.spec.drivers):
            here = f"spec.drivers[{at}]"
            yield from _node_driver(here, driver)
            yield from checks.not_duplicate(f"{here}.name", driver.name, seen)

    def validate_update(self, call: ApiCall, old: storage.CSINode, new: storage.CSINode) -> Causes:
        yield from self.validate_create(call, new)
        held = {driver.name: driver for driver in old.spec.drivers}
        for driver in new.spec.drivers:
            before = held.get(driver.name)
            if before is not None:
                # Only the number of volumes that the node can hold may change after registration.
                plain = structs.replace(driver, allocatable=None)
                yield from checks.immutable_field(
                    "spec.drivers", plain, structs.replace(before, allocatable=None)
                )


def _node_driver(path: str, driver: storage.CSINodeDriver) -> Causes:
    yield from checks.driver_name(f"{path}.name", driver.name)
    if not driver.node_id:
        yield required_value(f"{path}.nodeID")
    elif len(driver.node_id) > NODE_ID_LENGTH:
        yield invalid(f"{path}.nodeID", driver.node_id, f"must be {NODE_ID_LENGTH} characters or less")
    if driver.allocatable is not None and driver.allocatable.count is not None:
        yield from checks.not_negative(f"{path}.allocatable.count", driver.allocatable.count)
    for at, key in enumerate(driver.topology_keys):
        if key in driver.topology_keys[:at]:
            yield duplicate(path, key)
        if key:
            yield from checks.qualified_name(path, key)
        else:
            yield required_value(path)


class CSIStorageCapacityStrategy(Strategy[storage.CSIStorageCapacity]):
    def validate_create(self, call: ApiCall, obj: storage.CSIStorageCapacity) -> Causes:
        yield from checks.label_selector("nodeTopology", obj.node_topology)
        yield from checks.subdomain("storageClassName", obj.storage_class_name)
        if obj.capacity is not None:
            yield from checks.amount_not_negative("capacity", obj.capacity)

    def validate_update(
        self, call: ApiCall, old: storage.CSIStorageCapacity, new: storage.CSIStorageCapacity
    ) -> Causes:
        yield from checks.immutable_field("nodeTopology", new.node_topology, old.node_topology)
        yield from checks.immutable_field("storageClassName", new.storage_class_name, old.storage_class_name)
