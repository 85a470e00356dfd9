"""Our client of CRI against containerd: errors, networks, images that may go, nodes that share a runtime."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from tests.support.cri.containerd import Containerd, run_containerd
from tests.support.cri.fixtures import require_containerd
from tests.support.cri.registry import Registry
from tests.support.up import wait_until
from volplane.api.core import Container, Pod, PodSpec
from volplane.api.meta import ObjectMeta
from volplane.base.tasks import cancel_and_wait
from volplane.cluster.container_runtime import prepare_runtime
from volplane.cluster.errors import NoContainerRuntime
from volplane.host import Host
from volplane.node.containers.cri import cni, v1
from volplane.node.containers.cri.client import CriClient, CriError, NotFoundInRuntime, RuntimeUnavailable
from volplane.node.containers.cri.cni import FILE
from volplane.node.containers.cri.first_process import FirstProcess
from volplane.node.containers.cri.image_collector import ImageCollector
from volplane.node.containers.cri.labels import node_labels
from volplane.node.containers.cri.pulled_images import PulledImages
from volplane.node.containers.cri.removal import remove_node
from volplane.node.containers.cri.runtime import read_pid
from volplane.node.containers.cri.runtime_info import RuntimeInfo, find_problem
from volplane.node.containers.cri.sandbox_config import SandboxInputs, make_sandbox_config

pytestmark = [pytest.mark.root, pytest.mark.slow]


@asynccontextmanager
async def connect(endpoint: str) -> AsyncIterator[CriClient]:
    cri = CriClient(endpoint)
    try:
        yield cri
    finally:
        await cri.close()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    asyncio.run(made.close())


async def pull(cri: CriClient, image: str) -> str:
    request = v1.PullImageRequest(image=v1.ImageSpec(image=image))
    reply: v1.PullImageResponse = await cri.call("PullImage", request)
    return reply.image_ref


async def find_image(cri: CriClient, image: str) -> str:
    request = v1.ImageStatusRequest(image=v1.ImageSpec(image=image))
    reply: v1.ImageStatusResponse = await cri.call("ImageStatus", request)
    return reply.image.id


def make_config(name: str, root: Path) -> v1.PodSandboxConfig:
    (root / "logs").mkdir(parents=True, exist_ok=True)
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-of-{name}")
    pod = Pod(metadata=meta, spec=PodSpec(containers=(Container(name="main"),)))
    return make_sandbox_config(pod, 0, SandboxInputs(str(root), name, str(root / "logs")))


async def run_sandbox(cri: CriClient, name: str, root: Path) -> str:
    return await cri.run_sandbox(make_config(name, root), "")


async def test_the_runtime_tells_what_it_is(containerd: Containerd) -> None:
    async with connect(containerd.endpoint) as cri:
        info = RuntimeInfo()
        await info.read(cri)
        assert info.name == "containerd"
        assert info.version.lstrip("v")[:2] == ("2." if containerd.newer else "1.")
        assert not info.systemd_cgroups
        assert find_problem(await cri.status()) == ""


async def test_errors_tell_apart_what_is_missing_and_who_does_not_answer(
    containerd: Containerd, tmp_path: Path
) -> None:
    async with connect(containerd.endpoint) as cri:
        with pytest.raises(NotFoundInRuntime):
            await cri.container_status("nothing")
        with pytest.raises(CriError) as refused:
            await pull(cri, "never/there:v1")
        assert "not found" in str(refused.value)
        assert not isinstance(refused.value, RuntimeUnavailable)
    async with connect(f"unix://{tmp_path}/nothing.sock") as absent:
        with pytest.raises(RuntimeUnavailable):
            await absent.version()


async def test_a_missing_runtime_keeps_a_cluster_from_starting(host: Host, tmp_path: Path) -> None:
    endpoint = f"unix://{tmp_path}/nothing.sock"
    with pytest.raises(NoContainerRuntime, match=f"no container runtime answers at {endpoint}"):
        await prepare_runtime(endpoint, host)


async def test_a_runtime_without_a_network_gets_one(
    host: Host, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_containerd()
    # The bridge is one for the machine: other tests may have pods on it, or remove it before ours is there.
    monkeypatch.setattr(cni, "BRIDGE", f"vpt{os.getpid()}")
    with run_containerd({"_default": registry.url}, network=False) as runtime:
        async with connect(runtime.endpoint) as cri:
            assert "NetworkReady=false" in find_problem(await cri.status())
            await prepare_runtime(runtime.endpoint, host)
            assert find_problem(await cri.status()) == ""
            written = runtime.networks / FILE
            before = written.read_bytes()
            await prepare_runtime(runtime.endpoint, host)
            assert written.read_bytes() == before
            assert [path.name for path in runtime.networks.iterdir()] == [FILE]
            await run_sandbox(cri, "connected", tmp_path)
            try:
                (sandbox,) = await cri.list_sandboxes(node_labels(str(tmp_path)))
                status = (await cri.sandbox_status(sandbox.id)).status
                bridge = json.loads(before)["plugins"][0]
                (range,) = bridge["ipam"]["ranges"][0]
                assert ip_address(status.network.ip) in ip_network(range["subnet"])
                assert has_bridge()
            finally:
                await remove_node(runtime.endpoint, str(tmp_path))
                cni.remove_idle_bridge()
            assert not has_bridge()


def has_bridge() -> bool:
    return Path(f"/sys/class/net/{cni.BRIDGE}").exists()


async def test_a_network_that_exists_is_never_replaced(containerd: Containerd, host: Host) -> None:
    before = {path.name: path.read_bytes() for path in containerd.networks.iterdir()}
    await prepare_runtime(containerd.endpoint, host)
    assert {path.name: path.read_bytes() for path in containerd.networks.iterdir()} == before


async def test_removing_a_node_leaves_the_other_nodes_alone(containerd: Containerd, tmp_path: Path) -> None:
    async with connect(containerd.endpoint) as cri:
        one, other = tmp_path / "n" / "1", tmp_path / "n" / "2"
        await run_sandbox(cri, "removed", one)
        left = await run_sandbox(cri, "left", other)
        try:
            await remove_node(containerd.endpoint, str(one))
            assert await cri.list_sandboxes(node_labels(str(one))) == []
            (found,) = await cri.list_sandboxes(node_labels(str(other)))
            assert found.id == left
            assert found.state == v1.SANDBOX_READY
        finally:
            await remove_node(containerd.endpoint, str(other))
        assert await cri.list_sandboxes(node_labels(str(other))) == []


# runc whose start or delete of the container that a file names takes until the file is gone
SLOW_RUNC = """#!/bin/sh
for last; do :; done
for verb in start delete; do
    case " $* " in *" $verb "*)
        while grep -qs "$last" "$0.$verb"; do : > "$0.$verb.seen"; sleep 0.05; done;;
    esac
