"""kubectl and Volplane read the same kubeconfigs in the same way: merged files, flags, plugins, proxies."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.client.test_kubeconfig import V1, admin_of, exec_user, runs_of, who_am_i, with_admin_user, write
from tests.support import peers
from tests.support.https_apiserver import HttpsApiServer, https_apiserver
from volplane.api.errors import APIError
from volplane.client import kubeconfig
from volplane.client.kubeconfig import ContextChoice, update

pytestmark = pytest.mark.peer("kubectl")
PATIENCE = 60.0


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


def environment(place: Path, files: str, **more: str) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": files, "HOME": str(place), **more}


async def run_kubectl(place: Path, files: str, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        peers.path("kubectl"),
        *words,
        env=environment(place, files),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def ask_kubectl(place: Path, files: str, *flags: str) -> str:
    """Who kubectl is to the server; "" if it is not answered."""
    code, output, _ = await run_kubectl(place, files, "auth", "whoami", "-o", "json", *flags)
    return json.loads(output)["status"]["userInfo"]["username"] if code == 0 else ""


async def ask_volplane(files: str, choice: ContextChoice = kubeconfig.CURRENT) -> str:
    """Who we are to the server; "" if we are not answered."""
    listed = kubeconfig.list_files({"KUBECONFIG": files})
    transport = kubeconfig.load(listed, choice)
    try:
        return await who_am_i(transport)
    except APIError:
        return ""
    finally:
        await transport.close()


def cluster(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "cluster": {"server": f"https://{name}.example:6443", **fields}}


def user(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "user": {"token": name, **fields}}


def context(name: str, cluster: str, user: str, namespace: str = "") -> dict[str, Any]:
    more = {"namespace": namespace} if namespace else {}
    return {"name": name, "context": {"cluster": cluster, "user": user, **more}}


FIRST = {
    "clusters": [cluster("one"), cluster("both", server="https://first:1")],
    "users": [user("ann"), user("both", token="first")],
    "contexts": [context("a", "one", "ann", "front"), context("b", "both", "both")],
}
SECOND = {
    "current-context": "c",
    "clusters": [cluster("two"), cluster("both", server="https://second:2", **{"tls-server-name": "second"})],
    "users": [user("bob"), user("both", token="second", username="")],
    "contexts": [context("c", "two", "bob", "back"), context("b", "two", "bob"), context("d", "one", "bob")],
}
THIRD = {"current-context": "a", "users": [user("cat")]}


@pytest.mark.parametrize(
    ("files", "choice"),
    [
        ((FIRST, SECOND), ContextChoice()),
        ((FIRST, SECOND, THIRD), ContextChoice()),
        ((THIRD, FIRST, SECOND), ContextChoice()),
        ((FIRST, SECOND), ContextChoice("b")),
        ((SECOND, FIRST), ContextChoice("b")),
        ((FIRST, SECOND), ContextChoice("d")),
        ((FIRST, SECOND), ContextChoice("a", cluster="both")),
        ((FIRST, SECOND), ContextChoice("a", user="both")),
        ((FIRST, SECOND), ContextChoice(cluster="one", user="both")),
        ((FIRST,), ContextChoice(cluster="one", user="both")),
    ],
)
async def test_merged_files_and_flags_choose_the_same_server_and_user(
    place: Path, files: tuple[dict[str, Any], ...], choice: ContextChoice
) -> None:
    listed = os.pathsep.join(
        [str(place / "gone"), *(str(write(place, file, f"file-{n}")) for n, file in enumerate(files))]
    )
    flags = [f"--{name}={value}" for name, value in vars_of(choice).items() if value]
    # A dry run of a request: the flags of `config view` do not change what it prints.
    code, _, shown = await run_kubectl(place, listed, "get", "--raw", "/version", "-v=8", *flags)
    assert code == 1  # there is no such server
    (asked,) = {line.split('url="')[1].split('"')[0] for line in shown.splitlines() if 'url="' in line} or {
        line.rpartition(" GET ")[2] for line in shown.splitlines() if " GET https" in line
    }
    chosen = kubeconfig._choose(kubeconfig.list_files({"KUBECONFIG": listed}), choice)
    assert f"{chosen.server}/version" == asked.split("?")[0]
    code, output, _ = await run_kubectl(place, listed, "config", "view", "--raw", "-o", "json")
    assert code == 0
    merged = json.loads(output)
    users = {entry["name"]: entry["user"] for entry in merged["users"]}
    assert chosen.user.fields["token"] == users[chosen.user.name]["token"]
    assert chosen.merged.current_context == merged["current-context"]
    assert {name for kind, name in chosen.merged.entries if kind == "contexts"} == {
        entry["name"] for entry in merged["contexts"]
    }


def vars_of(choice: ContextChoice) -> dict[str, str]:
    return {name: getattr(choice, name) for name in choice.__struct_fields__}


LOGINS = ("certificate", "token", "token file", "both tokens", "password", "exec and token", "as", "nobody")


@pytest.mark.parametrize("login", LOGINS)
async def test_users_log_in_in_the_same_way(place: Path, login: str) -> None:
    async with https_apiserver() as api:
        admin = admin_of(api.kubeconfig)["users"][0]["user"]
        token = api.server.admin_token
        (place / "token.txt").write_text(f"{token}\n")
        ways: dict[str, dict[str, Any]] = {
            "certificate": admin,
            "token": {"token": token},
            "token file": {"tokenFile": "token.txt"},
            "both tokens": {"token": "wrong", "tokenFile": "token.txt"},
            "password": {"username": "someone", "password": "secret"},
            "exec and token": {**exec_user(place, {"token": "wrong"}), "token": token},
            "as": {**admin, "as": "jane", "as-uid": "7", "as-groups": ["a", "b"]},
            "nobody": {"token": "wrong"},
        }
        path = str(write(place, with_admin_user(api.kubeconfig, ways[login])))
        expected = {"password": "", "nobody": "", "as": "jane"}.get(login, "kubernetes-admin")
        assert await ask_kubectl(place, path) == await ask_volplane(path) == expected


@pytest.mark.parametrize(
    ("fields", "works"),
    [
        ({"tls-server-name": "kubernetes.default.svc"}, True),
        ({"tls-server-name": "other.example"}, False),
        ({"certificate-authority-data": None}, False),
        ({"certificate-authority-data": None, "insecure-skip-tls-verify": True}, True),
        ({"proxy-url": "http://127.0.0.1:9"}, False),
    ],
)
async def test_servers_are_verified_in_the_same_way(place: Path, fields: dict[str, Any], works: bool) -> None:
    async with https_apiserver() as api:
        path = str(write(place, with_cluster(api, **fields)))
        expected = "kubernetes-admin" if works else ""
        assert await ask_kubectl(place, path) == await ask_volplane(path) == expected


def with_cluster(api: HttpsApiServer, **fields: Any) -> dict[str, Any]:
    config = admin_of(api.kubeconfig)
    config["clusters"][0]["cluster"] |= fields
    return config


# --- credential plugins


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
@pytest.mark.parametrize("informed", [True, False])
async def test_a_plugin_gets_the_same_information(place: Path, version: str, informed: bool) -> None:
    async with https_apiserver() as api:
        answer = {
            "kind": "ExecCredential",
            "apiVersion": version,
            "status": {"token": api.server.admin_token},
        }
        login = exec_user(place, json.dumps(answer), apiVersion=version, provideClusterInfo=informed)
        config = with_admin_user(api.kubeconfig, login)
        extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "here"}}
        config["clusters"][0]["cluster"] |= {"tls-server-name": "localhost", "extensions": [extension]}
        path = str(write(place, config))
        assert await ask_kubectl(place, path) == await ask_volplane(path) == "kubernetes-admin"
        by_kubectl, *_, by_us = runs_of(place)
        assert by_us == by_kubectl
        assert ("cluster" in by_us["spec"]) is informed


@pytest.mark.parametrize("program", ["kubectl", "volplane"])
async def test_a_plugin_on_a_terminal_may_ask_the_user(place: Path, program: str) -> None:
    """It reads a line from the terminal, and is told that it may."""
    answer = {"kind": "ExecCredential", "apiVersion": V1, "status": {"token": "$word"}}
    script = place / "ask"
    script.write_text(
        f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >>{place}/runs\nprintf "token? " >&2\nread word\n'
        f"cat <<E\n{json.dumps(answer)}\nE\n"
    )
    script.chmod(0o700)
    async with https_apiserver() as api:
        own = {"apiVersion": V1, "command": "./ask", "interactiveMode": "Always"}
        path = str(write(place, with_admin_user(api.kubeconfig, {"exec": own})))
        argv = {
            "kubectl": [peers.path("kubectl"), "get", "namespaces", "default"],
            "volplane": [sys.executable, "-m", "volplane", "explain", "node/none"],
        }[program]
        shown = await asyncio.to_thread(
            answer_on_terminal, argv, environment(place, path), "token? ", api.server.admin_token
        )
        assert ("default" if program == "kubectl" else '"none" not found') in shown
        assert {run["spec"]["interactive"] for run in runs_of(place)} == {True}


def answer_on_terminal(argv: list[str], env: dict[str, str], question: str, word: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        argv, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = ""
    try:
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            shown += data.decode(errors="replace")
            if shown.endswith(question):
                os.write(ours, f"{word}\n".encode())
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown


# --- proxies


@asynccontextmanager
async def run_program(*argv: str, ready: str) -> AsyncIterator[None]:
    """Run a server until the end of the block; it listens once `ready` (host:port) accepts."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL)
    host, port = ready.rsplit(":", 1)
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host, int(port))
                except ConnectionError:
                    assert process.returncode is None
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield
    finally:
        process.kill()
        await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def tinyproxy(place: Path, *lines: str) -> AsyncIterator[tuple[int, Path]]:
    """An HTTP proxy: its port, and the log of what it was asked."""
    port, log = free_port(), place / "tinyproxy.log"
    settings = (
        f"Port {port}",
        "Listen 127.0.0.1",
        f'LogFile "{log}"',
        "LogLevel Connect",
        "Timeout 60",
        *lines,
    )
    (place / "tinyproxy.conf").write_text("\n".join(settings) + "\n")
    argv = (peers.path("tinyproxy"), "-d", "-c", str(place / "tinyproxy.conf"))
    async with run_program(*argv, ready=f"127.0.0.1:{port}"):
        yield port, log


