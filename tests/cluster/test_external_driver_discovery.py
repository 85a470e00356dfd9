"""Discovery of real drivers, and error messages for programs that are not drivers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import peers
from volplane.cluster import external_driver
from volplane.cluster.external_driver import Command, DiscoveredDriver, ExternalDriver, InvalidDriver

pytestmark = pytest.mark.root

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "04-your-own-driver"


def python(*words: str) -> Command:
    """The Python interpreter of the tests, with the sources."""
    path = os.pathsep.join(p for p in sys.path if p)
    return Command((sys.executable, *words), {"PYTHONPATH": path}, str(EXAMPLE))


FOLDERS = python("driver.py", "${CSI_ENDPOINT}", "${NODE_ID}", "${SHARED_DIR}")


def both(command: Command, **fields: str) -> ExternalDriver:
    return ExternalDriver(controller=command, node=command, **fields)  # type: ignore[arg-type]


async def discover(line: str, patience: float = 60.0) -> DiscoveredDriver:
    return await external_driver.discover_driver(external_driver.from_command(line), patience=patience)


async def test_a_driver_tells_what_it_is() -> None:
    facts = await external_driver.discover_driver(both(FOLDERS), patience=60)
    assert (facts.name, facts.version) == ("folders.example.com", "1.0")
    assert facts.provisions
    assert not facts.attaches
    assert not facts.has_topology
    assert facts.node_id == "probe"


@pytest.mark.peer("hostpathplugin")
async def test_upstreams_driver_tells_what_it_is_and_leaves_nothing() -> None:
    there = _has_data()
    program = peers.path("hostpathplugin")
    facts = await discover(f"{program} --endpoint=$CSI_ENDPOINT --nodeid=$NODE_ID --attach-limit=7")
    assert facts.name == "hostpath.csi.k8s.io"
    assert facts.topology == {"topology.hostpath.csi/node": "probe"}
    assert facts.is_local
    assert facts.snapshots
    assert facts.expands
    assert facts.max_volumes == 7
    assert _has_data() is there


def _has_data() -> bool:
    return os.path.exists("/csi-data-dir")


async def test_the_two_sides_are_asked_apart() -> None:
    node = python("driver.py", "${CSI_ENDPOINT}", "${NODE_ID}-node", "${SHARED_DIR}")
    facts = await external_driver.discover_driver(ExternalDriver(controller=FOLDERS, node=node), patience=60)
    assert facts.provisions
    assert facts.node_id == "probe-node"


async def test_a_driver_under_another_name_than_was_said() -> None:
    with pytest.raises(
        InvalidDriver, match=r"is described as x.example.com, but its name is folders.example.com"
    ):
        await external_driver.discover_driver(both(FOLDERS, name="x.example.com"), patience=60)


async def test_one_that_dies_at_once_is_quoted() -> None:
    with pytest.raises(
        InvalidDriver, match=r"(?s)ended with code 3 before it was queried.*its log:.*no disk"
    ):
        await discover("sh -c 'echo no disk >&2; exit 3'")


async def test_one_that_never_listens() -> None:
    with pytest.raises(
        InvalidDriver, match=r"does not listen at \$CSI_ENDPOINT .* after 0.5 s; it has logged nothing"
    ):
        await discover("sleep 100", patience=0.5)


NOT_CSI = """
import socket
with socket.socket(socket.AF_UNIX) as s:
    s.bind("/csi/csi.sock")
    s.listen()
    while True:
        s.accept()[0].sendall(b"HTTP/1.0 400 Bad Request\\r\\n\\r\\n")
"""


async def test_one_that_speaks_something_else() -> None:
    with pytest.raises(InvalidDriver, match="listens, but does not implement CSI"):
        await external_driver.discover_driver(both(python("-c", NOT_CSI)), patience=60)


NAMELESS = """
import asyncio
from volplane import sdk
from volplane.sdk import v1

class Nameless(sdk.Driver):
    name, version = "x.example.com", "1"
    async def node_get_info(self, request):
        return v1.NodeGetInfoResponse(node_id="n")
    async def node_publish_volume(self, request): ...
    async def node_unpublish_volume(self, request): ...

driver = Nameless()
driver.name = {name!r}
asyncio.run(sdk.serve(driver, "/csi/csi.sock"))
"""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "does not follow CSI: GetPluginInfo: the reply is not valid: name is empty"),
        ("no name!", "GetPluginInfo: the reply is not valid: name 'no name!' is not a domain name"),
        ("A..example", 'name "A..example" is invalid'),
    ],
)
async def test_one_without_a_name(name: str, why: str) -> None:
    with pytest.raises(InvalidDriver, match=why):
        await external_driver.discover_driver(both(python("-c", NAMELESS.format(name=name))), patience=60)
