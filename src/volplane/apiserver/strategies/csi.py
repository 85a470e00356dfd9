"""What drivers say of themselves: CSIDriver, CSINode, CSIStorageCapacity."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from volplane.api.errors import Cause, duplicate, invalid, not_supported, required_value
from volplane.api.storage import (
    CSIDriver,
    CSIDriverSpec,
    CSINode,
    CSINodeDriver,
    CSIStorageCapacity,
    TokenRequest,
)
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

FS_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
LIFECYCLE_MODES = ("Persistent", "Ephemeral")
NODE_ID_LENGTH = 256
MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 1 << 32


class CSIDriverStrategy(Strategy[CSIDriver]):
    def validate_create(self, call: ApiCall, obj: CSIDriver) -> list[Cause]:
        return _driver("spec", obj.spec)

    def validate_update(self, call: ApiCall, old: CSIDriver, new: CSIDriver) -> list[Cause]:
        wrong = _driver("spec", new.spec)
        # The first path is spelled as clients know it.
        wrong += checks.immutable_field(
            "spec.attachedRequired", new.spec.attach_required, old.spec.attach_required
        )
        modes = (new.spec.volume_lifecycle_modes, old.spec.volume_lifecycle_modes)
        return wrong + checks.immutable_field("spec.volumeLifecycleModes", *modes)


def _driver(path: str, spec: CSIDriverSpec) -> list[Cause]:
    wrong: list[Cause] = []
    if spec.fs_group_policy is not None and spec.fs_group_policy not in FS_GROUP_POLICIES:
        wrong.append(not_supported(f"{path}.fsGroupPolicy", spec.fs_group_policy, FS_GROUP_POLICIES))
    wrong += _tokens(f"{path}.tokenRequests", spec.token_requests)
    for mode in spec.volume_lifecycle_modes:
        if mode not in LIFECYCLE_MODES:
            wrong.append(not_supported(f"{path}.volumeLifecycleModes", mode, LIFECYCLE_MODES))
    period = spec.node_allocatable_update_period_seconds
    if period is not None and period < 10:
        told = "must be greater than or equal to 10 seconds"
        wrong.append(invalid(f"{path}.nodeAllocatableUpdatePeriodSeconds", period, told))
    if spec.service_account_token_in_secrets is not None and not spec.token_requests:
        told = "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        here = f"{path}.serviceAccountTokenInSecrets"
        wrong.append(invalid(here, spec.service_account_token_in_secrets, told))
    return wrong


def _tokens(path: str, requests: Sequence[TokenRequest]) -> list[Cause]:
    wrong: list[Cause] = []
    seen: set[str] = set()
    for at, request in enumerate(requests):
        if request.audience in seen:
            wrong.append(duplicate(f"{path}[{at}].audience", request.audience))
            continue
        seen.add(request.audience)
        here, seconds = f"{path}[{at}].expirationSeconds", request.expiration_seconds
        if seconds is not None and seconds < MIN_TOKEN_SECONDS:
            wrong.append(invalid(here, seconds, "may not specify a duration less than 10 minutes"))
        if seconds is not None and seconds > MAX_TOKEN_SECONDS:
            wrong.append(invalid(here, seconds, "may not specify a duration larger than 2^32 seconds"))
    return wrong


class CSINodeStrategy(Strategy[CSINode]):
    def validate_create(self, call: ApiCall, obj: CSINode) -> list[Cause]:
        wrong: list[Cause] = []
        seen: set[str] = set()
        for at, driver in enumerate(obj.spec.drivers):
            here = f"spec.drivers[{at}]"
            wrong += _node_driver(here, driver)
            if driver.name in seen:
                wrong.append(duplicate(f"{here}.name", driver.name))
            seen.add(driver.name)
        return wrong

    def validate_update(self, call: ApiCall, old: CSINode, new: CSINode) -> list[Cause]:
        wrong = self.validate_create(call, new)
        held = {driver.name: driver for driver in old.spec.drivers}
        for driver in new.spec.drivers:
            before = held.get(driver.name)
            if before is not None:
                # How many volumes a node can hold is learned anew; everything else is what was registered.
                plain = structs.replace(driver, allocatable=None)
                wrong += checks.immutable_field(
                    "spec.drivers", plain, structs.replace(before, allocatable=None)
                )
        return wrong


def _node_driver(path: str, driver: CSINodeDriver) -> list[Cause]:
    wrong = checks.driver_name(f"{path}.name", driver.name)
    if not driver.node_id:
        wrong.append(required_value(f"{path}.nodeID"))
    elif len(driver.node_id) > NODE_ID_LENGTH:
        told = f"must be {NODE_ID_LENGTH} characters or less"
        wrong.append(invalid(f"{path}.nodeID", driver.node_id, told))
    if driver.allocatable is not None and driver.allocatable.count is not None:
        wrong += checks.not_negative(f"{path}.allocatable.count", driver.allocatable.count)
    for at, key in enumerate(driver.topology_keys):
        if key in driver.topology_keys[:at]:
            wrong.append(duplicate(path, key))
        wrong += checks.qualified_name(path, key) if key else [required_value(path)]
    return wrong


class CSIStorageCapacityStrategy(Strategy[CSIStorageCapacity]):
    def validate_create(self, call: ApiCall, obj: CSIStorageCapacity) -> list[Cause]:
        wrong = checks.label_selector("nodeTopology", obj.node_topology)
        wrong += checks.subdomain("storageClassName", obj.storage_class_name)
        if obj.capacity is not None:
            wrong += checks.amount_not_negative("capacity", obj.capacity)
        return wrong

    def validate_update(self, call: ApiCall, old: CSIStorageCapacity, new: CSIStorageCapacity) -> list[Cause]:
        wrong = checks.immutable_field("nodeTopology", new.node_topology, old.node_topology)
        return wrong + checks.immutable_field(
            "storageClassName", new.storage_class_name, old.storage_class_name
        )
