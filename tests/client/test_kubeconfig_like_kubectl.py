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
    try:
        transport = kubeconfig.load(listed, choice)
    except kubeconfig.BadKubeconfig:
        return ""
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


V1BETA1 = "client.authentication.k8s.io/v1beta1"
TOKEN = "$TOKEN"  # in an answer: the administrator's


def answer(status: object, *, kind: str = "ExecCredential", version: str = V1) -> str:
    return json.dumps({"kind": kind, "apiVersion": version, "status": status})


def token(**more: object) -> str:
    return answer({"token": TOKEN, **more})


GOOD = token()
ANSWERS: dict[str, tuple[str, bool]] = {  # what a plugin prints, and whether it is accepted
    "token": (GOOD, True),
    "valid token": (token(expirationTimestamp="2126-01-02T03:04:05Z"), True),
    "valid token of another zone": (token(expirationTimestamp="2126-01-02T03:04:05.678+02:00"), True),
    "expired token": (token(expirationTimestamp="2001-01-02T03:04:05Z"), True),
    "expiration is null": (token(expirationTimestamp=None), True),
    "expiration without a zone": (token(expirationTimestamp="2126-01-02T03:04:05"), False),
    "expiration without a time": (token(expirationTimestamp="2126-01-02"), False),
    "expiration is empty": (token(expirationTimestamp=""), False),
    "expiration is a number": (token(expirationTimestamp=4922999045), False),
    "unknown field": (token(colour="blue"), True),
    "wrong token": (answer({"token": "wrong"}), False),
    "token is a number": (answer({"token": 7}), False),
    "token with a line break": (answer({"token": f"{TOKEN}\n"}), False),
    "token and a certificate without a key": (token(clientCertificateData="x"), False),
    "certificate that is none": (answer({"clientCertificateData": "x", "clientKeyData": "y"}), False),
    "empty status": (answer({}), False),
    "status is null": (answer(None), False),
    "no status": (json.dumps({"kind": "ExecCredential", "apiVersion": V1}), False),
    "another kind": (answer({"token": TOKEN}, kind="Secret"), False),
    "no kind": (json.dumps({"apiVersion": V1, "status": {"token": TOKEN}}), True),
    "no version": (json.dumps({"kind": "ExecCredential", "status": {"token": TOKEN}}), False),
    "another version": (answer({"token": TOKEN}, version=V1BETA1), False),
    "no JSON": ("hello", False),
    "nothing": ("", False),
    "list": (f"[{GOOD}]", False),
    "text behind it": (f"{GOOD} more", False),
    "YAML without a zone": (
        f"apiVersion: {V1}\nkind: ExecCredential\n"
        f"status:\n  token: {TOKEN}\n  expirationTimestamp: 2126-01-02T03:04:05\n",
        False,
    ),
    "YAML": (f"apiVersion: {V1}\nkind: ExecCredential\nstatus:\n  token: {TOKEN}\n", True),
}


async def ask_both(place: Path, api: HttpsApiServer, login: dict[str, Any]) -> tuple[str, str]:
    """Who kubectl and we are to the server with this login; "" if not answered."""
    path = str(write(place, with_admin_user(api.kubeconfig, login)))
    return await ask_kubectl(place, path), await ask_volplane(path)


async def test_answers_of_plugins_are_read_in_the_same_way(place: Path) -> None:
    found = {}
    async with https_apiserver() as api:
        for name, (text, _) in ANSWERS.items():
            login = exec_user(place, text.replace(TOKEN, api.server.admin_token))
            found[name] = await ask_both(place, api, login)
    assert found == {name: ("kubernetes-admin" * good,) * 2 for name, (_, good) in ANSWERS.items()}


CONFIGURATIONS: dict[str, tuple[dict[str, Any], bool]] = {  # and whether it is accepted
    "Never": ({}, True),
    "IfAvailable": ({"interactiveMode": "IfAvailable"}, True),
    "Always, without a terminal": ({"interactiveMode": "Always"}, False),
    "another mode": ({"interactiveMode": "Sometimes"}, False),
    "no mode": ({"interactiveMode": None}, False),
    "no mode in v1beta1": ({"interactiveMode": None, "apiVersion": V1BETA1}, True),
    "v1alpha1": ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, False),
    "another group": ({"apiVersion": "v1"}, False),
    "no version": ({"apiVersion": None}, False),
    "not installed": ({"command": "no-such-plugin"}, False),
    "no command": ({"command": None}, False),
    "fails": ({"args": ["-c", "raise SystemExit(3)"]}, False),
    "says nothing": ({"args": None}, False),  # an interpreter without input
    "variables": ({"env": [{"name": "X", "value": "1"}]}, True),
    "empty value": ({"env": [{"name": "X", "value": ""}]}, True),
    "variable without a name": ({"env": [{"value": "1"}]}, False),
}


