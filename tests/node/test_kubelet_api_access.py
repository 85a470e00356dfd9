"""Who may use the kubelet's API: certificates, tokens and permissions, which the API server decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv, node_env, read
from tests.node.test_pods import shell
from volplane.api.authentication import TokenRequest
from volplane.api.codec import convert
from volplane.api.core import Node, ServiceAccount
from volplane.api.rbac import ClusterRole, ClusterRoleBinding
from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.node.api.authorization import list_attributes
from volplane.node.api.expiring_cache import MAX_ENTRIES, ExpiringCache
from volplane.node.options import NodeOptions
from volplane.web import HttpClient
from volplane.web.tls import client_context

pytestmark = pytest.mark.root


@asynccontextmanager
async def connected(here: NodeEnv, **tls: Any) -> AsyncIterator[HttpClient]:
    """A client of the node's API, which does not know the node's certificate."""
    port = (await here.client.get(Node, NODE)).status.daemon_endpoints.kubelet_endpoint.port
    http = HttpClient(f"https://127.0.0.1:{port}", ssl=client_context(verify=False, **tls))
    try:
        yield http
    finally:
        await http.close()


async def make_account(here: NodeEnv, name: str, *resources: str) -> str:
    """A token of a service account that may get these resources."""
    meta = {"name": name, "namespace": "default"}
    await here.client.create(convert(ServiceAccount, {"metadata": meta}))
    rules = [{"apiGroups": [""], "resources": list(resources), "verbs": ["get"]}] if resources else []
    await here.client.create(convert(ClusterRole, {"metadata": {"name": name}, "rules": rules}))
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    await here.client.create(convert(ClusterRoleBinding, binding))
    made = await here.client.create(
        TokenRequest(), namespace="default", name=name, subresource="token", of=ServiceAccount
    )
    return made.status.token


async def ask(http: HttpClient, path: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return (await http.request("GET", path, headers=headers)).status


async def test_a_token_is_reviewed_and_gives_what_its_account_may() -> None:
    async with node_env(https=True) as here:
        await here.start(enable_server=True)
        metrics = await make_account(here, "prometheus", "nodes/metrics")
        everything = await make_account(here, "debugger", "nodes/proxy")
        nothing = await make_account(here, "nothing")
        async with connected(here) as http:
            assert [await ask(http, "/metrics", t) for t in (metrics, everything, nothing)] == [200, 403, 403]
            assert [await ask(http, "/pods", t) for t in (metrics, everything, nothing)] == [403, 200, 403]
            assert (
                await ask(http, "/containerLogs/default/app/main", everything) == 404
            )  # there is no such pod
            assert await ask(http, "/containerLogs/default/app/main", metrics) == 403
            assert await ask(http, "/%6Detrics", everything) == 403  # a path that is written differently
            assert await ask(http, "/%6Detrics", metrics) == 200
            for wrong in ("", "x", metrics[:-4] + "AAAA"):
                assert await ask(http, "/metrics", wrong) == 401
            said = (await http.request("GET", "/pods", headers={"Authorization": f"Bearer {metrics}"})).body
            user = "system:serviceaccount:default:prometheus"
            assert said == (
                f"Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[pods proxy])\n".encode()
            )
            await here.client.delete(ClusterRoleBinding, "prometheus")
            assert await ask(http, "/metrics", metrics) == 200  # remembered for a while


async def test_options_turn_each_check_off() -> None:
    async with node_env(https=True) as here:
        await here.start(enable_server=True, anonymous_auth=True, authentication_token_webhook=False)
        token = await make_account(here, "prometheus", "nodes/metrics")
        async with connected(here) as http:
            assert await ask(http, "/metrics") == 403  # as system:anonymous
            assert await ask(http, "/metrics", token) == 401
        await here.stop()
        await here.start(enable_server=True, anonymous_auth=True, authorization_mode="AlwaysAllow")
        async with connected(here) as http:
            assert await ask(http, "/metrics") == 200
            assert await ask(http, "/metrics", "x") == 401
        await here.stop()
        await here.start(enable_server=True, authorization_mode="AlwaysAllow")
        async with connected(here) as http:
            assert await ask(http, "/metrics") == 401
    with pytest.raises(ValueError, match="--authorization-mode must be Webhook or AlwaysAllow, not 'RBAC'"):
        NodeOptions(authorization_mode="RBAC")


async def test_the_groups_of_a_client_certificate_count() -> None:
    async with node_env(https=True) as here:
        authority = CertificateAuthority(Path(here.directory) / "pki")
        await here.start(enable_server=True, client_ca_file=str(authority.pair.cert_path))
        for name, groups, expected in (
            ("admin", ("system:masters",), 200),
            ("somebody", ("people",), 403),
            ("kube-apiserver", (), 200),
        ):
            pair = authority.client(f"client-{name}", name, groups)
            async with connected(here, cert=str(pair.cert_path), key=str(pair.key_path)) as http:
                assert await ask(http, "/pods") == expected, name


async def test_a_node_without_a_certificate_signs_its_own_and_keeps_it() -> None:
    async with node_env(https=True) as here:
        await here.start(enable_server=True)
        token = await make_account(here, "debugger", "nodes/proxy")
        file = f"{here.paths.root}/pki/kubelet.crt"
        first = read(file)
        async with connected(here) as http:
            assert await ask(http, "/healthz", token) == 200
        await here.stop()
        await here.start(enable_server=True)
        assert read(file) == first
        await here.stop()
        await here.start(enable_server=True, node_ip="127.0.0.2")
        assert read(file) != first
        await here.stop()
        await here.start()
        assert (await here.client.get(Node, NODE)).status.daemon_endpoints.kubelet_endpoint.port == 0


def test_the_port_is_that_of_every_kubelet() -> None:
    assert (NodeOptions().port, NodeOptions().enable_server) == (10250, True)


async def test_usage_is_there_for_metrics_server_and_prometheus() -> None:
    async with node_env(https=True) as here:
        await here.start(enable_server=True)
        token = await make_account(here, "prometheus", "nodes/metrics")
        burn = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; (sleep 1000 & wait)"
        await here.pod(container=shell(burn))
        await here.pod("builtin")  # it has no processes
        await here.wait_until_ready()
        async with connected(here) as http:

            async def values(path: str) -> dict[tuple[str, str], float]:
                reply = await http.request("GET", path, headers={"Authorization": f"Bearer {token}"})
                families = text_string_to_metric_families(reply.body.decode())
                return {(s.name, s.labels.get("pod", "")): s.value for f in families for s in f.samples}

            async def has_used_some() -> dict[tuple[str, str], float] | None:
                found = await values("/metrics/resource")
                return found if found.get(("container_cpu_usage_seconds_total", "app"), 0) > 0 else None

            found = await until(has_used_some)
            assert found["pod_cpu_usage_seconds_total", "app"] > 0
            assert found["container_memory_working_set_bytes", "app"] > 100_000
            assert found["container_start_time_seconds", "app"] > 1e9
            assert found["node_cpu_usage_seconds_total", ""] > 0
            assert found["node_memory_working_set_bytes", ""] > 0
            assert found["resource_scrape_error", ""] == 0
            assert ("pod_cpu_usage_seconds_total", "builtin") not in found
            shown = await values("/metrics/cadvisor")
            assert shown["container_cpu_usage_seconds_total", "app"] > 0
            assert shown["machine_cpu_cores", ""] >= 1


@pytest.mark.parametrize(
    ("method", "first", "verb", "subresources"),
    [
        ("GET", "metrics", "get", ["metrics"]),
        ("GET", "stats", "get", ["stats"]),
        ("GET", "logs", "get", ["log"]),
        ("POST", "checkpoint", "create", ["checkpoint"]),
        ("GET", "healthz", "get", ["healthz", "proxy"]),
        ("GET", "pods", "get", ["pods", "proxy"]),
        ("GET", "runningpods", "get", ["pods", "proxy"]),
        ("POST", "exec", "create", ["proxy"]),
        ("GET", "containerLogs", "get", ["proxy"]),
        ("DELETE", "", "delete", ["proxy"]),
    ],
)
def test_what_a_request_accesses(method: str, first: str, verb: str, subresources: list[str]) -> None:
    found = list_attributes(method, first, "n1")
    assert [each.subresource for each in found] == subresources
    assert {(each.verb, each.resource, each.name, each.group) for each in found} == {
        (verb, "nodes", "n1", "")
    }


@pytest.mark.virtual
async def test_answers_expire_and_their_number_is_limited() -> None:
    cache: ExpiringCache[int, str] = ExpiringCache()
    cache.put(1, "one", 10)
    await asyncio.sleep(9)
    assert cache.get(1) == "one"
    await asyncio.sleep(2)
    assert cache.get(1) is None
    for number in range(MAX_ENTRIES + 5):
        cache.put(number, "x", 10)
    assert (cache.get(4), cache.get(5)) == (None, "x")
