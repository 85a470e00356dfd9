"""Conformance by capability: what the driver promises, what was exercised, how often, and with which faults.

Faults are read from two places: from what the call interceptor did to a call, and from the name of a case
that disturbs one call of a lifecycle (`twice/NodeStageVolume`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from volplane.testing.runner import CaseResult, CaseVerdict

EVERY_DRIVER = "every driver"
GROUPS_WITH_FAULTS = ("twice", "at once", "given up", "killed during", "killed after")
_CLUSTER_CASE = re.compile(r"cluster/(driver killed (?:during|after)|node killed at) (\w+)")
_READ_ONLY = re.compile(r"Probe|Validate|List|(?:Node|Controller|GroupController)?Get")
_NOTES = (
    ("delayed", "slow"),
    ("held", "slow"),
    ("cut before", "call lost"),
    ("cut after", "answer lost"),
    ("sent twice", "twice"),
)


class CapabilityInfo(Struct, frozen=True):
    methods: tuple[str, ...]
    needs: tuple[str, ...]  # names in `Case.needs`


# By the names that a run reports; a capability without own calls is exercised by the cases that need it.
CAPABILITIES = {
    EVERY_DRIVER: CapabilityInfo(
        (
            "GetPluginInfo",
            "GetPluginCapabilities",
            "Probe",
            "NodeGetInfo",
            "NodeGetCapabilities",
            "NodePublishVolume",
            "NodeUnpublishVolume",
        ),
        (),
    ),
    "CONTROLLER_SERVICE": CapabilityInfo(
        ("ControllerGetCapabilities", "ValidateVolumeCapabilities"), ("controller",)
    ),
    "CREATE_DELETE_VOLUME": CapabilityInfo(("CreateVolume", "DeleteVolume"), ("create", "provision")),
    "PUBLISH_UNPUBLISH_VOLUME": CapabilityInfo(
        ("ControllerPublishVolume", "ControllerUnpublishVolume"), ("attach",)
    ),
    "PUBLISH_READONLY": CapabilityInfo((), ("attach-readonly",)),
    "LIST_VOLUMES": CapabilityInfo(("ListVolumes",), ("list",)),
    "LIST_VOLUMES_PUBLISHED_NODES": CapabilityInfo((), ("published-nodes",)),
    "GET_VOLUME": CapabilityInfo(("ControllerGetVolume",), ("get",)),
    "GET_CAPACITY": CapabilityInfo(("GetCapacity",), ("capacity",)),
    "CREATE_DELETE_SNAPSHOT": CapabilityInfo(("CreateSnapshot", "DeleteSnapshot"), ("snapshot",)),
    "LIST_SNAPSHOTS": CapabilityInfo(("ListSnapshots",), ("list-snapshots",)),
    "GET_SNAPSHOT": CapabilityInfo(("GetSnapshot",), ("get-snapshot",)),
    "CLONE_VOLUME": CapabilityInfo((), ("clone",)),
    "EXPAND_VOLUME": CapabilityInfo(("ControllerExpandVolume",), ("expand-controller",)),
    "MODIFY_VOLUME": CapabilityInfo(("ControllerModifyVolume",), ("modify", "modify-parameters")),
    "VOLUME_CONDITION": CapabilityInfo((), ("condition-controller",)),
    "SINGLE_NODE_MULTI_WRITER": CapabilityInfo((), ("single-writer",)),
    "VOLUME_ACCESSIBILITY_CONSTRAINTS": CapabilityInfo((), ("topology",)),
    "GROUP_CONTROLLER_SERVICE": CapabilityInfo(("GroupControllerGetCapabilities",), ()),
    "group CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT": CapabilityInfo(
        ("CreateVolumeGroupSnapshot", "GetVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot"),
        ("group-snapshot",),
    ),
    "SNAPSHOT_METADATA_SERVICE": CapabilityInfo(("GetMetadataAllocated", "GetMetadataDelta"), ("metadata",)),
    "node STAGE_UNSTAGE_VOLUME": CapabilityInfo(("NodeStageVolume", "NodeUnstageVolume"), ("stage",)),
    "node GET_VOLUME_STATS": CapabilityInfo(("NodeGetVolumeStats",), ("stats",)),
    "node EXPAND_VOLUME": CapabilityInfo(("NodeExpandVolume",), ("expand-node",)),
    "node VOLUME_CONDITION": CapabilityInfo((), ("condition",)),
    "node VOLUME_MOUNT_GROUP": CapabilityInfo((), ("mount-group",)),
    "node SINGLE_NODE_MULTI_WRITER": CapabilityInfo((), ("single-writer",)),
}


class MethodUse(Struct):
    """The calls of one method in a run."""

    ok: int = 0
    failed: int = 0
    faults: dict[str, int] = {}  # times, by kind of fault


class CapabilityUse(Struct):
    """One capability in a run. The calls of csi-sanity are not recorded, and do not count."""

    capability: str
    promised: bool
    methods: dict[str, MethodUse]
    passed: int = 0  # cases that need it
    failed: list[str] = []
    skipped: dict[str, int] = {}  # by reason

    @property
    def is_exercised(self) -> bool:
        """Whether a call of it was made; if it has no own calls, whether a case that needs it ran."""
        if self.methods:
            return any(use.ok + use.failed for use in self.methods.values())
        return bool(self.passed or self.failed)

    @property
    def calls(self) -> int:
        return sum(use.ok + use.failed for use in self.methods.values())

    @property
    def faults(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for use in self.methods.values():
            found.update(use.faults)
        return dict(found)


def use_by_capability(promised: Iterable[str], results: Iterable[CaseResult]) -> list[CapabilityUse]:
    """Each known capability: the promised ones first, in the order of the table."""
    known, ran = {*promised, EVERY_DRIVER}, list(results)
    methods = _use_by_method(ran)
    unknown = [name for name in known if name not in CAPABILITIES]
    infos = {**CAPABILITIES, **{name: CapabilityInfo((), ()) for name in sorted(unknown)}}
    found = []
    for name, info in infos.items():
        use = CapabilityUse(name, name in known, {m: methods.get(m, MethodUse()) for m in info.methods})
        for result in ran:
            if result.needs is not None and _is_needed(name, info, set(result.needs)):
                _count(use, result)
        found.append(use)
    return sorted(found, key=lambda use: not use.promised)


def _is_needed(name: str, info: CapabilityInfo, needs: set[str]) -> bool:
    if name == EVERY_DRIVER:
        return needs <= {"create"}  # nothing, or only a volume
    return bool(needs & set(info.needs))


def _count(use: CapabilityUse, result: CaseResult) -> None:
    if result.verdict is CaseVerdict.PASSED:
        use.passed += 1
    elif result.verdict is CaseVerdict.FAILED:
        use.failed = list(dict.fromkeys([*use.failed, result.name]))
    else:
        reason = result.reason.removeprefix("not supported: ")
        use.skipped = {**use.skipped, reason: use.skipped.get(reason, 0) + 1}


def _use_by_method(results: Iterable[CaseResult]) -> dict[str, MethodUse]:
    found: dict[str, MethodUse] = {}
    for result in results:
        for method, count in result.call_counts.items():
            use = found.setdefault(method, MethodUse())
            use.ok, use.failed = use.ok + count.ok, use.failed + count.failed
            faults = Counter(use.faults)
            for note, times in count.notes.items():
                if fault := _fault_of_note(note):
                    faults[fault] += times
            faults.update(_faults_of_case(result.name, method))
            use.faults = dict(faults)
    return found


def _fault_of_note(note: str) -> str:
    return next((fault for prefix, fault in _NOTES if note.startswith(prefix)), "")


def _faults_of_case(name: str, method: str) -> Iterator[str]:
    """The fault that the case causes at calls of the method."""
    group, _, rest = name.partition("/")
    if group in GROUPS_WITH_FAULTS and (rest == method or (rest == "questions" and _READ_ONLY.match(method))):
        yield group
    if (found := _CLUSTER_CASE.fullmatch(name)) and found[2] == method:
        yield found[1]


def describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {times}" for name, times in counts.items())