async def test_configurations_of_plugins_are_read_in_the_same_way(place: Path) -> None:
    found = {}
    async with https_apiserver() as api:
        for name, (config, _) in CONFIGURATIONS.items():
            version = config.get("apiVersion") or V1
            login = exec_user(place, answer({"token": api.server.admin_token}, version=version), **config)
            login["exec"] = {key: value for key, value in login["exec"].items() if value is not None}
            found[name] = await ask_both(place, api, login)
    assert found == {name: ("kubernetes-admin" * good,) * 2 for name, (_, good) in CONFIGURATIONS.items()}


async def test_a_plugin_gets_the_same_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own variables go before those of the user."""
    script = place / "plugin"
    printed = token()
    script.write_text(f"#!/bin/sh\nenv | grep ^SEEN_ | sort >>{place}/seen\ncat <<E\n{printed}\nE\n")
    script.chmod(0o700)
    monkeypatch.setenv("SEEN_USER", "user")
    monkeypatch.setenv("SEEN_BOTH", "user")
    async with https_apiserver() as api:
        own = {"SEEN_BOTH": "plugin", "SEEN_OWN": "a b", "SEEN_EMPTY": "", "TOKEN": api.server.admin_token}
        variables = [{"name": name, "value": value} for name, value in own.items()]
        login = {"exec": {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never"}}
        login["exec"]["env"] = variables  # type: ignore[assignment]
        path = str(write(place, with_admin_user(api.kubeconfig, login)))
        seen = []
        for ask in (ask_kubectl(place, path), ask_volplane(path)):
            assert await ask == "kubernetes-admin"
            seen.append((place / "seen").read_text().splitlines()[-4:])
        assert seen[0] == seen[1] == ["SEEN_BOTH=plugin", "SEEN_EMPTY=", "SEEN_OWN=a b", "SEEN_USER=user"]


@pytest.mark.parametrize("with_token", [False, True])
async def test_certificates_of_plugins_are_presented_in_the_same_way(place: Path, with_token: bool) -> None:
    async with https_apiserver() as api:
        pair = api.server.authority.client("test-plugin", "someone", ("system:masters",))
        status = {"clientCertificateData": pair.cert.decode(), "clientKeyData": pair.key.decode()}
        if with_token:
            status["token"] = api.server.admin_token
        path = str(write(place, with_admin_user(api.kubeconfig, exec_user(place, status))))
        by_kubectl = await ask_kubectl(place, path)
        assert by_kubectl == await ask_volplane(path)
        assert by_kubectl == "someone" or with_token


@pytest.mark.parametrize(
    ("expires", "again"), [("2126-01-02T03:04:05Z", False), ("2001-01-01T00:00:00Z", True)]
)
async def test_credentials_of_plugins_are_kept_until_they_expire(
    place: Path, expires: str, again: bool
) -> None:
    """Both are asked for an object with an empty cache, which takes them several requests."""
    async with https_apiserver() as api:
        status = {"token": api.server.admin_token, "expirationTimestamp": expires}
        path = str(write(place, with_admin_user(api.kubeconfig, exec_user(place, status))))
        code, _, errors = await run_kubectl(place, path, "get", "namespaces,pods", "-A")
        assert code == 0, errors
        by_kubectl = len(runs_of(place))
        transport = kubeconfig.load(path)
        for _ in range(3):
            assert await who_am_i(transport) == "kubernetes-admin"
        await transport.close()
        by_us = len(runs_of(place)) - by_kubectl
        assert (by_kubectl > 1, by_us > 1) == (again, again)


@pytest.mark.parametrize("other", ["client certificate", "auth-provider"])
async def test_a_plugin_beside_another_login_is_treated_in_the_same_way(place: Path, other: str) -> None:
    async with https_apiserver() as api:
        login = exec_user(place, {"token": api.server.admin_token})
        if other == "auth-provider":
            login |= {"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}}
        else:
            login |= admin_of(api.kubeconfig)["users"][0]["user"]
        path = str(write(place, with_admin_user(api.kubeconfig, login)))
        expected = "" if other == "auth-provider" else "kubernetes-admin"
        assert await ask_kubectl(place, path) == await ask_volplane(path) == expected
        assert not (place / "runs").exists()


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
