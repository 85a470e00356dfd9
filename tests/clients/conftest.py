"""One `volplane up` per file; one namespace and one home directory for each kubectl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubectl import Kubectl, Program, programs
from tests.support.up import Up


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=2)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


@pytest.fixture(scope="module", params=programs() or [None], ids=str)
def kubectl(request: pytest.FixtureRequest, up: Up, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    program: Program | None = request.param
    if program is None:
        pytest.skip("no kubectl here and none to be had")
    home: Path = tmp_path_factory.mktemp(f"home-{program}")
    asked = Kubectl(program, up.kubeconfig, home, f"with-1-{program.minor}")
    assert asked("create", "namespace", asked.namespace) == f"namespace/{asked.namespace} created\n"
    return asked
