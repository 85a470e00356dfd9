"""`volplane ui` for any cluster: with a kubeconfig, and with no more rights than its user has."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.controllers import objects
from tests.dashboard.test_page_server import allow
from tests.dashboard.viewer import claim_and_pod, issue_link
from tests.support import peers
from tests.support.https_apiserver import https_apiserver
from tests.support.kube_apiserver import kube_apiserver
from tests.support.up import Up
from volplane import web

PATIENCE = 120.0


@asynccontextmanager
async def running_ui(*words: str) -> AsyncIterator[str]:
    """The page of `volplane ui`: its address. It ends well when it is stopped."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "volplane", "ui", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": ""},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            line = (await process.stdout.readline()).decode().strip()
            assert line.startswith("http://127.0.0.1:"), line + (await process.stderr.read()).decode()
            yield line
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def read(link: str, *paths: str) -> list[str]:
    """The pages at these paths."""
    address = urlsplit(link)
    http = web.HttpClient(f"http://{address.netloc}")
    try:
        opened = await http.request("GET", f"{address.path}?{address.query}")
        headers = {"Cookie": opened.headers.get("Set-Cookie").partition(";")[0]}
        prefix = opened.headers.get("Location").removesuffix("/cluster")
        answers = [await http.request("GET", prefix + path, headers=headers) for path in paths]
        assert [answer.status for answer in answers] == [200] * len(paths)
        return [answer.body.decode() for answer in answers]
    finally:
        await http.close()


async def test_a_cluster_is_shown_with_the_rights_of_the_kubeconfigs_user(tmp_path: Path) -> None:
    async with https_apiserver() as api:
        await api.client.create(objects.node("worker-1"))
        await api.client.create(objects.claim("data", "5Gi", "gone"))
        await api.client.create(objects.claim("other", "5Gi", "gone"))
        file = tmp_path / "viewer.kubeconfig"
        api.server.write_kubeconfig(file, "viewer")
        await allow(api.client, "viewer", "nodes", "persistentvolumeclaims", "storageclasses")
        async with running_ui("--kubeconfig", str(file)) as link:
            cluster, waiting, journey, states = await read(
                link, "/cluster", "/waiting", "/journey/pvc/default/data", "/desired-and-actual"
            )
        assert "worker-1" in cluster
        assert "data" in cluster
        assert "pods is forbidden" in cluster
        assert "volumes and storage classes may not be read" in waiting
        assert "persistentvolumes is forbidden" in waiting
        assert "create pvc/default/data" in journey
        assert "calls to the driver" in journey
        assert "may be read" in states


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with https_apiserver() as api, running_ui("--kubeconfig", api.kubeconfig) as link:
        port = str(urlsplit(link).port)
        words = ("ui", "--kubeconfig", api.kubeconfig, "--port", port)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "volplane", *words),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "KUBECONFIG": ""},
        )
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert errors.decode() == (
            f"volplane: port {port} on 127.0.0.1 is in use by another program; choose another with --port\n"
        )


@pytest.mark.slow
async def test_a_real_kube_apiserver_is_shown(tmp_path: Path) -> None:
    peers.require("kube-apiserver")
    peers.require("etcd")
    with kube_apiserver(tmp_path) as api:
        claim = {
            "metadata": {"name": "data"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "gone",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        api.request("/api/v1/namespaces/default/persistentvolumeclaims", claim)
        async with running_ui("--kubeconfig", api.config("admin")) as link:
            cluster, waiting, journey = await read(link, "/cluster", "/waiting", "/journey/pvc/default/data")
        assert "data" in cluster
        assert "storageclass.storage.k8s.io &quot;gone&quot; not found" in waiting
        assert "create pvc/default/data" in journey


@pytest.mark.root
@pytest.mark.peer("kubectl")
async def test_roles_in_processes_of_their_own_report_record_and_log_to_the_page() -> None:
    up = await asyncio.to_thread(Up("--separate", "--journey-max-size", "64Mi", nodes=1).start)
    try:
        await asyncio.to_thread(up.apply, claim_and_pod("data"))
        await asyncio.to_thread(up.wait_running, "data-pod", 60)
        link = await asyncio.to_thread(issue_link, up)
        cluster, journey, states = await read(
            link, "/cluster", "/journey/pvc/default/data?level=calls", "/desired-and-actual"
        )
        assert "mounted" in cluster
        assert "in-use" in cluster  # the disk service has reported
        for step in (
            "CreateVolume",
            "ControllerPublishVolume",
            "NodeStageVolume",
            "StartContainer",
            "create pvc",
        ):
            assert step in journey
        assert "Attach/detach controller" in states
        assert "agree" in states
        link = await asyncio.to_thread(issue_link, up)
        found = re.search(r'id="step-([0-9a-f]{16})"[^>]*>(?:(?!</li>).)*ControllerPublishVolume va', journey)
        assert found is not None
        (details,) = await read(link, f"/journey/pvc/default/data?level=calls&step={found[1]}")
        assert "publish_context" in details
        assert "<h4>Log</h4>" in details  # from the files of the roles
    finally:
        await asyncio.to_thread(up.remove)
