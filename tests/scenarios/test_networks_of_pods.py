"""Two databases on one port, on two nodes of one machine, as a user sees them; and what a crash leaves."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
import yaml

from tests.node.test_pod_network import server
from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl")]

PORT = 5432
# A pod without an account of its own would read the token and the CA from the same place.
ASK = r"""
use IO::Socket::INET; $| = 1;
my $at = "$ENV{KUBERNETES_SERVICE_HOST}:$ENV{KUBERNETES_SERVICE_PORT}";
my $s = IO::Socket::INET->new($at) or die "no API server at $at: $!";
print "reached\n"; sleep 1000;
"""


def database(number: int) -> str:
    main = server(f"database {number}", readinessProbe={"tcpSocket": {"port": PORT}, "periodSeconds": 1})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"db-{number}"},
        "spec": {"nodeName": f"worker-{number}", "containers": [main], "terminationGracePeriodSeconds": 5},
    }
    return yaml.safe_dump(pod)


def address_of(up: Up, pod: str) -> str:
    """When it is ready."""

    def ready() -> str:
        status = up.get("pod", pod)["status"]
        fit = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
        return str(status["podIP"]) if fit else ""

    return str(wait_until(f"{pod} is ready", ready, 120))


def heard(address: str, port: int = PORT) -> str:
    with suppress(OSError), socket.create_connection((address, port), timeout=60) as connection:
        return connection.recv(100).decode()
    return ""


@contextmanager
def forwarded(up: Up, pod: str) -> Iterator[int]:
    """The local port that leads into the pod."""
    argv = ["kubectl", "--kubeconfig", up.kubeconfig, "port-forward", f"pod/{pod}", f":{PORT}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # Forwarding from 127.0.0.1:40713 -> 5432
            yield int(line.split(" -> ")[0].rsplit(":", 1)[1])
        finally:
            process.terminate()


def test_two_databases_on_one_port_through_a_crash_to_a_clean_end() -> None:
    with Up(nodes=2) as up:
        for number in (1, 2):
            up.apply(database(number))
        addresses = [address_of(up, f"db-{number}") for number in (1, 2)]
        words = ["database 1", "database 2"]
        assert [heard(address) for address in addresses] == words
        shares = [IPv4Network(n["spec"]["podCIDR"]) for n in up.items("nodes")]
        assert [IPv4Address(a) in share for a, share in zip(addresses, shares, strict=True)] == [True, True]
        wide = up.kubectl("get", "pods", "-o", "wide")
        assert all(address in wide for address in addresses)
        for number in (1, 2):
            with forwarded(up, f"db-{number}") as port:
                assert heard("127.0.0.1", port) == f"database {number}"
        ask = {"name": "ask", "image": "x", "command": ["perl", "-e", ASK]}
        up.apply(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "ask"},
                    "spec": {"containers": [ask]},
                }
            )
        )
        wait_until("the pod reaches the API server", lambda: "reached" in up.kubectl("logs", "ask"), 120)

        up.kill()
        assert [heard(address) for address in addresses] == words
        up.start()
        assert [address_of(up, f"db-{number}") for number in (1, 2)] == addresses
        assert [heard(address) for address in addresses] == words
        with forwarded(up, "db-1") as port:
            assert heard("127.0.0.1", port) == "database 1"
        assert up.stop() == 0
        assert up.leftovers() == {}


def test_clusters_side_by_side_have_ranges_of_their_own(tmp_path: Path) -> None:
    with Up(nodes=1) as one, Up(nodes=1) as other:
        for up in (one, other):
            up.apply(database(1))
        mine, theirs = (address_of(up, "db-1") for up in (one, other))
        assert mine != theirs
        assert heard(mine) == heard(theirs) == "database 1"
        assert not IPv4Network(one.memory().pod_range).overlaps(IPv4Network(other.memory().pod_range))
