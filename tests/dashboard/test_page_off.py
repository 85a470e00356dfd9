"""`up --ui off`: no port, no address, and nothing that serves the page."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.up import Up

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl")]


def list_listening_ports(pid: int) -> set[int]:
    """The TCP ports on which a process listens, IPv4 and IPv6."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(entry.readlink().name)
        except FileNotFoundError:  # closed meanwhile
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def is_page(port: int) -> bool:
    """Whether what listens there is a live page, which refuses everybody without its address."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/?token=guess", timeout=30)
    except urllib.error.HTTPError as error:
        return "Content-Security-Policy" in error.headers
    except (OSError, ValueError):  # it speaks TLS, or no HTTP
        return False
    return False


@pytest.mark.parametrize("ui", ["on", "off"])
def test_without_the_page_nothing_serves_it(ui: str) -> None:
    with Up("--ui", ui, nodes=0) as up:
        ports = list_listening_ports(up.pid)
        assert up.memory().port in ports  # of the API server: the search finds what listens
        pages = {port for port in ports if is_page(port)}
        assert pages == ({up.memory().ui_port} if ui == "on" else set())
        assert bool(up.memory().ui_port) is (ui == "on")
        assert ("live page" in up.log(400)) is (ui == "on")
