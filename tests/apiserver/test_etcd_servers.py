"""API servers on one etcd: writes through one are visible through the other; uncertain writes get 504."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd import Etcd, etcd
from volplane.api.core import ConfigMap, Namespace
from volplane.api.errors import Conflict, Timeout
from volplane.api.meta import ObjectMeta
from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.store import WriteUncertain
from volplane.store.etcd import EtcdStore
from volplane.store.memory import MemoryStore

VOLPLANE = str(Path(sys.executable).parent / "volplane")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Etcd]:
    with etcd(tmp_path) as running:
        yield running


class Process:
    """A `volplane apiserver` process."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "log"
        with self.log.open("ab") as log:
            command = [VOLPLANE, "apiserver", "--data-dir", str(directory), *arguments]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    async def ready(self) -> Client:
        async with asyncio.timeout(30):
            while "serving on" not in self.log.read_text():
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.02)
        return Client(kubeconfig.load(self.directory / "kubeconfig"))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@asynccontextmanager
async def serving(directory: Path, *arguments: str) -> AsyncIterator[tuple[Process, Client]]:
    process = Process(directory, *arguments)
    try:
        client = await process.ready()
        try:
            yield process, client
        finally:
            await client.close()
    finally:
        if process.process.poll() is None:
            process.end()


def config(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


@pytest.mark.peer("etcd")
async def test_two_servers_show_one_cluster(server: Etcd, tmp_path: Path) -> None:
    where = f"--etcd-servers={server.url}"
    async with (
        serving(tmp_path / "one", where) as (_, one),
        serving(tmp_path / "two", where) as (_, two),
    ):
        page = await two.transport.list(ConfigMap, "default")
        async with two.transport.watch(ConfigMap, "default", revision=page.revision) as changes:
            made = await one.create(config("a", x="1"))
            await one.patch(ConfigMap, "a", "default", merge={"data": {"x": "2"}})
            await one.delete(ConfigMap, "a", "default")
            seen: list[tuple[str, Any]] = []
            async with asyncio.timeout(20):
                while len(seen) < 3:
                    seen += [(c.type, c.object.data) for c in await anext(changes) if c.object]
        assert seen == [("ADDED", {"x": "1"}), ("MODIFIED", {"x": "2"}), ("DELETED", {"x": "2"})]

        # The other server reads an acknowledged write at once, with the same revision.
        for n in range(20):
            made = await one.create(config(f"n{n}"))
            found = await two.get(ConfigMap, f"n{n}", "default")
            assert found.metadata.resource_version == made.metadata.resource_version
            await two.patch(ConfigMap, f"n{n}", "default", merge={"data": {"by": "two"}})
            with pytest.raises(Conflict):
                await one.update(made)
        names = [n.name for n in await one.list(Namespace)]
        assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]


@pytest.mark.peer("etcd")
async def test_another_server_takes_over_from_a_killed_one(server: Etcd, tmp_path: Path) -> None:
    where = f"--etcd-servers={server.url}"
    async with serving(tmp_path / "one", where) as (process, one):
        start = (await one.transport.list(ConfigMap, "default")).revision
        acknowledged = []

        async def write(name: int) -> None:
            for n in range(1000):
                made = await one.create(config(f"c-{name}-{n}"))
                acknowledged.append(made.name)

        writers = [asyncio.ensure_future(write(n)) for n in range(10)]
        async with asyncio.timeout(30):
            while len(acknowledged) < 200:  # noqa: ASYNC110 - the test's own waiting
                await asyncio.sleep(0.01)
        process.end(signal.SIGKILL)
        await asyncio.gather(*writers, return_exceptions=True)
    async with serving(tmp_path / "two", where) as (_, two):
        there = {c.name for c in await two.list(ConfigMap, "default")}
        assert set(acknowledged) <= there
        async with two.transport.watch(ConfigMap, "default", revision=start) as changes:
            received: list[str] = []
            async with asyncio.timeout(20):
                while len(received) < len(there):
                    received += [c.object.name for c in await anext(changes) if c.object]
        assert sorted(received) == sorted(there)


@pytest.mark.peer("etcd")
async def test_etcd_is_reached_with_certificates_under_a_prefix(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    pair, mine = authority.server("etcd", ("127.0.0.1",)), authority.client("store", "store", ())
    ca = str(authority.pair.cert_path)
    member = Etcd(tmp_path)
    member.scheme = "https"
    member.arguments = [
        *("--cert-file", str(pair.cert_path), "--key-file", str(pair.key_path)),
        *("--client-cert-auth", "--trusted-ca-file", ca),
    ]
    member.start()
    try:
        member.wait()
        flags = [
            f"--etcd-servers={member.url}",
            f"--etcd-cafile={ca}",
            f"--etcd-certfile={mine.cert_path}",
            f"--etcd-keyfile={mine.key_path}",
            "--etcd-prefix=/somewhere/else",
        ]
        async with serving(tmp_path / "one", *flags) as (process, one):
            await one.create(config("a"))
            assert process.end() == 0
        assert "state.db" not in {file.name for file in (tmp_path / "one").iterdir()}
    finally:
        member.kill()


def test_an_unreachable_etcd_is_reported_in_one_line(tmp_path: Path) -> None:
    command = [VOLPLANE, "apiserver", "--data-dir", str(tmp_path), "--etcd-servers=ftp://x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "'ftp://x' is not an address of an etcd server" in done.stderr
    assert "Traceback" not in done.stderr


class UncertainStore(MemoryStore):
    """Writes, then reports an uncertain outcome."""

    doubt = False

    async def create(self, key: str, value: bytes) -> int:
        revision = await super().create(key, value)
        if self.doubt:
            raise WriteUncertain("no answer")
        return revision


async def test_an_uncertain_write_is_answered_with_504(served: Any) -> None:
    store = UncertainStore()
    async with served(store=store) as api:
        store.doubt = True
        path = "/api/v1/namespaces/default/configmaps"
        answer = await api.post(path, {"metadata": {"name": "a"}})
        assert (answer.status, answer.json["reason"]) == (504, "Timeout")
        assert "may or may not have taken effect" in answer.json["message"]
        assert (await api.get(f"{path}/a")).status == 200
        with pytest.raises(Timeout):
            await api.server.in_process_transport().create(config("b"))


@pytest.mark.peer("etcd")
async def test_a_server_without_etcd_is_not_ready(
    server: Etcd, tmp_path: Path, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await EtcdStore.open([server.url])
    async with served(store=store) as api:
        path = "/api/v1/namespaces/default/configmaps"
        assert (await api.post(path, {"metadata": {"name": "a"}})).status == 201
        monkeypatch.setattr("volplane.store.etcd.members.WAIT_TIMEOUT", 0.5)
        server.kill()
        answer = await api.get(f"{path}/a")
        assert (answer.status, answer.json["reason"]) == (500, "InternalError")
        assert "no etcd server answers" in answer.json["message"]
        async with api.watch(path) as watch:
            assert "no etcd server answers" in (await watch.next())["object"]["message"]
        monkeypatch.setattr("volplane.store.etcd.members.WAIT_TIMEOUT", 10.0)
        server.start()
        assert (await api.get(f"{path}/a")).status == 200
