"""`explain` runs on any operating system and starts fast: it imports nothing of Linux or of a node."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import msgspec
import pytest
from msgspec import Struct

from tests.controllers import objects
from tests.explain import explain_objects
from tests.explain.journey.spans import BACK, DELETE, FORWARDS
from tests.support.https_apiserver import https_apiserver
from tests.support.snapshots import definitions
from volplane.api.core import ServiceAccount
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotSource, VolumeSnapshotSpec
from volplane.apiserver.auth import kubeconfig
from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.base.span_store import SpanRecorder

# What `explain` might use by accident and that macOS does not have. An audit hook hides Linux' own files.
ONLY_LINUX = """
import ctypes, os, select, signal, socket, sys, types
for module, names in (
    (os, "memfd_create pidfd_open eventfd setns unshare sched_setaffinity sched_getaffinity splice"
         " getrandom copy_file_range posix_fadvise posix_fallocate O_TMPFILE O_PATH O_DIRECT CLONE_NEWNS"
         " getxattr setxattr listxattr removexattr fdatasync"),
    (socket, "AF_NETLINK AF_VSOCK AF_PACKET SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK"),
    (signal, "pidfd_send_signal SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL"),
    (select, "epoll"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
socket.TCP_KEEPALIVE = socket.TCP_KEEPIDLE  # the name on macOS
del socket.TCP_KEEPIDLE
load = ctypes.CDLL
def load_elsewhere(name, *words, **flags):
    if name is not None and "libc.so" in str(name):
        raise OSError(f"dlopen({name}): image not found")
    return load(name, *words, **flags)
ctypes.CDLL = load_elsewhere
def hide_files(event, arguments):
    if event in ("open", "os.listdir", "os.scandir"):
        if isinstance(arguments[0], str) and arguments[0].startswith(("/proc", "/sys/", "/dev/loop")):
            raise FileNotFoundError(2, "No such file or directory", arguments[0])
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork"):
        raise PermissionError(event)
sys.addaudithook(hide_files)
sys.modules["uvloop"] = None
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxies=dict, _get_proxy_settings=dict)
sys.platform = "darwin"
"""
RUN = """
import volplane.cli
code = 0
try:
    volplane.cli.main(sys.argv[1:])
except SystemExit as end:
    code = end.code
import json
print(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""
SLOW_OR_LINUX = (
    "volplane.host",
    "volplane.csi",
    "grpc",
    "google.protobuf",
    "cryptography",
    "rich",
    "uvloop",
    "botocore",
)


class VerbResult(Struct, frozen=True):
    code: int
    shown: str
    modules: list[str]  # that should not be imported


async def run_verb(*words: str) -> VerbResult:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ONLY_LINUX + RUN, *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    text = output.decode()
    assert process.returncode == 0, text
    *shown, last = text.splitlines()
    seen = json.loads(last)
    modules = [name for name in seen["modules"] if name.startswith(SLOW_OR_LINUX) and name != "uvloop"]
    return VerbResult(seen["code"], "\n".join(shown), modules)


@pytest.mark.parametrize(
    "words",
    [
        *(("explain", "pvc/x"), ("journey", "pvc/x"), ("journey", "pvc/x", "--follow"), ("states", "pvc/x")),
        *(("world",), ("plugins",), ("ui",)),
    ],
    ids=lambda words: " ".join(words),
)
async def test_a_verb_without_a_server_says_so(words: tuple[str, ...], tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    config = tmp_path / "config"
    user = authority.client("u", "u")
    kubeconfig.write(config, server="https://127.0.0.1:1", ca=authority.pair.cert, user="u", pair=user)
    result = await run_verb(*words, "--kubeconfig", str(config))
    assert result.code == 1
    assert "cannot connect to https://127.0.0.1:1" in result.shown
    assert result.modules == []


async def test_every_verb_answers_about_a_cluster() -> None:
    claim, volume = explain_objects.bound_pair("data", "pv-1")
    stored: list[Resource] = [
        ServiceAccount(metadata=ObjectMeta(name="default", namespace="default")),
        *(explain_objects.node("worker-1"), claim, volume, objects.claim("waiting")),
        explain_objects.pod("web", "data", on="worker-1"),
        explain_objects.attachment("pv-1", "worker-1"),
        VolumeSnapshot(
            metadata=ObjectMeta(name="snap", namespace="default"),
            spec=VolumeSnapshotSpec(source=VolumeSnapshotSource(persistent_volume_claim_name="data")),
        ),
    ]
    async with https_apiserver() as server:
        for definition in definitions():
            await server.client.create(definition)
        for each in stored:
            await server.client.create(each)
        kubeconfig_option = ("--kubeconfig", server.kubeconfig)
        for name in (
            *("pvc/data", "pvc/waiting", "pv/pv-1", "pod/web", "node/worker-1", "volumesnapshot/snap"),
            f"volumeattachment/{stored[6].name}",
        ):
            result = await run_verb("explain", name, *kubeconfig_option)
            assert result.code in (0, 3), f"{name}: {result.shown}"
            assert name.partition("/")[2] in result.shown
            assert result.modules == [], name
        for words in (
            *(("journey", "pvc/data"), ("journey", "pod/web", "-o", "mermaid")),
            *(("journey", "pvc/data", "-o", "html"), ("journey", "pv/pv-1", "-o", "json")),
            *(("states", "pvc/data", "-o", "json"), ("world",), ("plugins", "-o", "json")),
        ):
            result = await run_verb(*words, *kubeconfig_option)
            assert result.code in (0, 3), f"{words}: {result.shown}"
            assert result.shown.strip()
            assert result.modules == [], words


async def test_the_live_page_is_served() -> None:
    async with https_apiserver() as server:
        await server.client.create(objects.claim("waiting"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ONLY_LINUX + RUN, "ui", "--kubeconfig", server.kubeconfig),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            link = (await asyncio.wait_for(process.stdout.readline(), 120)).decode().strip()
            assert link.startswith("http://127.0.0.1:"), link
            assert "<title>" in await asyncio.to_thread(open_page, link)
        finally:
            process.send_signal(signal.SIGTERM)
            output, _ = await asyncio.wait_for(process.communicate(), 120)
    seen = json.loads(output.decode().splitlines()[-1])
    assert seen["code"] == 0, output.decode()
    assert [name for name in seen["modules"] if name.startswith(SLOW_OR_LINUX) and name != "uvloop"] == []


def open_page(link: str) -> str:
    """As a browser does: the link is followed once, and a cookie kept."""
    opener = build_opener(HTTPCookieProcessor())
    with opener.open(link, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


async def test_recorded_steps_are_followed_to_their_end(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("")
    (tmp_path / "spans").mkdir()
    recorder = SpanRecorder(tmp_path / "spans", "up", max_size=1 << 20, max_age=3600.0)
    for stored in (*FORWARDS, *BACK, *DELETE):
        recorder.write(msgspec.json.encode(stored.span))
    result = await run_verb("journey", "pvc/data", "--all", "--follow", "--data-dir", str(tmp_path))
    recorder.close()
    assert result.code == 0, result.shown
    assert "StartContainer" in result.shown
    assert result.modules == []


@pytest.mark.parametrize("words", [("journey", "pvc/x"), ("doctor",)], ids=lambda words: words[0])
async def test_a_named_cluster_needs_linux(words: tuple[str, ...]) -> None:
    result = await run_verb(*words, "--name", "x")
    assert result.code == 1
    assert "--name needs Linux, where such clusters run, and this is darwin" in result.shown
    assert result.modules == []


async def test_a_verb_that_needs_linux_says_so() -> None:
    result = await run_verb("up", "--nodes", "3")
    assert result.code == 1
    assert "volplane up needs Linux, and this is darwin" in result.shown
    assert (
        "Here you can use: explain, journey, doctor, plugins, states, ui, world, completion" in result.shown
    )