done
exec runc "$@"
"""


def hold_container(program: Path, id: str) -> None:
    for verb in ("start", "delete"):
        Path(f"{program}.{verb}").write_text(id)


def release(program: Path, verb: str) -> None:
    Path(f"{program}.{verb}").unlink(missing_ok=True)


async def wait_until_held(program: Path, verb: str) -> None:
    await asyncio.to_thread(wait_until, f"runc {verb} is called", Path(f"{program}.{verb}.seen").exists)


async def wait_until_killed(cri: CriClient, sandbox: str) -> None:
    """Its state is no sign: the runtime hears of the exit only after the start that it is busy with."""
    process = FirstProcess.open(read_pid((await cri.sandbox_status(sandbox)).info))
    if process is not None:
        async with asyncio.timeout(60):
            await process.wait()
        process.close()


async def test_a_container_that_is_being_started_is_removed_with_its_node(
    own_containerd: Containerd, tmp_path: Path
) -> None:
    """The runtime refuses it until the start is done, which nobody waits for after a power loss."""
    program, config = tmp_path / "slow-runc", own_containerd.directory / "config.toml"
    program.write_text(SLOW_RUNC)
    program.chmod(0o755)
    config.write_text(config.read_text().replace(str(own_containerd.find_handler("runc")), str(program)))
    own_containerd.stop()
    own_containerd.start()
    root = tmp_path / "n" / "1"
    own = node_labels(str(root))
    async with connect(own_containerd.endpoint) as cri:
        image = await pull(cri, "busybox:1.35")
        sandbox_config = make_config("starting", root)
        sandbox = await cri.run_sandbox(sandbox_config, "")
        container = v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name="main"),
            image=v1.ImageSpec(image=image),
            command=["sleep", "infinity"],
            labels=own,
            log_path="main.log",
            linux=v1.LinuxContainerConfig(),
        )
        made = await cri.create_container(sandbox, container, sandbox_config)
        hold_container(program, made)
        start = asyncio.create_task(cri.start_container(made))
        removal: asyncio.Task[None] | None = None
        try:
            await wait_until_held(program, "start")
            removal = asyncio.create_task(remove_node(own_containerd.endpoint, str(root)))
            await wait_until_killed(cri, sandbox)
            assert not start.done()
            assert not removal.done()
            release(program, "start")  # and fails: the sandbox is being stopped
            await wait_until_held(program, "delete")
            await asyncio.sleep(0.5)  # for a removal that is refused
            assert not start.done()
            release(program, "delete")
            await asyncio.wait([start, removal], timeout=60)
            assert start.done()
            assert removal.done()
        finally:
            release(program, "start")
            release(program, "delete")
            await cancel_and_wait(start, removal)
        assert isinstance(start.exception(), CriError)
        assert removal.exception() is None
        assert await cri.list_sandboxes(own) == []
        assert await cri.list_containers(own) == []


async def test_only_unused_images_of_the_node_itself_are_collected(
    own_containerd: Containerd, host: Host, tmp_path: Path
) -> None:
    async with connect(own_containerd.endpoint) as cri:
        pulled = PulledImages(str(tmp_path), host)
        await pulled.add(await pull(cri, "busybox:1.35"))
        foreign = await pull(cri, "nginx:1.22")
        reports: list[str] = []

        def make_collector(*, min_age: float = 0.0) -> ImageCollector:
            report = lambda reason, message: reports.append(reason)  # noqa: E731
            return ImageCollector(cri, host, pulled, high=0, low=0, min_age=min_age, report=report)

        assert await make_collector(min_age=3600.0).collect() == []
        assert reports == ["FreeDiskSpaceFailed"]
        (removed,) = await make_collector().collect()
        assert await find_image(cri, removed) == ""
        assert await find_image(cri, "nginx:1.22") == foreign
        assert await PulledImages(str(tmp_path), host).load() == set()


async def test_pulls_at_once_are_all_remembered(host: Host, tmp_path: Path) -> None:
    pulled, ids = PulledImages(str(tmp_path), host), {f"sha256:{number}" for number in range(20)}
    await asyncio.gather(*map(pulled.add, ids))
    assert await pulled.load() == await PulledImages(str(tmp_path), host).load() == ids


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(["sleep", "infinity"])
    yield made
    made.kill()
    made.wait()


async def test_a_process_is_awaited_and_killed_by_its_descriptor(child: subprocess.Popen[bytes]) -> None:
    process = FirstProcess.open(child.pid)
    assert process is not None
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    await process.kill()
    await waiting
    assert child.wait() == -9
    process.close()
    assert FirstProcess.open(child.pid) is None
    assert FirstProcess.open(0) is None
