"""A driver that needs an API server to start: it has one, with its Node and its objects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import reads_its_node, sample_driver
from volplane.api.core import ConfigMap, Node
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.cluster import external_driver
from volplane.cluster.apply import parse_object
from volplane.cluster.external_driver.model import ExternalDriver
from volplane.host.mounts import read_table
from volplane.testing import driver_run, runner
from volplane.testing.bare_api_server import BareApiServer
from volplane.testing.cases import ALL_CASES
from volplane.testing.driver_process import SECRETS, DriverStartError
from volplane.testing.given_volumes import GivenVolumes
from volplane.testing.runner import CaseSettings, CaseVerdict
from volplane.testing.socket_env import SocketEnv

pytestmark = pytest.mark.root


async def run_cases(focus: str, place: Path) -> dict[str, CaseVerdict]:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(reads_its_node.command_line()),
        runner.select_cases(ALL_CASES, focus, ""),
        CaseSettings(seed=1),
        lambda result: None,
        directory=place / "s",
        given_volumes=GivenVolumes(inline=True),
    )
    return {result.name: result.verdict for result in run.results}


@pytest.mark.slow
async def test_a_driver_that_asks_for_an_api_server_has_one_as_in_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    before = os.listdir(os.path.dirname(SECRETS))
    names = ["publish/data", "killed after/NodePublishVolume", "leaks/mounts", "cluster/inline"]
    verdicts = await run_cases(f"^({'|'.join(names)})$", tmp_path)
    assert verdicts
    assert set(verdicts.values()) == {CaseVerdict.PASSED}
    assert os.listdir(os.path.dirname(SECRETS)) == before
    assert read_table().under(str(tmp_path)) == []


@pytest.mark.slow
async def test_flags_that_a_driver_changes_in_its_own_namespace_are_seen(tmp_path: Path) -> None:
    run = await driver_run.run_driver_tests(
        external_driver.from_command(sample_driver.command_line("remounts-the-target")),
        runner.select_cases(ALL_CASES, "^publish/(read-only|mount flags)", ""),
        CaseSettings(seed=1),
        lambda result: None,
        directory=tmp_path / "s",
        secrets={"key": "open sesame"},
        api_server=True,
    )
    assert {r.name: r.verdict for r in run.results} == {
        "publish/mount flags": CaseVerdict.PASSED,
        "publish/read-only": CaseVerdict.PASSED,
        "publish/read-only beside writable": CaseVerdict.PASSED,
    }


async def test_a_driver_that_ends_for_another_reason_is_not_started_again(tmp_path: Path) -> None:
    driver = external_driver.from_command("sh -c 'echo started >> $SHARED_DIR/starts; exit 3'")
    with pytest.raises(DriverStartError, match="ended with code 3"):
        async with SocketEnv(driver, tmp_path / "s", nodes=1):
            pass
    assert (tmp_path / "s" / "shared" / "starts").read_text() == "started\n"


async def test_the_server_has_the_nodes_and_the_objects_of_the_driver(tmp_path: Path) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "kube-system"}}
    external = ExternalDriver(objects=(parse_object({**config, "data": {"a": "b"}}),))
    async with BareApiServer(external, tmp_path / "api", ["node-1", "node-2"]) as server:
        transport = kubeconfig.load(server.environment["KUBECONFIG"], agent="test")
        try:
            client = Client(transport)
            assert {node.name for node in await client.list(Node)} == {"node-1", "node-2"}
            assert (await client.get(ConfigMap, "c", "kube-system")).data == {"a": "b"}
        finally:
            await transport.close()
