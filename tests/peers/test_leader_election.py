"""One of several replicas acts: ours beside upstream's, and while the leader is paused.

The peer is the leader election library of all upstream sidecars, in a program that does nothing else. It is
told the same lock as each sidecar tells it (`lockName` in upstream's `main.go`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import running, until
from tests.support import peers, scripted
from tests.support.role_processes import Server, server
from volplane import apiserver, sdk
from volplane.api.apps import ReplicaSet
from volplane.api.codec import convert
from volplane.api.coordination import Lease
from volplane.api.core import Node, Pod, ServiceAccount
from volplane.apiserver.server import RunningApiServer
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.sidecars import provisioner
from volplane.sidecars.attacher import service as attacher
from volplane.sidecars.resizer import service as resizer
from volplane.sidecars.snapshotter import service as snapshotter
from volplane.store.memory import MemoryStore

PATIENCE = 60.0
NAMESPACE = "kube-system"
DRIVER = "disks.example.com"
ELECTED: dict[str, Any] = {
    "leader_election": True,
    "leader_election_lease_duration": 6.0,
    "leader_election_renew_deadline": 5.0,
    "leader_election_retry_period": 1.0,
}
QUICK = (
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=5s",
    "--leader-elect-retry-period=1s",
)


class Elector:
    """A process that holds a lock as upstream's sidecars do, or waits for it."""

    def __init__(self, kubeconfig: str, lock: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            argv = [peers.path("csi-elector"), kubeconfig, NAMESPACE, lock, "upstream"]
            self.process = subprocess.Popen(argv, stdout=output, stderr=output)

    async def leads(self) -> bool:
        return "leading" in self._log.read_text()


@contextmanager
def elector(on: Server, lock: str) -> Iterator[Elector]:
    made = Elector(on.kubeconfig, lock, on.directory / "elector.log")
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


async def find_holders(client: Client) -> dict[str, str]:
    """The holder of each Lease of the namespace."""
    return {lease.name: lease.spec.holder_identity or "" for lease in await client.list(Lease, NAMESPACE)}


SIDECARS: dict[str, tuple[Any, Any]] = {
    "external-attacher-leader-{}": (attacher.run, attacher.AttacherOptions),
    "{}": (provisioner.run, provisioner.ProvisionerOptions),
    "external-resizer-{}": (resizer.run, resizer.ResizerOptions),
    "external-snapshotter-leader-{}": (snapshotter.run, snapshotter.SnapshotterOptions),
}


@pytest.mark.peer("csi-elector")
@pytest.mark.parametrize("lock", SIDECARS)
async def test_a_sidecar_and_upstreams_hold_the_same_lease(lock: str, tmp_path: Path) -> None:
    run, options = SIDECARS[lock]
    caller = sdk.Local(scripted.driver("attach", "expand", "snapshots", name=DRIVER), component="csi")
    async with server(tmp_path) as on:
        ours: Any = run(on.client, options(**ELECTED), caller=caller, identity="ours", namespace=NAMESPACE)
        async with running(ours):
            await until(lambda: _is_held_by(on, "ours"), PATIENCE)
            with elector(on, lock.format(DRIVER)) as upstream:
                await asyncio.sleep(2)
                assert not await upstream.leads()
                assert list((await find_holders(on.client)).values()) == ["ours"]
        with elector(on, lock.format(DRIVER)) as upstream:
            await until(upstream.leads, PATIENCE)
            assert list((await find_holders(on.client)).values()) == ["upstream"]
    await caller.close()


async def _is_held_by(on: Server, who: str) -> bool:
    return list((await find_holders(on.client)).values()) == [who]


@pytest.mark.peer("csi-elector")
async def test_upstreams_leader_is_paused_and_ours_takes_over_for_good(tmp_path: Path) -> None:
    async with server(tmp_path) as on:
        with elector(on, "kube-controller-manager") as upstream:
            await until(upstream.leads, PATIENCE)
            async with on.role("controller-manager", *QUICK):
                await make_set(on.client, "first")
                await asyncio.sleep(2)
                assert await on.client.list(Pod) == []
                upstream.process.send_signal(signal.SIGSTOP)
                await until(lambda: has_pods(on.client, 1), PATIENCE)
                upstream.process.send_signal(signal.SIGCONT)
                assert await asyncio.to_thread(upstream.process.wait, PATIENCE) != 0  # it has lost its Lease
                await make_set(on.client, "second")
                await until(lambda: has_pods(on.client, 2), PATIENCE)


async def make_set(client: Client, name: str) -> None:
    """A ReplicaSet, for which the leader makes a pod."""
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}], "serviceAccountName": "default"},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    await client.create(convert(ReplicaSet, body))


