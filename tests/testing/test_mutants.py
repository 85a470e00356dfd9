"""Drivers with one mistake each: each is caught by the case that is meant for it."""

from __future__ import annotations

import pytest

from tests.support import sample_driver
from tests.support.sample_driver.mutants import MUTANTS
from tests.support.sample_driver.sequence_mutants import SEQUENCE_MUTANTS
from volplane.cluster import external_driver
from volplane.testing import driver_run, runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.cases.expand import CANNOT_GROW, may_grow_mounted_ext
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
    "unpublish-deletes-busy-target": (
        "unpublish/busy target",
        "CSI: NodeUnpublishVolume",
        "not what was written, after NodeUnpublishVolume (OK) while a file was open",
    ),
    "lazy-unpublish": ("unpublish/not only detached", "CSI: NodeUnpublishVolume", "lazy unmount"),
    "lazy-unstage": ("unstage/not only detached", "CSI: NodeUnstageVolume", "may be attached elsewhere"),
    "swaps-stats": (
        "stats/follow what is written",
        "CSI: NodeGetVolumeStats",
        "bytes were written, and used",
    ),
    "stats-in-blocks": ("stats/follow what is written", "CSI: NodeGetVolumeStats", "and used went from"),
    "stats-of-the-parent": ("stats/during unpublish", "CSI: NodeGetVolumeStats", "another file system"),
    "slow-stats-of-the-parent": (
        "stats/during unpublish",
        "CSI: NodeGetVolumeStats",
        "another file system",
    ),
    "slow-stats": (
        "stats/in time",
        "Kubernetes: volume metrics of a kubelet",
        "expected 3 s at most",
    ),
    "stats-hold-the-node": (
        "stats/hold up nothing",
        "CSI: Concurrency",
        "after a NodeGetVolumeStats that takes",
    ),
    "leaks-descriptors": (
        "leaks/descriptors and threads",
        "CSI: Supervised Lifecycle Management",
        "open files after 2 lifecycles",
    ),
    "leaks-threads": (
        "leaks/descriptors and threads",
        "CSI: Supervised Lifecycle Management",
        "threads after 2 lifecycles",
    ),
    "logs-secrets": ("secrets/not in logs and errors", "CSI: Secrets Requirements", "the log of node-1 has"),
    "tells-secrets": (
        "secrets/not in logs and errors",
        "CSI: Secrets Requirements",
        "the error of CreateSnapshot (NOT_FOUND) has",
    ),
    "ignores-limit": ("provision/limit only", "CSI: CreateVolume", "the volume has 5368709120"),
    "names-are-paths": ("provision/odd names", "CSI: CreateVolume", "a name with ../ has made"),
    "names-collide": ("provision/odd names", "CSI: CreateVolume", "are one volume"),
    "trusts-ids": ("delete/path in an id", "CSI: DeleteVolume", "DeleteVolume of '../bystander"),
    "publishes-any-path": ("publish/path in an id", "CSI: NodePublishVolume Errors", "(OK) has published"),
    "trusts-base-names": ("delete/path in an id", "CSI: DeleteVolume", "DeleteVolume of 'x/dir-"),
    "trusts-dots": ("delete/path in an id", "CSI: DeleteVolume", "DeleteVolume of '.' (OK) has deleted"),
    "publishes-base-names": (
        "publish/path in an id",
        "CSI: NodePublishVolume Errors",
        "NodePublishVolume of 'x/' (OK) has published",
    ),
    "names-are-ids": (
        "provision/odd names",
        "CSI: CreateVolume",
        "with the name '.' is not a new one",
    ),
    "confirms-anything": (
        "validate/what cannot be done",
        "CSI: ValidateVolumeCapabilities",
        "MULTI_NODE_MULTI_WRITER mount is confirmed",
    ),
    "ignores-mount-flags": (
        "publish/mount flags",
        "Kubernetes: mountOptions of a StorageClass",
        "mounted without it",
    ),
    "ignores-file-system": (
        "stage/file system type",
        "Kubernetes: csi.storage.k8s.io/fstype of a StorageClass",
        "fs_type xfs is requested, no call refuses it",
    ),
    "formats-after-power-loss": ("power/lost while in use", "CSI: NodeStageVolume", "after a power loss"),
    "ignores-other-readonly": (
        "publish/other capability",
        "CSI: NodePublishVolume Errors",
        "published writable and stays so",
    ),
    "ignores-other-file-system": (
        "publish/other capability",
        "CSI: NodeStageVolume Errors",
        "staged as ext4 and stays so",
    ),
    "moves-its-topology": ("topology/after a move", "CSI: ListVolumes", "ListVolumes reports it in"),
    "snapshot-undoes-expansion": (
        "snapshot/while it grows",
        "CSI: ControllerExpandVolume",
        "during CreateSnapshot, and has 1073741824 now",
    ),
    "local-time": ("snapshot/creation time", "CSI: CreateSnapshot", "its creation_time is"),
    **{
        mutant: ("snapshot/files and their attributes", "CSI: CreateVolume", word)
        for mutant, word in (
            ("drops-modes", "'plain' has mode 0644, was 0640"),
            ("drops-owners", "'owned' has owner 0:0, was 1234:4321"),
            ("drops-hard-links", "'plain' has links none, was ('second name',)"),
            ("drops-xattrs", "'plain' has xattrs none"),
            ("drops-times", "'plain' has modified"),
            ("fills-holes", "'sparse' is not sparse"),
            ("follows-links", "'link' has kind -, was l"),
            ("drops-empty-directories", "directory 'empty' is missing"),
        )
    },
    "opens-its-root": ("stage/keeps all files", "CSI: NodeStageVolume", "'.' has mode 0777, was 2750"),
    "removes-hidden-files": ("stage/keeps all files", "CSI: NodeStageVolume", "'.hidden' is missing"),
    "deletes-similar-names": ("delete/similar names", "CSI: DeleteVolume", "is not listed any more"),
    "unpublishes-similar-targets": (
        "unpublish/similar targets",
        "CSI: NodeUnpublishVolume",
        "after another target was unpublished",
    ),
    "removes-the-parent": (
        "unpublish/parent is kept",
        "CSI: NodeUnpublishVolume",
        "which is not the driver's, is deleted",
    ),
    "remounts-the-volume": (
        "publish/read-only beside writable",
        "CSI: NodePublishVolume",
        "cannot be written after another target was published with readonly",
    ),
    "trusts-its-records": (
        "power/node starts again",
        "CSI: NodePublishVolume",
        "after the node has started again",
    ),
    "never-starts-again": (
        "cluster/driver killed after NodeStageVolume",
        "CSI: Supervised Lifecycle Management",
        "with code 1: the state file is incomplete",
    ),
    "restored-needs-snapshot": (
        "snapshot/volumes outlive it",
        "CSI: DeleteSnapshot",
        "after its snapshot was deleted",
    ),
    "clone-needs-source": ("clone/outlives its source", "CSI: DeleteVolume", "after its source was deleted"),
    "stays-frozen": ("snapshot/refused call", "CSI: CreateSnapshot Errors", "is frozen after CreateSnapshot"),
    "leaves-data": ("leaks/space", "CSI: DeleteVolume", "more bytes after the volume was deleted"),
    "publishes-secrets": ("secrets/not in contexts", "CSI: CreateVolume", "has the value of a secret"),
    "leaves-zombies": (
        "leaks/descriptors and threads",
        "CSI: Supervised Lifecycle Management",
        "zombies after 2 lifecycles",
    ),
    "ignores-the-source": ("snapshot/list", "CSI: ListSnapshots", "listed are"),
    "rounds-up": ("provision/tight limit", "CSI: CreateVolume", "the volume has 2147483648"),
    "rounds-down": ("provision/odd size", "CSI: CreateVolume", "the volume has 1074790400"),
    "cuts-off-sizes": ("provision/more than 4 GiB", "CSI: CreateVolume", "the volume has 134217728"),
    "expands-by-gibibytes": ("expand/odd size", "CSI: ControllerExpandVolume", "the volume has 4294967296"),
    "restores-small": ("snapshot/larger volume", "CSI: CreateVolume", "expanded to 2147483648 bytes"),
    "mounts-one-uuid": ("snapshot/beside its source", "CSI: NodeStageVolume", "beside its source"),
    "measures-the-device-file": ("stats/device", "CSI: NodeGetVolumeStats", "reports a total of"),
    "displaced": ("provision/unknown topology", "CSI: CreateVolume Errors", "OK, expected RESOURCE"),
}
CORRECT = frozenset(
    {
        "none",
        "zoned",
        "shares-its-file-system",
        "stats-take-a-second",
        "grows-while-staging",
        "remounts-the-target",
    }
)
TWO_NODES = frozenset({"formats-twice", "double-attach", "shares-nothing", "moves-its-topology"})


