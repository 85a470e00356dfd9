"""Services get addresses; the API server has its own Service."""

from __future__ import annotations

import ipaddress
from typing import Any

SERVICES = "/api/v1/namespaces/default/services"


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}, **spec}}


async def test_the_api_server_has_a_service_with_its_own_address(served: Any) -> None:
    async with served() as api:
        found = (await api.get(f"{SERVICES}/kubernetes")).json
        assert found["spec"]["clusterIP"] == "10.96.0.1"
        [port] = found["spec"]["ports"]
        assert (port["name"], port["port"], port["targetPort"]) == ("https", 443, api.server.port)
        path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
        held = (await api.get(path)).json
        assert held["metadata"]["labels"]["kubernetes.io/service-name"] == "kubernetes"
        assert held["endpoints"][0]["addresses"] == ["127.0.0.1"]
        assert held["ports"][0]["port"] == api.server.port
        endpoints = (await api.get("/api/v1/namespaces/default/endpoints/kubernetes")).json
        assert endpoints["subsets"][0]["addresses"] == [{"ip": "127.0.0.1"}]


async def test_a_service_gets_an_address_and_keeps_it(served: Any) -> None:
    async with served() as api:
        made = (await api.post(SERVICES, service("web"))).json
        spec = made["spec"]
        assert ipaddress.ip_address(spec["clusterIP"]) in ipaddress.ip_network("10.96.0.0/12")
        assert (spec["clusterIPs"], spec["ipFamilies"]) == ([spec["clusterIP"]], ["IPv4"])
        assert spec["ipFamilyPolicy"] == "SingleStack"
        replaced = await api.put(f"{SERVICES}/web", service("web", ports=[{"port": 81}]))
        assert replaced.json["spec"]["clusterIP"] == spec["clusterIP"]
        refused = await api.merge(f"{SERVICES}/web", {"spec": {"clusterIP": "10.96.7.7", "clusterIPs": None}})
        assert refused.status == 422
        assert "may not change once set" in refused.json["message"]


async def test_given_addresses_must_be_free_and_in_the_range(served: Any) -> None:
    async with served() as api:
        taken = await api.post(SERVICES, service("a", clusterIP="10.96.0.1"))
        assert taken.json["details"]["causes"][0]["message"].endswith("provided IP is already allocated")
        outside = await api.post(SERVICES, service("b", clusterIP="192.0.2.1"))
        assert "The range of valid IPs is 10.96.0.0/12" in outside.json["message"]
        assert (await api.post(SERVICES, service("c", clusterIP="x"))).status == 422
        assert (await api.post(SERVICES, service("d", clusterIP="10.96.3.3"))).status == 201


async def test_headless_external_and_node_port_services(served: Any) -> None:
    async with served() as api:
        headless = (await api.post(SERVICES, service("h", clusterIP="None"))).json["spec"]
        assert (headless["clusterIPs"], headless["ipFamilies"]) == (["None"], ["IPv4"])
        external = service("e", type="ExternalName", externalName="db.example")
        assert "clusterIP" not in (await api.post(SERVICES, external)).json["spec"]
        ports = (await api.post(SERVICES, service("n", type="NodePort"))).json["spec"]["ports"]
        assert 30000 <= ports[0]["nodePort"] <= 32767
