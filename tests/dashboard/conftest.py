"""One cluster and one browser for all tests of a file: both take a few seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.viewer import Viewer
from tests.support import peers
from tests.support.browser import PEERS, open_browser
from tests.support.up import Up

SCREENSHOTS = "VOLPLANE_SCREENSHOTS"  # environment variable: the directory that gets them


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    grace = ("--node-monitor-grace-period", "2s")
    directory = tmp_path_factory.mktemp("c") / "demo"
    directory.mkdir(mode=0o700)
    with Up(*grace, "--journey-max-size", "64Mi", nodes=3, directory=directory) as up:
        yield up


@pytest.fixture(scope="module")
def viewer(cluster: Up) -> Iterator[Viewer]:
    """Somebody who looks at the cluster's page in the browser."""
    for peer in PEERS:
        peers.require(peer)
    with open_browser() as browser:
        yield Viewer(cluster, browser, Path(os.environ[SCREENSHOTS]) if SCREENSHOTS in os.environ else None)
