"""Kubeconfigs: what is read from them, credentials that change, and errors that say what is wrong."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.https_apiserver import https_apiserver
from volplane.api.authentication import SelfSubjectReview
from volplane.api.core import Namespace
from volplane.api.errors import Unauthorized
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.client.kubeconfig import BadKubeconfig, ContextChoice, update
from volplane.web.client.proxy import Proxy, find_proxy

V1 = "client.authentication.k8s.io/v1"
SERVER = {"server": "https://127.0.0.1:1"}
CLUSTER = {"name": "c", "cluster": SERVER}
CONTEXT = {"name": "x", "context": {"cluster": "c", "user": "u"}}
EXEC = {"apiVersion": V1, "command": "true", "interactiveMode": "Never"}

# Prints credentials from `answers`, one file a run, the last one again and again; counts its runs.
PLUGIN = """
import os, pathlib, sys
place = pathlib.Path(sys.argv[1])
runs = place / "runs"
number = len(runs.read_text().splitlines()) if runs.exists() else 0
with runs.open("a") as file:
    file.write(os.environ["KUBERNETES_EXEC_INFO"] + chr(10))
answers = sorted(place.glob("answer-*"))
print(answers[min(number, len(answers) - 1)].read_text())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


def write(place: Path, config: object, name: str = "config.json") -> Path:
    path = place / name
    path.write_text(json.dumps(config))
    return path


def with_user(user: dict[str, Any], cluster: dict[str, Any] = SERVER) -> dict[str, Any]:
    return {
        "current-context": "x",
        "contexts": [CONTEXT],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }


