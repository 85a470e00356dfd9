"""What drivers say of themselves: CSIDriver, CSINode, CSIStorageCapacity."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from volplane.api import storage
from volplane.api.errors import Cause, duplicate, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

FS_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
LIFECYCLE_MODES = ("Persistent", "Ephemeral")
NODE_ID_LENGTH = 256
MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 1 << 32


class CSIDriverStrategy(Strategy[storage.CSIDriver]):
    def validate_create(self, call: ApiCall, obj: storage.CSIDriver) -> list[Cause]:
        return _driver("spec", obj.spec)

    def validate_update(self, call: ApiCall, old: storage.CSIDriver, new: storage.CSIDriver) -> list[Cause]:
        causes = _driver("spec", new.spec)
        # The first path is spelled as clients know it.
        causes += checks.immutable_field(
            "spec.attachedRequired", new.spec.attach_required, old.spec.attach_required
        )
        modes = (new.spec.volume_lifecycle_modes, old.spec.volume_lifecycle_modes)
        return causes + checks.immutable_field("spec.volumeLifecycleModes", *modes)


def _driver(path: str, spec: storage.CSIDriverSpec) -> list[Cause]:
    causes: list[Cause] = []
    causes += checks.choice(f"{path}.fsGroupPolicy", spec.fs_group_policy, FS_GROUP_POLICIES)
    causes += _tokens(f"{path}.tokenRequests", spec.token_requests)
    for mode in spec.volume_lifecycle_modes:
        if mode not in LIFECYCLE_MODES:
            causes.append(not_supported(f"{path}.volumeLifecycleModes", mode, LIFECYCLE_MODES))
    period = spec.node_allocatable_update_period_seconds
    if period is not None and period < 10:
        message = "must be greater than or equal to 10 seconds"
        causes.append(invalid(f"{path}.nodeAllocatableUpdatePeriodSeconds", period, message))
    if spec.service_account_token_in_secrets is not None and not spec.token_requests:
        message = "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        here = f"{path}.serviceAccountTokenInSecrets"
        causes.append(invalid(here, spec.service_account_token_in_secrets, message))
    return causes


def _tokens(path: str, requests: Sequence[storage.TokenRequest]) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for at, request in enumerate(requests):
        if request.audience in seen:
            causes.append(duplicate(f"{path}[{at}].audience", request.audience))
            continue
        seen.add(request.audience)
        here, seconds = f"{path}[{at}].expirationSeconds", request.expiration_seconds
        if seconds is not None and seconds < MIN_TOKEN_SECONDS:
            causes.append(invalid(here, seconds, "may not specify a duration less than 10 minutes"))
        if seconds is not None and seconds > MAX_TOKEN_SECONDS:
            causes.append(invalid(here, seconds, "may not specify a duration larger than 2^32 seconds"))
    return causes


class CSINodeStrategy(Strategy[storage.CSINode]):
    def validate_create(self, call: ApiCall, obj: storage.CSINode) -> list[Cause]:
        causes: list[Cause] = []
        seen: set[str] = set()
        for at, driver in enumerate(obj.spec.drivers):
            here = f"spec.drivers[{at}]"
            causes += _node_driver(here, driver)
            causes += checks.unseen(f"{here}.name", driver.name, seen)
        return causes

    def validate_update(self, call: ApiCall, old: storage.CSINode, new: storage.CSINode) -> list[Cause]:
        causes = self.validate_create(call, new)
        held = {driver.name: driver for driver in old.spec.drivers}
        for driver in new.spec.drivers:
            before = held.get(driver.name)
            if before is not None:
                # How many volumes a node can hold is learned anew; everything else is what was registered.
                plain = structs.replace(driver, allocatable=None)
                causes += checks.immutable_field(
                    "spec.drivers", plain, structs.replace(before, allocatable=None)
                )
        return causes


def _node_driver(path: str, driver: storage.CSINodeDriver) -> list[Cause]:
    causes = checks.driver_name(f"{path}.name", driver.name)
    if not driver.node_id:
        causes.append(required_value(f"{path}.nodeID"))
    elif len(driver.node_id) > NODE_ID_LENGTH:
        message = f"must be {NODE_ID_LENGTH} characters or less"
        causes.append(invalid(f"{path}.nodeID", driver.node_id, message))
    if driver.allocatable is not None and driver.allocatable.count is not None:
        causes += checks.not_negative(f"{path}.allocatable.count", driver.allocatable.count)
    for at, key in enumerate(driver.topology_keys):
        if key in driver.topology_keys[:at]:
            causes.append(duplicate(path, key))
        causes += checks.qualified_name(path, key) if key else [required_value(path)]
    return causes


class CSIStorageCapacityStrategy(Strategy[storage.CSIStorageCapacity]):
    def validate_create(self, call: ApiCall, obj: storage.CSIStorageCapacity) -> list[Cause]:
        causes = checks.label_selector("nodeTopology", obj.node_topology)
        causes += checks.subdomain("storageClassName", obj.storage_class_name)
        if obj.capacity is not None:
            causes += checks.amount_not_negative("capacity", obj.capacity)
        return causes

    def validate_update(
        self, call: ApiCall, old: storage.CSIStorageCapacity, new: storage.CSIStorageCapacity
    ) -> list[Cause]:
        causes = checks.immutable_field("nodeTopology", new.node_topology, old.node_topology)
        return causes + checks.immutable_field(
            "storageClassName", new.storage_class_name, old.storage_class_name
        )
