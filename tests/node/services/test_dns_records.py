"""Each name of Kubernetes' DNS specification, and what is found for it."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from tests.node.services.names import small_shop
from volplane.node.services.dns.records import DnsResult, DnsZone, look_up

ZONE = DnsZone("cluster.local", (IPv4Network("10.96.0.0/12"), IPv4Network("10.1.0.0/16")))
SVC = "shop.svc.cluster.local"
GONE = None  # the name does not exist
WEB = f"web.{SVC}"


def found(name: str, type: str) -> list[str] | None:
    """The records as `NAME? TYPE VALUE[:PORT]`; the name only if it is another."""
    answer = look_up(ZONE, name, type, small_shop())
    if answer.result is DnsResult.NO_SUCH_NAME:
        assert answer.records == ()
        return GONE
    return [f"{r.type} {r.value}" + (f":{r.port}" if r.port else "") for r in answer.records]


@pytest.mark.parametrize(
    ("name", "type", "expected"),
    [
        # a Service with an address
        (WEB, "A", ["A 10.96.0.7"]),
        (WEB, "AAAA", []),
        (WEB, "ANY", ["A 10.96.0.7"]),
        (WEB, "SRV", [f"SRV {WEB}:80", f"SRV {WEB}:81"]),
        (f"_http._tcp.{WEB}", "SRV", [f"SRV {WEB}:80"]),
        (f"_http._tcp.{WEB}", "A", []),
        (f"_admin._tcp.{WEB}", "SRV", [f"SRV {WEB}:81"]),
        (f"_http._udp.{WEB}", "SRV", GONE),
        (f"_other._tcp.{WEB}", "SRV", GONE),
        (f"_tcp.{WEB}", "SRV", []),
        (f"_udp.{WEB}", "SRV", GONE),
        (f"a.b.c.{WEB}", "A", GONE),
        # a headless Service: the names of its ready endpoints
        (f"db.{SVC}", "A", ["A 10.1.0.1", "A 10.1.0.2", "A 10.1.8.8"]),
        (f"db-0.db.{SVC}", "A", ["A 10.1.0.1"]),
        (f"db-1.db.{SVC}", "AAAA", []),
        (f"db-late.db.{SVC}", "A", GONE),
        (f"10-1-8-8.db.{SVC}", "A", ["A 10.1.8.8"]),
        (f"_sql._tcp.db.{SVC}", "SRV", [f"SRV {h}.db.{SVC}:5432" for h in ("db-0", "db-1", "10-1-8-8")]),
        (f"idle.{SVC}", "A", GONE),
        (f"_sql._tcp.idle.{SVC}", "SRV", GONE),
        # one that is only another name
        (f"elsewhere.{SVC}", "A", ["CNAME db.example.com"]),
        # what is around them
        (f"none.{SVC}", "A", GONE),
        (f"db-0.none.{SVC}", "A", GONE),
        ("web.other.svc.cluster.local", "A", GONE),
        (SVC, "A", []),
        ("other.svc.cluster.local", "A", GONE),
        ("svc.cluster.local", "A", []),
        ("cluster.local", "A", []),
        ("web.cluster.local", "A", GONE),
        ("dns-version.cluster.local", "TXT", ["TXT 1.1.0"]),
        # pods by their addresses
        ("10-1-2-3.shop.pod.cluster.local", "A", ["A 10.1.2.3"]),
        ("10-1-2-3.shop.pod.cluster.local", "AAAA", []),
        ("10-1-2-300.shop.pod.cluster.local", "A", GONE),
        ("shop.pod.cluster.local", "A", []),
        # addresses
        ("7.0.96.10.in-addr.arpa", "PTR", [f"PTR {WEB}"]),
        ("7.0.96.10.in-addr.arpa", "A", []),
        ("2.0.1.10.in-addr.arpa", "PTR", [f"PTR db-1.db.{SVC}"]),
        ("8.0.96.10.in-addr.arpa", "PTR", GONE),
        ("9.9.1.10.in-addr.arpa", "PTR", GONE),  # not ready
    ],
)
def test_a_name_is_looked_up(name: str, type: str, expected: list[str] | None) -> None:
    assert ZONE.owns(name)
    assert found(name, type) == expected


def test_an_srv_record_comes_with_the_addresses_of_its_targets() -> None:
    answer = look_up(ZONE, f"_sql._tcp.db.{SVC}", "SRV", small_shop())
    assert [(r.name, r.value) for r in answer.additional][:2] == [
        (f"db-0.db.{SVC}", "10.1.0.1"),
        (f"db-1.db.{SVC}", "10.1.0.2"),
    ]


@pytest.mark.parametrize(
    "name",
    ["example.com", "local", "xcluster.local", "", "1.2.3.4.in-addr.arpa", "x.in-addr.arpa", "in-addr.arpa"],
)
def test_all_other_names_are_forwarded(name: str) -> None:
    assert not ZONE.owns(name)