def connects(log: Path) -> int:
    return log.read_text().count("CONNECT")


@pytest.mark.peer("tinyproxy")
@pytest.mark.parametrize(("login", "allowed"), [("", True), ("me:secret@", True), ("me:wrong@", False)])
async def test_both_go_through_the_http_proxy_of_the_kubeconfig(
    place: Path, login: str, allowed: bool
) -> None:
    lines = ("BasicAuth me secret",) if login else ()
    async with https_apiserver() as api, tinyproxy(place, *lines) as (port, log):
        path = str(write(place, with_cluster(api, **{"proxy-url": f"http://{login}127.0.0.1:{port}"})))
        expected = "kubernetes-admin" if allowed else ""
        assert await ask_kubectl(place, path) == expected
        before = connects(log)
        assert before >= 1
        assert await ask_volplane(path) == expected
        assert connects(log) > before


@pytest.mark.peer("microsocks")
@pytest.mark.parametrize(("login", "allowed"), [("", True), ("me:secret@", True), ("me:wrong@", False)])
async def test_both_go_through_the_socks_proxy_of_the_kubeconfig(
    place: Path, login: str, allowed: bool
) -> None:
    port = free_port()
    words = ("-u", "me", "-P", "secret") if login else ()
    argv = (peers.path("microsocks"), "-i", "127.0.0.1", "-p", str(port), *words)
    async with https_apiserver() as api:
        path = str(write(place, with_cluster(api, **{"proxy-url": f"socks5://{login}127.0.0.1:{port}"})))
        assert await ask_kubectl(place, path) == await ask_volplane(path) == ""  # nothing listens there
        async with run_program(*argv, ready=f"127.0.0.1:{port}"):
            expected = "kubernetes-admin" if allowed else ""
            assert await ask_kubectl(place, path) == await ask_volplane(path) == expected


