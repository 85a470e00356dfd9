"""A driver of AWS finds an instance outside of a cluster: metadata, a disk service, and its disks in /dev."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.sample_driver import ROOT
from volplane.cluster.external_driver import Command, ExternalDriver
from volplane.host import devices
from volplane.host.mounts import read_table
from volplane.testing import driver_run, runner
from volplane.testing.bare_instances import BareInstances
from volplane.testing.cases import ALL_CASES
from volplane.testing.runner import CaseSettings, CaseVerdict

pytestmark = pytest.mark.root

CASES = ("attach/moves", "block/data", "power/node starts again", "killed after/NodeStageVolume")


@pytest.fixture(autouse=True)
def _without_an_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the disks
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


def ebs(mode: str, *flags: str) -> Command:
    words = ("driver", mode, "--driver=ebs", "--endpoint=${CSI_ENDPOINT}", *flags)
    return Command((sys.executable, "-m", "volplane", *words), {"PYTHONPATH": str(ROOT / "src")}, str(ROOT))


@pytest.mark.slow
async def test_a_driver_that_asks_for_an_instance_has_one(tmp_path: Path) -> None:
    """Our own driver without an account, an instance or a zone in its command."""
    node = ebs("node", "--target-root=${STATE_DIR}/../..")
    run = await driver_run.run_driver_tests(
        ExternalDriver(controller=ebs("controller"), node=node),
        runner.select_cases(ALL_CASES, f"^({'|'.join(CASES)})$", ""),
        CaseSettings(seed=1),
        lambda result: None,
        directory=tmp_path / "s",
    )
    assert {one.name: (one.verdict, one.reason) for one in run.results} == dict.fromkeys(
        CASES, (CaseVerdict.PASSED, "")
    )
    assert read_table().under(str(tmp_path)) == []
    assert devices.loops_below(str(tmp_path)) == {}
    assert os.listdir(tmp_path) == []


async def test_each_instance_has_its_own_metadata_and_devices(tmp_path: Path) -> None:
    async with BareInstances(tmp_path / "ec2", ["node-1", "node-2"]) as instances:
        one, other = (instances.environment(name) for name in ("node-1", "node-2"))
        assert one["AWS_ENDPOINT_URL"] == other["AWS_ENDPOINT_URL"]
        metadata = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
        assert one[metadata] != other[metadata]
        places = [instances.binds(name)["/dev"] for name in ("node-1", "node-2")]
        assert len({*places}) == 2
        assert all("null" in os.listdir(place) for place in places)
    assert os.listdir(tmp_path) == []


async def test_an_account_of_the_caller_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "test")
    async with BareInstances(tmp_path / "ec2", ["node-1"]) as instances:
        found = instances.environment("node-1")
    assert found["AWS_PROFILE"] == "test"
    assert {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"} & found.keys() == set()
