"""A driver in Go, without any of our code: it passes every case that it has the capabilities for."""

from __future__ import annotations

import pytest

from tests.support import peers
from tests.support.driver_cases import failed_reasons, passed_cases, run_cases
from volplane.cluster import external_driver
from volplane.cluster.external_driver import ExternalDriver
from volplane.testing import runner
from volplane.testing.cases import ALL_CASES

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("directories-driver")]

IN_A_CLUSTER = "^cluster/(claim and pods|pods of two nodes|snapshot and restore|clone|every call lost once)$"


def driver() -> ExternalDriver:
    flags = "--endpoint=$CSI_ENDPOINT --nodeid=$NODE_ID --root=$SHARED_DIR"
    return external_driver.from_command(f"{peers.path('directories-driver')} {flags}")


async def test_the_driver_in_go_passes() -> None:
    run = await run_cases(driver(), secrets={"key": "open sesame"})
    assert failed_reasons(run) == {}
    assert {
        "unpublish/busy target",
        "snapshot/files and their attributes",
        "clone/files and their attributes",
        "stats/during unpublish",
        "secrets/not in logs and errors",
        "killed during/CreateSnapshot",
        "leaks/descriptors and threads",
    } <= {*passed_cases(run)}
    assert len(passed_cases(run)) > 110


async def test_the_driver_in_go_passes_in_a_cluster() -> None:
    cases = runner.select_cases(ALL_CASES, IN_A_CLUSTER, "")
    run = await run_cases(driver(), cases=cases, secrets={"key": "open sesame"})
    assert failed_reasons(run) == {}
    assert passed_cases(run) == [case.name for case in cases]
