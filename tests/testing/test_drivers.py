"""Whole drivers on the bench and in clusters: our own and the small correct one pass everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support import sample_driver
from tests.support.driver_cases import PARTS, SEED, failed_reasons, passed_cases, run_cases
from volplane.api.storage import CSIDriver
from volplane.cloud import CloudInstance, serve_endpoint
from volplane.cloud import CloudOptions as CloudSettings
from volplane.cluster.apply import load_manifest
from volplane.cluster.external_driver import Command, ExternalDriver
from volplane.host import Host
from volplane.store.memory import MemoryStore
from volplane.testing import runner
from volplane.testing.cases import ALL_CASES, SANITY
from volplane.testing.report import DriverTestRun
from volplane.testing.runner import CaseVerdict

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
# What our drivers do not promise, and what of it a case finds out only when it asks.
MODES = ("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany", "ReadOnlyMany")
SECRETS, MUTABLE = {"key": "open sesame"}, {"throughput": "250"}
EFS_LACKS = frozenset(
    [
        "attach",
        "block",
        "clone",
        "expand-node",
        "group-snapshot",
        "inline",
        "list-snapshots",
        "metadata",
        "modify",
        "modify-parameters",
        "mount-group",
        "published-nodes",
        "snapshot",
        "stage",
        "topology",
    ]
)
EFS_REFUSES = frozenset(
    {f"provision/{mode} block" for mode in MODES}
    | {"provision/block capacity", "block/data", "expand/block", "stats/device"}
    | {"publish/mount flags", "stage/file system type", "power/lost while in use"}
    | {f"share/two nodes {what}" for what in ("write to a device", "read")}
)
EBS_LACKS = frozenset({"attach-readonly", "metadata", "mount-group", "shared"})
EBS_REFUSES = frozenset(
    {f"provision/{mode} {kind}" for mode in MODES[2:] for kind in ("filesystem", "block")}
    | {f"share/two nodes {what}" for what in ("write", "write to a device", "read")}
    | {"leaks/space"}  # its disks are those of the disk service
)


def ours(mode: str, driver: str, *, root: str = "${STATE_DIR}", **env: str) -> Command:
    more = ["--shared-dir=${SHARED_DIR}"] if driver == "efs" else []
    if mode == "node":
        # On the bench there is no kubelet's directory: volumes are somewhere beside the driver's state.
        more += ["--instance-id=i-${NODE_ID}", "--target-root=${STATE_DIR}/../.."]
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


def shared_directories() -> ExternalDriver:
    return ExternalDriver(controller=ours("controller", "efs"), node=ours("node", "efs"))


@asynccontextmanager
async def disks(place: Path, directory: Path, *, world: str = "") -> AsyncIterator[ExternalDriver]:
    """Our driver of disks, with a disk service for the bench's nodes or for those of a cluster."""
    host, zone = Host(), "us-east-1a"
    names = {f"node-{i}": directory / f"node-{i}/state/dev" for i in (1, 2)}
    if world:
        names |= {f"worker-{i}": directory / world / f"c/n/{i}/dev" for i in (1, 2)}
    settings = CloudSettings(
        data_dir=str(place),
        access_key="key",
        secret_key="secret",
        instances=tuple(CloudInstance(f"i-{name}", zone, str(dev)) for name, dev in names.items()),
    )
    async with serve_endpoint(settings, host, MemoryStore()) as address:
        keys = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        # In a container of the cluster the node's directory is where a kubelet's is.
        root = "/var/lib/kubelet" if world else "${STATE_DIR}"
        own = next(obj for obj in load_manifest("ebs.yaml") if isinstance(obj, CSIDriver))
        yield ExternalDriver(
            controller=ours("controller", "ebs", **keys),
            node=ours("node", "ebs", root=root, **keys),
            driver=own,
        )
    await host.close()


def check(run: DriverTestRun, part: str, lacks: Set[str], refuses: Set[str]) -> None:
    """Every case of the part has passed, but for those that need what the driver does not promise."""
    assert failed_reasons(run) == {}
    beyond = {case.name for case in PARTS[part] if lacks & set(case.needs) or case.name in refuses}
    skipped = {result.name: result.reason for result in run.results if result.verdict is CaseVerdict.SKIPPED}
    assert skipped.keys() == beyond, skipped
    assert {*passed_cases(run)} == {case.name for case in PARTS[part]} - beyond


def test_every_case_is_in_one_of_the_parts() -> None:
    named = sorted(case.name for part in PARTS.values() for case in part)
    assert named == sorted(case.name for case in ALL_CASES if case is not SANITY)


async def test_our_driver_of_shared_directories_passes() -> None:
    check(await run_cases(shared_directories(), secrets=SECRETS), "bare", EFS_LACKS, EFS_REFUSES)


async def test_our_driver_of_disks_passes(tmp_path: Path) -> None:
    async with disks(tmp_path / "cloud", tmp_path / "b") as brought:
        run = await run_cases(brought, tmp_path / "b", secrets=SECRETS, mutable=MUTABLE)
    check(run, "bare", EBS_LACKS, EBS_REFUSES)


@pytest.mark.parametrize("part", ["one process", "processes"])
async def test_our_driver_of_shared_directories_passes_in_a_cluster(part: str) -> None:
    run = await run_cases(shared_directories(), cases=PARTS[part], secrets=SECRETS)
    check(run, part, EFS_LACKS, EFS_REFUSES)


@pytest.mark.parametrize("part", ["one process", "processes"])
async def test_our_driver_of_disks_passes_in_a_cluster(tmp_path: Path, part: str) -> None:
    world = "a" if part == "processes" else "w"
    async with disks(tmp_path / "cloud", tmp_path / "b", world=world) as brought:
        run = await run_cases(brought, tmp_path / "b", cases=PARTS[part], secrets=SECRETS, mutable=MUTABLE)
    check(run, part, EBS_LACKS, EBS_REFUSES)


def test_a_correct_driver_passes_everything_by_the_command(tmp_path: Path) -> None:
    """Cluster included: the whole of what the verb does, as a user runs it."""
    files = {kind: tmp_path / f"r.{kind}" for kind in ("junit", "json", "html")}
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "volplane",
                "test-driver",
                "--driver-command",
                sample_driver.command_line(),
            ),
            *(
                "--secret",
                "key=open sesame",
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
    reported = json.loads(files["json"].read_text())
    assert reported["driver"] == "blocks.example.com"
    assert reported["failed"] == 0
    assert len(reported["cases"]) == len(runner.select_cases(ALL_CASES, "", "^sanity/"))
    ran = {case["name"] for case in reported["cases"] if case["verdict"] == "passed"}
    assert {"twice/CreateVolume", "killed during/NodeStageVolume", "cluster/snapshot and restore"} <= ran
    suite = ElementTree.parse(files["junit"]).getroot()[0]
    assert suite.get("failures") == "0"
    assert "blocks.example.com" in files["html"].read_text()
    assert "sesame" not in files["json"].read_text() + files["html"].read_text()