# Puts TLS before a proxy that has none.
TLS_RELAY = """
import asyncio, ssl, sys
port, behind, cert, key = sys.argv[1:]
async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
async def relay(reader, writer):
    other_reader, other_writer = await asyncio.open_connection("127.0.0.1", int(behind))
    await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer), return_exceptions=True)
async def serve():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    await (await asyncio.start_server(relay, "127.0.0.1", int(port), ssl=context)).serve_forever()
asyncio.run(serve())
"""


@pytest.mark.peer("tinyproxy")
async def test_both_go_through_a_proxy_over_tls(place: Path) -> None:
    """The certificate of the proxy is checked with the CA of the cluster."""
    outer = free_port()
    async with https_apiserver() as api, tinyproxy(place) as (port, log):
        pair = api.server.authority.server("proxy", ["127.0.0.1"])
        argv = (
            sys.executable,
            "-c",
            TLS_RELAY,
            str(outer),
            str(port),
            str(pair.cert_path),
            str(pair.key_path),
        )
        async with run_program(*argv, ready=f"127.0.0.1:{outer}"):
            path = str(write(place, with_cluster(api, **{"proxy-url": f"https://127.0.0.1:{outer}"})))
            assert await ask_kubectl(place, path) == "kubernetes-admin"
            before = connects(log)
            assert '"none" not found' in await explain_missing_node(path)
            assert connects(log) > before