def test_every_mutant_has_its_case() -> None:
    assert CAUGHT.keys() == MUTANTS.keys() - CORRECT - SEQUENCE_MUTANTS.keys()


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
        secrets={"key": "open sesame"},
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


async def test_stats_may_be_wrong_while_others_free_space() -> None:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line("shares-its-file-system")),
        runner.select_cases(ALL_CASES, "^stats/follow what is written$", ""),
        CaseSettings(seed=SEED),
        lambda result: None,
        nodes=1,
    )
    assert [one.verdict for one in run.results] == [CaseVerdict.PASSED], run.results[0].reason
    assert run.results[0].call_counts["NodeGetVolumeStats"].ok > 3  # the first attempt was wrong


async def test_slow_stats_that_hold_nothing_up_are_not_a_failure() -> None:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line("stats-take-a-second")),
        runner.select_cases(ALL_CASES, "^stats/", ""),
        CaseSettings(seed=SEED),
        lambda result: None,
        secrets={"key": "open sesame"},
        nodes=1,
    )
    failed = {one.name: one.reason for one in run.results if one.verdict is CaseVerdict.FAILED}
    assert failed == {}
    assert [one.verdict for one in run.results if one.name == "stats/hold up nothing"] == [CaseVerdict.PASSED]


async def test_a_file_system_that_this_machine_cannot_grow_is_not_a_failure_of_the_driver() -> None:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line("grows-while-staging")),
        runner.select_cases(ALL_CASES, "^(expand/offline|snapshot/larger volume)$", ""),
        CaseSettings(seed=SEED),
        lambda result: None,
        secrets={"key": "open sesame"},
        nodes=1,
    )
    assert [one.verdict for one in run.results] == [CaseVerdict.PASSED] * 2, run.results


async def test_a_claim_that_this_machine_cannot_grow_is_not_a_failure_of_the_driver() -> None:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line("grows-while-staging")),
        runner.select_cases(ALL_CASES, "^cluster/expand$", ""),
        CaseSettings(seed=SEED, timeout=120.0),
        lambda result: None,
        secrets={"key": "open sesame"},
        nodes=1,
    )
    [found] = run.results
    if may_grow_mounted_ext():
        assert found.verdict is CaseVerdict.PASSED, found.reason
    else:
        assert (found.verdict, found.reason) == (CaseVerdict.SKIPPED, f"not supported: {CANNOT_GROW}")


async def test_a_driver_that_never_starts_again_fails_one_case_of_a_cluster() -> None:
    broken, sound = "cluster/driver killed after NodeStageVolume", "cluster/claim and pods"
    known = {case.name: case for case in ALL_CASES}
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line("never-starts-again")),
        [known[broken], known[sound]],
        CaseSettings(seed=SEED),
        lambda result: None,
        secrets={"key": "open sesame"},
    )
    assert [one.verdict for one in run.results] == [CaseVerdict.FAILED, CaseVerdict.PASSED], run.results[
        1
    ].reason
