"""Which endpoints of a Service get its traffic."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api.codec import convert
from volplane.api.core import Service, ServicePort
from volplane.api.discovery import EndpointSlice
from volplane.rules import service_endpoints as rules
from volplane.rules.service_endpoints import PortTarget

READY, NOT_READY, UNKNOWN = {"ready": True}, {"ready": False, "serving": False}, dict[str, bool]()
ENDING = {"ready": False, "serving": True, "terminating": True}


def slice_of(
    *endpoints: dict[str, Any], name: str = "", port: int = 8080, kind: str = "IPv4"
) -> EndpointSlice:
    body = {
        "metadata": {"name": "x", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": kind,
        "endpoints": list(endpoints),
        "ports": [{"name": name, "port": port, "protocol": "TCP"}],
    }
    return convert(EndpointSlice, body)


def endpoint(address: str, conditions: dict[str, bool], **more: Any) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, **more}


PORT = ServicePort(name="", port=80, protocol="TCP")
A, B = PortTarget("10.0.0.1", 8080), PortTarget("10.0.0.2", 8080)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((READY, READY), [A, B]),
        ((READY, NOT_READY), [A]),
        ((READY, ENDING), [A]),  # a pod that ends gets new connections only if there is no other
        ((NOT_READY, ENDING), [B]),
        ((UNKNOWN, NOT_READY), [A]),
        ((NOT_READY, NOT_READY), []),
    ],
)
def test_ready_endpoints_come_before_those_that_end(
    conditions: tuple[dict[str, bool], dict[str, bool]], expected: list[PortTarget]
) -> None:
    first, second = conditions
    given = slice_of(endpoint("10.0.0.1", first), endpoint("10.0.0.2", second))
    assert rules.find_targets(PORT, [given]) == expected


def test_a_port_is_found_by_its_name_and_protocol() -> None:
    web = slice_of(endpoint("10.0.0.1", READY), name="web", port=80)
    admin = slice_of(endpoint("10.0.0.1", READY), name="admin", port=81)
    assert rules.find_targets(ServicePort(name="admin", port=1), [web, admin]) == [PortTarget("10.0.0.1", 81)]
    assert rules.find_targets(ServicePort(name="admin", port=1, protocol="UDP"), [web, admin]) == []
    assert rules.find_targets(PORT, [web, admin]) == []


def test_the_names_of_ready_endpoints() -> None:
    other = slice_of(endpoint("fd00::1", READY), kind="IPv6")
    here = slice_of(
        endpoint("10.0.0.1", READY, hostname="db-0"),
        endpoint("10.0.0.2", NOT_READY),
        endpoint("10.0.0.3", READY),
    )
    ready = rules.list_ready([other, here])
    assert [rules.endpoint_hostname(each) for each in ready] == ["db-0", "10-0-0-3"]


def test_addresses_of_other_families_and_nodes_are_left_out() -> None:
    other = slice_of(endpoint("fd00::1", READY), kind="IPv6")
    here = slice_of(endpoint("10.0.0.1", READY, nodeName="a"), endpoint("10.0.0.2", READY, nodeName="b"))
    assert rules.find_targets(PORT, [other, here]) == [A, B]
    assert rules.find_targets(PORT, [here], node="b") == [B]


@pytest.mark.parametrize(
    ("spec", "address", "headless"),
    [
        ({"clusterIP": "10.96.0.5"}, "10.96.0.5", False),
        ({"clusterIP": "None"}, "", True),
        ({"clusterIP": "fd00::5"}, "", False),
        ({"type": "ExternalName", "externalName": "x.org"}, "", False),
        ({}, "", False),
    ],
)
def test_which_services_have_an_address(spec: dict[str, Any], address: str, headless: bool) -> None:
    service = convert(Service, {"metadata": {"name": "x"}, "spec": spec})
    assert (rules.cluster_address(service), rules.is_headless(service)) == (address, headless)


@pytest.mark.parametrize(
    ("label", "address"),
    [("10-1-2-3", "10.1.2.3"), ("10.1.2.3", ""), ("10-1-2", ""), ("a-b-c-d", ""), ("10-1-2-300", "")],
)
def test_an_address_with_dashes(label: str, address: str) -> None:
    assert rules.parse_dashed(label) == address


def test_a_slice_without_a_service_has_no_key() -> None:
    assert rules.service_key(slice_of()) == ["default/web"]
    assert rules.service_key(convert(EndpointSlice, {"metadata": {"name": "x", "namespace": "d"}})) == []
