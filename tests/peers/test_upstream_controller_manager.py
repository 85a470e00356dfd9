"""Upstream's kube-controller-manager, unmodified, with all its controllers, on our API server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import served
from tests.loops.inprocess import until
from tests.support import peers

__all__ = ["served"]

pytestmark = [pytest.mark.slow, pytest.mark.peer("kube-controller-manager")]

PATIENCE = 120.0
USER = "system:kube-controller-manager"


@contextmanager
def controller_manager(log: Path, *flags: str) -> Iterator[Callable[[], str]]:
    """Its process, ended by its pid; gives what it has logged."""
    argv = [peers.path("kube-controller-manager"), "--secure-port=0", "--leader-elect=false", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield log.read_text
    finally:
        process.terminate()
        process.wait(PATIENCE)


async def test_all_its_controllers_find_every_kind_that_they_watch(served: Any, tmp_path: Path) -> None:
    async with served() as api:
        config = api.server.write_kubeconfig(tmp_path / "controllers.kubeconfig", USER)
        log = tmp_path / "controllers.log"
        flags = (f"--kubeconfig={config}", "--controllers=*", "--use-service-account-credentials")
        with controller_manager(log, *flags) as reported:
            deployment = {
                "metadata": {"name": "web"},
                "spec": {
                    "replicas": 2,
                    "selector": {"matchLabels": {"app": "web"}},
                    "template": {
                        "metadata": {"labels": {"app": "web"}},
                        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
                    },
                },
            }
            apps = "/apis/apps/v1/namespaces/default/deployments"
            assert (await api.post(apps, deployment)).status == 201

            async def pods() -> bool:
                return len((await api.get("/api/v1/namespaces/default/pods")).json["items"]) == 2

            await until(pods, PATIENCE)

            async def garbage_collector_is_synced() -> bool:
                return "Garbage collector: all resource monitors have synced" in reported()

            await until(garbage_collector_is_synced, PATIENCE)
            text = reported()
            missing = [x for x in text.splitlines() if "could not find the requested resource" in x]
            assert missing == []
            assert [x for x in text.splitlines() if "forbidden" in x] == []
            assert [x for x in text.splitlines() if "Failed to watch" in x or "failed to list" in x] == []
