"""Controllers that act as upstream's service accounts, with upstream's roles and no other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import Api, served
from tests.support.workload_lifecycle import MANAGER_FLAGS, WorkloadLifecycle
from volplane.client import kubeconfig

__all__ = ["served"]

pytestmark = pytest.mark.slow

USER = "system:kube-controller-manager"


async def refusals(api: Api) -> dict[str, float]:
    """Answers 403 so far, by verb and resource."""
    lines = (await api.get("/metrics")).body.decode().splitlines()
    counted = [line.rpartition(" ") for line in lines if line.startswith("apiserver_request_total{")]
    return {labels: float(number) for labels, _, number in counted if 'code="403"' in labels}


async def test_every_controller_does_its_work_with_the_role_of_its_account(
    served: Any, tmp_path: Path
) -> None:
    async with served() as api:
        config = api.server.write_kubeconfig(tmp_path / "manager.kubeconfig", USER)
        before = await refusals(api)
        log = tmp_path / "manager.log"
        root_ca = f"--root-ca-file={api.server.authority.pair.cert_path}"
        command = [sys.executable, "-m", "volplane", "controller-manager", f"--kubeconfig={config}"]
        with log.open("wb") as output:
            process = subprocess.Popen([*command, root_ca, *MANAGER_FLAGS], stdout=output, stderr=output)  # noqa: ASYNC220
        admin = kubeconfig.load(api.server.kubeconfig)
        try:
            await WorkloadLifecycle(admin).play()
            assert process.poll() is None
        except BaseException:
            print(log.read_text()[-4000:])
            print(await refusals(api))
            raise
        finally:
            process.terminate()
            try:
                # Not in this thread: the manager's last requests are answered by the server in it.
                await asyncio.to_thread(process.wait, 60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            finally:
                await admin.close()
        assert await refusals(api) == before
        text = log.read_text()
        assert [line for line in text.splitlines() if "forbidden" in line] == []
        accounts = await api.get("/api/v1/namespaces/kube-system/serviceaccounts")
        names = {account["metadata"]["name"] for account in accounts.json["items"]}
        assert {"persistent-volume-binder", "attachdetach-controller", "generic-garbage-collector"} <= names