async def has_pods(client: Client, count: int) -> bool:
    return len(await client.list(Pod)) == count


# --- two of ours


class AuditedServer:
    """An API server that logs who has changed what."""

    def __init__(self, directory: Path, running: RunningApiServer, client: Client) -> None:
        self.directory, self.running, self.client = directory, running, client

    def start_role(self, user: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of our roles as this user."""
        login = self.running.write_kubeconfig(
            self.directory / f"{user}.kubeconfig", user, ("system:masters",)
        )
        command = [sys.executable, "-m", "volplane", *arguments, "--kubeconfig", str(login)]
        with self.log(user).open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def log(self, user: str) -> Path:
        return self.directory / f"{user}.log"

    def list_writers(self) -> list[str]:
        """The users of all writes in their order, but for those of Leases."""
        text = (self.directory / "audit.log").read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may not be complete
        calls = sorted(map(json.loads, lines), key=lambda call: call["requestReceivedTimestamp"])
        return [
            call["user"]["username"]
            for call in calls
            if call["verb"] in ("create", "update", "patch", "delete")
            and call["objectRef"]["resource"] != "leases"
        ]


@asynccontextmanager
async def audited_server(directory: Path) -> AsyncIterator[AuditedServer]:
    store = MemoryStore()
    options = apiserver.ApiServerOptions(data_dir=str(directory), audit_log_path=str(directory / "audit.log"))
    made = await apiserver.run(options, store)
    transport = kubeconfig.load(made.kubeconfig)
    try:
        yield AuditedServer(directory, made, Client(transport))
    finally:
        await transport.close()
        await made.close(0)
        await store.close()


@pytest.mark.parametrize("role", ["controller-manager", "scheduler"])
async def test_a_leader_that_was_paused_changes_nothing_when_it_goes_on(role: str, tmp_path: Path) -> None:
    async with audited_server(tmp_path) as on:
        await prepare_scheduling(on.client)
        one = on.start_role("one", role, *QUICK)
        replicas = [one]
        try:
            await give_work(on.client, "first")
            await until(lambda: _has_written(on, "one"), PATIENCE)
            replicas.append(on.start_role("two", role, *QUICK))
            await asyncio.sleep(2)
            one.send_signal(signal.SIGSTOP)
            await give_work(on.client, "second")
            await until(lambda: _has_written(on, "two"), PATIENCE)
            for number in range(20):  # all of this waits in the connections of the paused process
                await give_work(on.client, f"more-{number}")
            one.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(one.wait, PATIENCE) != 0
            log = on.log("one").read_text()
            assert "lost" in log
            assert "Traceback" not in log
            writers = [user for user in on.list_writers() if user in ("one", "two")]
            assert "one" not in writers[writers.index("two") :]
        finally:
            for process in replicas:
                process.kill()
                process.wait()


async def prepare_scheduling(client: Client) -> None:
    """A node for pods, and the account that they have."""
    room = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    await client.create(convert(Node, {"metadata": {"name": "n1"}}))
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": room, "allocatable": room, "conditions": ready}
    await client.patch(Node, "n1", merge={"status": status}, subresource="status")
    await client.patch(Node, "n1", merge={"spec": {"taints": None}})
    account = {"metadata": {"name": "default", "namespace": "default"}}
    await client.create(convert(ServiceAccount, account))


async def give_work(client: Client, name: str) -> None:
    """A ReplicaSet that needs a pod, and a pod that needs a node."""
    await make_set(client, name)
    pod = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    await client.create(convert(Pod, pod))


async def _has_written(on: AuditedServer, user: str) -> bool:
    return user in on.list_writers()
