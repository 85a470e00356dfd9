"""Whole drivers on the bench: our own and the small correct one pass everything, upstream's is explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.support import blocks, peers
from volplane.api.storage import CSIDriver
from volplane.cloud import Instance, serving
from volplane.cloud import Settings as CloudSettings
from volplane.cluster import guest
from volplane.cluster.apply import objects
from volplane.cluster.guest import Command, Guest
from volplane.host import Host
from volplane.store.memory import MemoryStore
from volplane.testing import runner, session
from volplane.testing.case import Case
from volplane.testing.cases import ALL, BARE
from volplane.testing.report import Run
from volplane.testing.runner import Settings, Verdict

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SEED = 5
HOSTPATH = (
    "--drivername=hostpath.csi.k8s.io --endpoint=$CSI_ENDPOINT --nodeid=$NODE_ID --statedir=$STATE_DIR"
    " --enable-attach=true"
)
# What upstream's example driver does not do, and why; docs/test-your-driver.md explains each.
EXPLAINED = {
    "list/volumes": "not once",
    "delete/in use": "OK, demanded is FAILED_PRECONDITION",
    "snapshot/two of one volume": "",
    "list/condition": "a condition has words",
    "get/condition": "a condition has words",
    "stats/condition": "The volume isn't mounted",
    "capacity/largest volume": "UNKNOWN (failed to create volume",
    "provision/topology of nobody": "OK, demanded is RESOURCE_EXHAUSTED",
    "killed during/NodeStageVolume": "ControllerPublishVolume must be called",
    "killed during/NodePublishVolume": "must be staged before publishing",
    "killed after/NodeStageVolume": "ControllerPublishVolume must be called",
    "killed after/NodePublishVolume": "must be staged before publishing",
}


# What is the same code for all drivers of the SDK, and most of the time of a run, is left to the correct one.
SHARED = "^killed after/|^given up/"


def ours(mode: str, driver: str, *, root: str = "${STATE_DIR}", **env: str) -> Command:
    more = ["--shared-dir=${SHARED_DIR}"] if driver == "efs" else []
    if mode == "node":
        more += ["--instance-id=i-${NODE_ID}"]
        more += ["--zone=us-east-1a", f"--root-dir={root}"] if driver == "ebs" else []
    argv = [
        sys.executable,
        "-m",
        "volplane",
        "driver",
        mode,
        f"--driver={driver}",
        "--endpoint=${CSI_ENDPOINT}",
    ]
    return Command((*argv, *more), {"PYTHONPATH": f"{ROOT / 'src'}", **env}, str(ROOT))


def shared_directories() -> Guest:
    return Guest(controller=ours("controller", "efs"), node=ours("node", "efs"))


@asynccontextmanager
async def disks(place: Path, directory: Path, *, world: str = "") -> AsyncIterator[Guest]:
    """Our driver of disks, with a disk service for the bench's nodes or for those of a cluster."""
    host, zone = Host(), "us-east-1a"
    names = {f"node-{i}": directory / f"node-{i}/state/dev" for i in (1, 2)}
    if world:
        names |= {f"worker-{i}": directory / world / f"c/n/{i}/dev" for i in (1, 2)}
    settings = CloudSettings(
        data_dir=str(place),
        access_key="key",
        secret_key="secret",
        instances=tuple(Instance(f"i-{name}", zone, str(dev)) for name, dev in names.items()),
    )
    async with serving(settings, host, MemoryStore()) as address:
        keys = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        # In a container of the cluster the node's directory is where a kubelet's is.
        root = "/var/lib/kubelet" if world else "${STATE_DIR}"
        own = next(obj for obj in objects("ebs.yaml") if isinstance(obj, CSIDriver))
        yield Guest(
            controller=ours("controller", "ebs", **keys),
            node=ours("node", "ebs", root=root, **keys),
            driver=own,
        )
    await host.close()


async def driven(
    brought: Guest, directory: Path | None = None, *, skip: str = "", cases: Iterable[Case] = BARE
) -> Run:
    chosen = runner.chosen(cases, "", skip)
    return await session.drive(
        brought, chosen, Settings(seed=SEED, timeout=180.0), lambda result: None, directory=directory
    )


def wrong(run: Run) -> dict[str, str]:
    return {result.name: result.reason for result in run.failed}


def passed(run: Run) -> list[str]:
    return [result.name for result in run.results if result.verdict is Verdict.PASSED]


