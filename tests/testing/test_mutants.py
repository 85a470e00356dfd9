"""Drivers with one mistake each: each is caught by the case that is meant for it."""

from __future__ import annotations

import pytest

from tests.support import sample_driver
from tests.support.sample_driver.mutants import MUTANTS
from volplane.cluster import external_driver
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.runner import CaseResult, CaseSettings, CaseVerdict

pytestmark = [pytest.mark.root, pytest.mark.slow]

SEED = 11
# mutant → the case, the section, and a word of the reason
CAUGHT = {
    "not-idempotent": ("twice/CreateVolume", "CSI: CreateVolume", "called twice"),
    "loses-publish-context": (
        "twice/ControllerPublishVolume",
        "CSI: ControllerPublishVolume",
        "then nothing",
    ),
    "formats-twice": ("attach/moves", "CSI: NodeStageVolume", "not what was written"),
    "leaks-a-mount": ("leaks/mounts", "CSI: NodeUnstageVolume", "still mounted"),
    "wrong-error-code": ("stage/unknown volume", "CSI: NodeStageVolume Errors", "expected NOT_FOUND or"),
    "deadlocks": ("publish/many volumes at once", "CSI: Concurrency", "no answer to CreateVolume"),
    "forgets-secrets": ("secrets/with each call", "CSI: Secrets Requirements", "no key is known"),
    "ignores-read-only": ("publish/read-only", "CSI: NodePublishVolume", "could be written"),
    "wrong-capacity": ("provision/capacity", "CSI: CreateVolume", "the volume has 1073737728"),
    "unstage-removes-data": ("stage/keeps the data", "CSI: NodeUnstageVolume", "not what was written"),
    "snapshot-not-consistent": ("snapshot/one moment", "CSI: CreateSnapshot", "not what was written"),
    "double-attach": (
        "attach/one node only",
        "CSI: ControllerPublishVolume Errors",
        "OK, expected FAILED",
    ),
    "forgets-attachments": (
        "cluster/driver killed during NodeStageVolume",
        "CSI: NodeStageVolume",
        "times with the same error",
    ),
    "refuses-what-is-published": (
        "cluster/node killed at NodePublishVolume",
        "CSI: NodePublishVolume",
        "times with the same error",
    ),
    "keeps-the-device": (
        "cluster/driver killed after NodeUnstageVolume",
        "CSI: NodeUnstageVolume",
        "is still bound after everything is deleted",
    ),
    "publishes-unstaged": ("order/publish before stage", "CSI: NodePublishVolume", "shows 0 bytes of the"),
    "shares-nothing": ("share/two nodes write", "CSI: CreateVolume", "the other node finds 0"),
    "group-forgets-a-volume": (
        "group snapshot/data",
        "CSI: CreateVolumeGroupSnapshot",
        "has snapshots of",
    ),
    "group-one-by-one": (
        "group snapshot/one moment of all",
        "CSI: CreateVolumeGroupSnapshot",
        "in the group the first is at",
    ),
    "group-leaves-snapshots": (
        "group snapshot/delete",
        "CSI: DeleteVolumeGroupSnapshot",
        "is still listed",
    ),
    "group-forgets-its-name": (
        "killed after/CreateVolumeGroupSnapshot",
        "CSI: CreateVolumeGroupSnapshot",
        "returned",
    ),
    "modifies-once": ("twice/ControllerModifyVolume", "CSI: ControllerModifyVolume", "called again"),
    "answers-once": ("twice/questions", "CSI: RPC Interface", "ControllerGetVolume called twice"),
    "modifies-anything": (
        "modify/unknown parameter",
        "CSI: ControllerModifyVolume Errors",
        "OK, expected INVALID_ARGUMENT",
    ),
    "delta-misses": ("metadata/delta", "CSI: GetMetadataDelta", "is missing from"),
    "never-starts-over": ("metadata/goes on", "CSI: GetMetadataAllocated", "starting_offset is 10485760"),
    "nowhere-known": ("list/published nodes", "CSI: ListVolumes", "listed with []"),
    "no-condition": ("get/condition", "CSI: ControllerGetVolume", "without its condition"),
    "one-snapshot-page": ("snapshot/pages", "CSI: ListSnapshots", "with 1 a page"),
    "any-size": ("capacity/largest volume", "CSI: GetCapacity", "OK, expected OUT_OF_RANGE"),
    "two-writers": ("publish/one pod only", "CSI: NodePublishVolume Errors", "OK, expected FAILED"),
    "keeps-the-slot": ("attach/limit is given back", "CSI: ControllerPublishVolume", "has 4 volumes"),
    "displaced": ("provision/unknown topology", "CSI: CreateVolume Errors", "OK, expected RESOURCE"),
}
TWO_NODES = frozenset({"formats-twice", "double-attach", "shares-nothing"})


def test_every_mutant_has_its_case() -> None:
    assert CAUGHT.keys() == MUTANTS.keys() - {"none", "zoned"}


@pytest.mark.parametrize("mutant", CAUGHT)
async def test_a_broken_driver_is_caught(mutant: str) -> None:
    case, section, word = CAUGHT[mutant]
    reported: list[CaseResult] = []
    settings = CaseSettings(seed=SEED, timeout=5.0 if mutant == "deadlocks" else 120.0)
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line(mutant)),
        runner.select_cases(ALL_CASES, f"^(identity/name|{case})$", ""),
        settings,
        reported.append,
        secrets={"key": "sesame"},
        mutable={"iops": "3000"},
        nodes=2 if mutant in TWO_NODES else 1,
    )
    identity, found = run.results
    assert reported == run.results
    assert identity.verdict is CaseVerdict.PASSED
    assert (found.name, found.verdict, found.section) == (case, CaseVerdict.FAILED, section), found.reason
    assert word in found.reason
    assert found.calls
    assert "sesame" not in str(found)
    if case.startswith("cluster/"):
        assert any(" on worker-1" in who for who in found.logs), found.logs.keys()
