"""Upstream's example driver on the bench and in a cluster: each of its verdicts is explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support import peers
from tests.support.driver_cases import PARTS, failed_reasons, run_cases
from volplane.cluster import external_driver
from volplane.testing import runner
from volplane.testing.cases import ALL_CASES
from volplane.testing.runner import CaseVerdict

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
HOSTPATH = (
    "--drivername=hostpath.csi.k8s.io --endpoint=$CSI_ENDPOINT --nodeid=$NODE_ID --statedir=$STATE_DIR"
    " --enable-attach=true"
)
# What upstream's example driver does not do, and why; docs/test-your-driver.md explains each.
EXPLAINED = {
    "list/volumes": "not once",
    "delete/in use": "OK, expected FAILED_PRECONDITION",
    "snapshot/two of one volume": "",
    "snapshot/list": "listed are []",
    "provision/odd size": "bytes are required, the device has",
    "stats/device": "NodeGetVolumeStats reports a total of",
    "power/node starts again": "ControllerPublishVolume must be called",
    "list/condition": "the condition has no message",
    "get/condition": "the condition has no message",
    "publish/mount flags": "no call refuses it",
    "publish/other capability": "published writable and stays so",
    "snapshot/files and their attributes": "'sparse' is not sparse",
    "stats/condition": "The volume isn't mounted",
    "capacity/largest volume": "UNKNOWN (failed to create volume",
    "provision/unknown topology": "OK, expected RESOURCE_EXHAUSTED",
    "killed during/NodeStageVolume": "ControllerPublishVolume must be called",
    "killed during/NodePublishVolume": "must be staged before publishing",
    "killed during/CreateSnapshot": "is still mounted after everything is deleted",
    "killed during/NodeUnpublishVolume": "is still mounted after everything is deleted",
    "killed after/NodeStageVolume": "ControllerPublishVolume must be called",
    "killed after/NodePublishVolume": "must be staged before publishing",
}

# In a cluster its restart forgets what was attached, staged or published since its file was written last.
FORGOTTEN = (
    "ControllerPublishVolume must be called",
    "must be staged before publishing",
    "the volume is still mounted",
)
KILLED = "cluster/driver killed"
ALWAYS = {f"{KILLED} after ControllerPublishVolume"} | {
    f"{KILLED} {when} {call}"
    for when in ("during", "after")
    for call in ("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeExpandVolume")
}
# Where the last pod is still being unmounted, or the next one is faster than the detach, or its attachment is
# answered by the process that is killed a moment later.
BY_CHANCE = {
    f"{KILLED} {when} {call}"
    for when in ("during", "after")
    for call in ("CreateSnapshot", "ControllerExpandVolume", "NodeUnstageVolume", "DeleteSnapshot")
} | {f"{KILLED} after ControllerUnpublishVolume"}


@pytest.mark.peer("hostpathplugin")
async def test_upstreams_example_driver_is_explained_case_by_case() -> None:
    run = await run_cases(external_driver.from_command(f"{peers.path('hostpathplugin')} {HOSTPATH}"))
    # A kill while its state file is written leaves half of one, on which it does not start: by chance.
    half = {name for name, said in failed_reasons(run).items() if "the driver does not restart" in said}
    assert all(name.startswith("killed during/") for name in half)
    # Where others mount all the time, it gives up reading the mount table: this machine, not this driver.
    busy = {
        name for name, said in failed_reasons(run).items() if "consistent content of /proc/mounts" in said
    }
    found = {name: said for name, said in failed_reasons(run).items() if name not in half | busy}
    assert found.keys() <= EXPLAINED.keys(), found
    # Those that do not depend on the moment of a kill are found in each run.
    assert {"list/volumes", "delete/in use", "killed after/NodeStageVolume"} <= found.keys() | busy
    for name, reason in found.items():
        assert EXPLAINED[name] in reason, name
    page = (ROOT / "docs" / "test-your-driver.md").read_text()
    assert [name for name in EXPLAINED if f"`{name}`" not in page] == []


@pytest.mark.peer("hostpathplugin")
async def test_upstreams_example_driver_in_a_cluster_is_explained() -> None:
    brought = external_driver.from_command(f"{peers.path('hostpathplugin')} {HOSTPATH}")
    run = await run_cases(brought, cases=[*PARTS["one process"], *PARTS["processes"]])
    excused = ("consistent content of /proc", "does not start again")  # as above
    found = {
        name: said
        for name, said in failed_reasons(run).items()
        if not any(words in said for words in excused)
    }
    assert found.keys() <= ALWAYS | BY_CHANCE, found
    assert failed_reasons(run).keys() >= ALWAYS
    for name, reason in found.items():
        assert any(words in reason for words in FORGOTTEN), (name, reason)


@pytest.mark.peer("hostpathplugin")
async def test_upstreams_example_driver_has_volumes_that_live_with_a_pod(tmp_path: Path) -> None:
    """Where its CSIDriver says so, as upstream's own deployment does."""
    modes = {"volumeLifecycleModes": ["Persistent", "Ephemeral"], "podInfoOnMount": True}
    about = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "spec": modes}
    documents = [
        {"command": f"{peers.path('hostpathplugin')} {HOSTPATH}"},
        {**about, "metadata": {"name": "hostpath.csi.k8s.io"}},
    ]
    (tmp_path / "driver.yaml").write_text(yaml.safe_dump_all(documents))
    run = await run_cases(
        external_driver.read_driver_file(tmp_path / "driver.yaml"),
        cases=runner.select_cases(ALL_CASES, "^cluster/inline$", ""),
    )
    assert {result.name: result.verdict for result in run.results} == {"cluster/inline": CaseVerdict.PASSED}


@pytest.mark.peer("hostpathplugin")
async def test_a_driver_with_an_instance_on_every_node_takes_snapshots(tmp_path: Path) -> None:
    flags = HOSTPATH.replace("--enable-attach=true", "--enable-attach=false")
    described = {"command": f"{peers.path('hostpathplugin')} {flags}", "deployment": "per-node"}
    (tmp_path / "driver.yaml").write_text(yaml.safe_dump(described))
    run = await run_cases(
        external_driver.read_driver_file(tmp_path / "driver.yaml"),
        cases=runner.select_cases(ALL_CASES, "^cluster/snapshot and restore$", ""),
    )
    assert [(r.verdict, r.reason) for r in run.results] == [(CaseVerdict.PASSED, "")]