def make_jwt(expires: float) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'exp': expires})}.x"


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({}, "no current-context"),
        ({"current-context": "x"}, "no context 'x'"),
        ({"current-context": "x", "contexts": [CONTEXT]}, "no cluster 'c'"),
        ({"current-context": "x", "contexts": [CONTEXT], "clusters": [CLUSTER]}, "no user 'u'"),
        ({**with_user({}), "current-context": "y"}, "no context 'y'; there are: x"),
        ({"contexts": [CONTEXT, CONTEXT]}, "contexts has two entries named 'x'"),
        ({"users": {}}, "no current-context"),
        ({"users": "u"}, "users is not a list"),
        ({"users": ["u"]}, "users has an entry that is not a map"),
        (with_user({}, {}), "cluster 'c' has no server"),
        (with_user({}, {**SERVER, "certificate-authority-data": "%"}), "not base64"),
        (with_user({}, {**SERVER, "certificate-authority": "gone.pem"}), "gone.pem does not exist"),
        (
            with_user({}, {**SERVER, "proxy-url": "ftp://p"}),
            "proxy-url of cluster 'c': .*unsupported scheme 'ftp'",
        ),
        (with_user({}, {"server": "ldap://x"}), "not an HTTP address"),
        (with_user({"token": "t", "username": "n"}), "a token and a password"),
        (with_user({"token": "t\n"}), "user 'u' has a line break or such in what is sent as Authorization"),
        (with_user({"client-certificate-data": "eA=="}), "no client-key"),
        (with_user({"client-certificate-data": "eA==", "client-key-data": "eA=="}), "cannot be used"),
        (with_user({"as-groups": ["g"]}), "but not as"),
        (with_user({"exec": {**EXEC, "command": ""}}), "exec.command is missing"),
        (with_user({"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}), "v1alpha1"),
        (
            with_user({"exec": {"apiVersion": V1, "command": "true"}}),
            "interactiveMode must be Never, IfAvailable",
        ),
        (with_user({"exec": {**EXEC, "env": [{"value": "v"}]}}), "variable without a name"),
        (with_user({"exec": {**EXEC, "args": "x"}}), "exec: Expected `array"),
        (with_user({"auth-provider": {"name": "gcp"}}), "use the credential plugin gke-gcloud-auth-plugin"),
        (with_user({"auth-provider": {"name": "azure"}}), "use the credential plugin kubelogin"),
        (with_user({"auth-provider": {"name": "mine"}}), "'mine', which is not known"),
        (with_user({"auth-provider": {"name": "oidc"}}), "has no id-token: run a kubectl command"),
        (
            with_user({"auth-provider": {"name": "oidc", "config": {"id-token": make_jwt(1)}}}),
            "its id-token has expired on 1970-01-01",
        ),
        ([], "not a kubeconfig"),
    ],
)
def test_a_broken_kubeconfig_says_what_is_wrong(place: Path, broken: object, words: str) -> None:
    with pytest.raises(BadKubeconfig, match=words):
        kubeconfig.load(write(place, broken))


def test_a_missing_kubeconfig_is_named(place: Path) -> None:
    with pytest.raises(BadKubeconfig, match="nowhere"):
        kubeconfig.load(place / "nowhere")


def test_the_files_of_the_variable_are_those_that_exist(place: Path) -> None:
    first, second = write(place, {}, "a"), write(place, {}, "b")
    listed = f"{place}/gone::{first}:{second}:{first}"
    assert kubeconfig.list_files({"KUBECONFIG": listed}) == (first, second)
    with pytest.raises(BadKubeconfig, match=r"no file of \$KUBECONFIG exists: .*gone"):
        kubeconfig.list_files({"KUBECONFIG": f"{place}/gone"})


def test_a_context_of_the_flags_is_used_for_the_namespace(place: Path) -> None:
    contexts = [CONTEXT, {"name": "y", "context": {"cluster": "c", "namespace": "there"}}]
    path = write(place, {**with_user({}), "contexts": contexts})
    assert kubeconfig.namespace(path) == ""
    assert kubeconfig.namespace(path, ContextChoice("y")) == "there"


@pytest.mark.parametrize(
    ("url", "exceptions", "found"),
    [
        ("https://api.example.com", "", "http://proxy:3128"),
        ("http://api.example.com", "", ""),  # only https_proxy is set
        ("https://localhost:6443", "", ""),
        ("https://127.0.0.1:6443", "", ""),
        ("https://[::1]:6443", "", ""),
        ("https://api.example.com", "*", ""),
        ("https://api.example.com", "example.com", ""),
        ("https://example.com", "example.com", ""),
        ("https://example.com", ".example.com", "http://proxy:3128"),
        ("https://api.example.com", " other.com , .example.com", ""),
        ("https://badexample.com", "example.com", "http://proxy:3128"),
        ("https://api.example.com:6443", "api.example.com:443", "http://proxy:3128"),
        ("https://api.example.com:6443", "api.example.com:6443", ""),
        ("https://10.1.2.3", "10.0.0.0/8", ""),
        ("https://10.1.2.3", "10.1.2.4", "http://proxy:3128"),
        ("https://10.1.2.3", "10.1.2.3", ""),
        ("https://10.1.2.3:6443", "10.1.2.3:443", "http://proxy:3128"),
    ],
)
def test_the_proxy_of_the_environment_has_gos_exceptions(url: str, exceptions: str, found: str) -> None:
    assert find_proxy(url, {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": exceptions}) == found


def test_a_proxy_is_parsed() -> None:
    assert Proxy.parse("socks5://u:p%40ss@h") == Proxy("socks5", "h", 1080, "u", "p@ss")
    assert str(Proxy.parse("http://u:secret@h:3128")) == "http://h:3128"
    with pytest.raises(ValueError, match="has no host"):
        Proxy.parse("http://")


# --- credentials, with the real API server


async def who_am_i(transport: HttpsTransport) -> str:
    review = await Client(transport).create(SelfSubjectReview())
    return review.status.user_info.username


def admin_of(path: str) -> dict[str, Any]:
    """The kubeconfig of the server's administrator."""
    config: dict[str, Any] = json.loads(Path(path).read_text())
    return config


def with_admin_user(path: str, user: dict[str, Any]) -> dict[str, Any]:
    """The same server, and another way to log in."""
    config = admin_of(path)
    config["users"][0]["user"] = user
    return config


def exec_user(place: Path, *answers: dict[str, Any] | str, **config: Any) -> dict[str, Any]:
    """A user with the plugin, which gives these answers."""
    (place / "plugin.py").write_text(PLUGIN)
    for number, answer in enumerate(answers):
        status = (
            answer
            if isinstance(answer, str)
            else json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": answer})
        )
        (place / f"answer-{number}").write_text(status)
    return {
        "exec": {**EXEC, "command": sys.executable, "args": [str(place / "plugin.py"), str(place)], **config}
    }


def runs_of(place: Path) -> list[Any]:
    return [json.loads(line) for line in (place / "runs").read_text().splitlines() if line]


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_a_plugins_token_is_used_until_it_expires(place: Path) -> None:
    async with https_apiserver() as api:
        token = api.server.admin_token
        fresh, old = (
            {"token": token, "expirationTimestamp": in_seconds(3600)},
            {
                "token": token,
                "expirationTimestamp": in_seconds(-1),
            },
        )
        for number, (answer, runs) in enumerate([(fresh, 1), ({"token": token}, 1), (old, 3)]):
            there = place / str(number)
            there.mkdir()
            path = write(there, with_admin_user(api.kubeconfig, exec_user(there, answer)))
            transport = kubeconfig.load(path)
            for _ in range(3):
                assert await who_am_i(transport) == "kubernetes-admin"
            assert len(runs_of(there)) == runs
            await transport.close()


async def test_a_rejected_token_of_a_plugin_is_renewed_once(place: Path) -> None:
    async with https_apiserver() as api:
        user = exec_user(place, {"token": "old"}, {"token": api.server.admin_token})
        transport = kubeconfig.load(write(place, with_admin_user(api.kubeconfig, user)))
        assert await who_am_i(transport) == "kubernetes-admin"
        assert len(runs_of(place)) == 2
        await transport.close()


async def test_a_plugin_whose_tokens_are_all_rejected_is_asked_twice_per_request(place: Path) -> None:
    async with https_apiserver() as api:
        user = exec_user(place, {"token": "old"}, {"token": "older"})
        transport = kubeconfig.load(write(place, with_admin_user(api.kubeconfig, user)))
        with pytest.raises(Unauthorized):
            await who_am_i(transport)
        assert len(runs_of(place)) == 2
        await transport.close()


async def test_a_plugins_certificate_is_presented_and_renewed(place: Path) -> None:
    async with https_apiserver() as api:
        answers = []
        for name in ("first", "second"):
            pair = api.server.authority.client(f"test-{name}", name, ("system:masters",))
            answers.append(
                {
                    "clientCertificateData": pair.cert.decode(),
                    "clientKeyData": pair.key.decode(),
                    "expirationTimestamp": in_seconds(-1 if name == "first" else 3600),
                }
            )
        user = exec_user(place, *answers)
        transport = kubeconfig.load(write(place, with_admin_user(api.kubeconfig, user)))
        assert [await who_am_i(transport) for _ in range(3)] == ["first", "second", "second"]
        await transport.close()


@pytest.mark.parametrize(
    ("answer", "config", "words"),
    [
        ("no json", {}, "does not print an ExecCredential|no ExecCredential"),
        ("{}", {}, "answers with no kind of no apiVersion, not of client.authentication.k8s.io/v1"),
        (json.dumps({"kind": "ExecCredential", "apiVersion": V1}), {}, "answers without a status"),
        ({}, {}, "neither a token nor a certificate"),
        ({"clientKeyData": "x"}, {}, "not with both"),
        ({"token": "t\n"}, {}, "a token that has a line break"),
        (
            {"token": "t", "expirationTimestamp": "2126-01-02T03:04:05"},
            {},
            r"no ExecCredential: .*timezone.*status\.expirationTimestamp",
        ),
        ({"clientKeyData": "x", "clientCertificateData": "y"}, {}, "certificate cannot be used"),
        ({}, {"args": ["-c", "raise SystemExit(4)"]}, "failed with exit code 4"),
        (
            {},
            {"command": "no-such-plugin", "installHint": "\x1b[1mInstall it.\x1b[0m"},
            "not installed\n\nInstall it.",
        ),
        ({}, {"command": "./plugin.py"}, "Permission denied|not installed"),
        ({}, {"interactiveMode": "Always"}, "asks for input"),
    ],
)
async def test_a_plugin_that_fails_is_named_with_the_reason(
    place: Path, answer: dict[str, Any] | str, config: dict[str, Any], words: str
) -> None:
    transport = kubeconfig.load(write(place, with_user(exec_user(place, answer, **config))))
    with pytest.raises(Unauthorized, match=words):
        await Client(transport).list(Namespace)
    await transport.close()


async def test_a_plugin_beside_the_kubeconfig_is_found_by_a_relative_path(place: Path) -> None:
    (place / "bin").mkdir()
    script = place / "bin" / "login"
    answer = {"kind": "ExecCredential", "apiVersion": V1, "status": {"token": "$WORD"}}
    script.write_text(f"#!/bin/sh\ncat <<E\n{json.dumps(answer)}\nE\n")
    script.chmod(0o700)
    async with https_apiserver() as api:
        own = {**EXEC, "command": "./bin/login", "env": [{"name": "WORD", "value": api.server.admin_token}]}
        transport = kubeconfig.load(write(place, with_admin_user(api.kubeconfig, {"exec": own})))
        assert await who_am_i(transport) == "kubernetes-admin"
        await transport.close()


async def test_an_oidc_token_is_sent_while_it_is_valid(place: Path) -> None:
    provider = {"name": "oidc", "config": {"id-token": make_jwt(time.time() + 600)}}
    async with https_apiserver() as api:
        config = with_admin_user(api.kubeconfig, {"auth-provider": provider})
        transport = kubeconfig.load(write(place, config))
        with pytest.raises(Unauthorized):  # the server has not issued it
            await who_am_i(transport)
        await transport.close()


async def test_a_pod_uses_its_renewed_token(place: Path) -> None:
    async with https_apiserver() as api:
        (place / "ca.crt").write_bytes(api.server.ca)
        (place / "token").write_text("old")
        env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.server.port)}
        assert kubeconfig.is_in_cluster(place, env)
        transport = kubeconfig.in_cluster(place, env=env)
        with pytest.raises(Unauthorized):
            await who_am_i(transport)
        (place / "token").write_text(api.server.admin_token)
        assert await who_am_i(transport) == "kubernetes-admin"
        await transport.close()


async def test_a_kubeconfigs_user_can_act_as_another(place: Path) -> None:
    async with https_apiserver() as api:
        login = admin_of(api.kubeconfig)["users"][0]["user"]
        config = with_admin_user(api.kubeconfig, {**login, "as": "jane", "as-groups": ["system:masters"]})
        transport = kubeconfig.load(write(place, config))
        assert await who_am_i(transport) == "jane"
        await transport.close()


@pytest.mark.parametrize("case", ["a directory", "below a file", "its lock"])
def test_a_kubeconfig_that_cannot_be_written_is_named(place: Path, case: str) -> None:
    source, target = write(place, with_user({"token": "t"}), "source"), place / "config"
    if case == "a directory":
        target.mkdir()
    elif case == "below a file":
        target.touch()
        target = target / "config"
    else:
        target = place / ("x" * 252)  # and .lock is too long for a name
    with pytest.raises(
        BadKubeconfig, match=rf"{place}.*(Is a directory|File exists|too long|Not a directory)"
    ):
        update.add_context(target, source, "volplane")
    assert not list(place.glob("*.lock"))
