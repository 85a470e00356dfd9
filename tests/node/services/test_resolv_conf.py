"""A pod's resolver configuration follows its policy."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api.codec import convert
from volplane.api.core import Pod
from volplane.node.network.resolv_conf import ClusterDns, ResolvConf, make_resolv_conf, parse_resolv_conf

MACHINE = ResolvConf(("10.0.0.2",), ("example.com",), ("ndots:2", "edns0"))
CLUSTER = ClusterDns(("100.64.0.254",), "cluster.local")
GIVEN = ClusterDns(("10.96.0.10",), "kube.org", replaces_machine=False)
OWN = {"nameservers": ["1.1.1.1"], "searches": ["svc"], "options": [{"name": "ndots", "value": "7"}]}


def make_pod(policy: str, **spec: Any) -> Pod:
    body = {"metadata": {"name": "x", "namespace": "shop"}, "spec": {"dnsPolicy": policy, **spec}}
    return convert(Pod, body)


SEARCH = "search shop.svc.cluster.local svc.cluster.local cluster.local example.com"
FIRST = f"{SEARCH}\nnameserver 100.64.0.254\noptions ndots:5\n"


@pytest.mark.parametrize(
    ("pod", "cluster", "expected"),
    [
        (make_pod("ClusterFirst"), CLUSTER, FIRST),
        (make_pod("ClusterFirstWithHostNet"), CLUSTER, FIRST),
        (make_pod("ClusterFirst", hostNetwork=True), CLUSTER, None),
        (make_pod("ClusterFirstWithHostNet", hostNetwork=True), CLUSTER, FIRST),
        (make_pod("Default", hostNetwork=True), CLUSTER, None),
        # The machine's servers are out of reach, but not what they know.
        (
            make_pod("Default"),
            CLUSTER,
            "search example.com\nnameserver 100.64.0.254\noptions ndots:2 edns0\n",
        ),
        (make_pod("Default"), GIVEN, None),
        (
            make_pod("ClusterFirst"),
            GIVEN,
            "search shop.svc.kube.org svc.kube.org kube.org example.com\n"
            "nameserver 10.96.0.10\noptions ndots:5\n",
        ),
        (make_pod("ClusterFirst"), None, None),
        (make_pod("None", dnsConfig=OWN), CLUSTER, "search svc\nnameserver 1.1.1.1\noptions ndots:7\n"),
        (
            make_pod("ClusterFirst", dnsConfig=OWN),
            CLUSTER,
            f"{SEARCH} svc\nnameserver 100.64.0.254\nnameserver 1.1.1.1\noptions ndots:7\n",
        ),
        (
            make_pod("Default", dnsConfig=OWN, hostNetwork=True),
            CLUSTER,
            "search example.com svc\nnameserver 10.0.0.2\nnameserver 1.1.1.1\noptions ndots:7 edns0\n",
        ),
    ],
)
def test_the_file_of_a_pod(pod: Pod, cluster: ClusterDns | None, expected: str | None) -> None:
    made = make_resolv_conf(pod, MACHINE, cluster)
    assert (made.render() if made is not None else None) == expected
    assert made is None or parse_resolv_conf(made.render()) == made