async def explain_missing_node(path: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "volplane", "explain", "node/none", "--kubeconfig", path),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        _, errors = await process.communicate()
    return errors.decode()


# --- changing the user's kubeconfig


async def test_a_context_is_added_to_the_users_file_and_removed(place: Path) -> None:
    async with https_apiserver() as api:
        mine = write(place, {**FIRST, "current-context": "a", "preferences": {"colors": True}}, "mine")
        source = Path(api.kubeconfig)
        update.add_context(mine, source, "volplane")
        update.add_context(mine, source, "volplane")  # again: nothing twice
        assert await ask_kubectl(place, str(mine)) == "kubernetes-admin"
        code, output, _ = await run_kubectl(place, str(mine), "config", "get-contexts", "-o", "name")
        assert (code, output.split()) == (0, ["a", "b", "volplane"])
        assert mine.stat().st_mode & 0o777 == 0o600
        assert update.remove_context(mine, "volplane")
        assert not update.remove_context(mine, "volplane")
        code, output, _ = await run_kubectl(place, str(mine), "config", "view", "--raw", "-o", "json")
        assert json.loads(output)["preferences"] == {"colors": True}
        assert [entry["name"] for entry in json.loads(output)["users"]] == ["ann", "both"]


def test_a_locked_kubeconfig_is_not_changed(place: Path) -> None:
    mine = write(place, FIRST, "mine")
    (place / "mine.lock").touch()
    with pytest.raises(kubeconfig.BadKubeconfig, match=r"mine is locked: remove .*mine\.lock"):
        update.remove_context(mine, "a")
    assert json.loads(mine.read_text()) == FIRST


async def test_kubectl_finds_volplane_as_a_plugin(place: Path) -> None:
    async with https_apiserver() as api:
        code, output, errors = await run_kubectl(place, api.kubeconfig, "volplane", "explain", "node/none")
        assert (code, output) == (1, "")
        assert '"none" not found' in errors