async def test_our_driver_of_shared_directories_passes() -> None:
    run = await driven(shared_directories(), skip=SHARED)
    assert wrong(run) == {}
    assert len(passed(run)) >= 45
    assert {"provision/ReadWriteMany filesystem", "share/two nodes write"} <= {*passed(run)}


async def test_our_driver_of_disks_passes(tmp_path: Path) -> None:
    async with disks(tmp_path / "cloud", tmp_path / "b") as brought:
        run = await driven(brought, tmp_path / "b", skip=SHARED)
    assert wrong(run) == {}
    assert len(passed(run)) >= 85


async def test_our_driver_of_shared_directories_passes_in_a_cluster() -> None:
    # The roles are killed around the driver of disks, and around the correct one.
    run = await driven(
        shared_directories(), cases=[c for c in ALL if c.whole and not c.apart], skip="killed during"
    )
    assert wrong(run) == {}
    assert {"cluster/moves to another node", "cluster/pods of two nodes"} <= {*passed(run)}


@pytest.mark.parametrize("apart", [False, True], ids=["one process", "processes"])
async def test_our_driver_of_disks_passes_in_a_cluster(tmp_path: Path, apart: bool) -> None:
    world, cases = "a" if apart else "w", [c for c in ALL if c.whole and c.apart is apart]
    async with disks(tmp_path / "cloud", tmp_path / "b", world=world) as brought:
        # The correct driver runs everything, by the command.
        run = await driven(brought, tmp_path / "b", cases=cases, skip="killed after")
    assert wrong(run) == {}
    assert not apart or "cluster/node killed at NodePublishVolume" in passed(run)
    skipped = [r.name for r in run.results if r.verdict is Verdict.SKIPPED]
    assert skipped == ([] if apart else ["cluster/pods of two nodes"])  # a disk is at one


@pytest.mark.peer("hostpathplugin")
async def test_upstreams_example_driver_is_explained_case_by_case() -> None:
    run = await driven(guest.from_command(f"{peers.path('hostpathplugin')} {HOSTPATH}"))
    # A kill while its state file is written leaves half of one, on which it does not start: by chance.
    half = {name for name, said in wrong(run).items() if "does not start again" in said}
    assert all(name.startswith("killed during/") for name in half)
    # Where others mount all the time, it gives up reading the mount table: this machine, not this driver.
    busy = {name for name, said in wrong(run).items() if "consistent content of /proc/mounts" in said}
    found = {name: said for name, said in wrong(run).items() if name not in half | busy}
    assert found.keys() <= EXPLAINED.keys(), found
    # Those that do not depend on the moment of a kill are found in each run.
    assert {"list/volumes", "delete/in use", "killed after/NodeStageVolume"} <= found.keys() | busy
    for name, reason in found.items():
        assert EXPLAINED[name] in reason, name
    page = (ROOT / "docs" / "test-your-driver.md").read_text()
    assert [name for name in EXPLAINED if f"`{name}`" not in page] == []


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
    run = await driven(guest.read(tmp_path / "driver.yaml"), cases=runner.chosen(ALL, "^cluster/inline$", ""))
    assert {result.name: result.verdict for result in run.results} == {"cluster/inline": Verdict.PASSED}


def test_a_correct_driver_passes_everything_by_the_command(tmp_path: Path) -> None:
    """Cluster included: the whole of what the verb does, as a user runs it."""
    files = {kind: tmp_path / f"r.{kind}" for kind in ("junit", "json", "html")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "volplane", "test-driver", "--driver-command", blocks.line()),
            *(
                "--secret",
                "key=sesame",
                "--mutable-parameter",
                "iops=3000",
                "--seed",
                str(SEED),
                "--timeout",
                "180",
                "--skip",
                "^sanity/",
            ),
            *(word for kind, file in files.items() for word in (f"--{kind}", str(file))),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    told = json.loads(files["json"].read_text())
    assert told["driver"] == "blocks.example.com"
    assert told["failed"] == 0
    assert len(told["cases"]) == len(runner.chosen(ALL, "", "^sanity/"))
    ran = {case["name"] for case in told["cases"] if case["verdict"] == "passed"}
    assert {"twice/CreateVolume", "killed during/NodeStageVolume", "cluster/snapshot and restore"} <= ran
    suite = ElementTree.parse(files["junit"]).getroot()[0]
    assert suite.get("failures") == "0"
    assert "blocks.example.com" in files["html"].read_text()
    assert "sesame" not in files["json"].read_text() + files["html"].read_text()
