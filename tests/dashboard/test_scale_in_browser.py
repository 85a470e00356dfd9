"""The page with many volumes: readable, and cheap when one of them changes.

50 volumes on 3 nodes always; 500 volumes on 30 nodes with VOLPLANE_LARGE_PAGE=1, as they take minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.conftest import SCREENSHOTS
from tests.dashboard.viewer import Viewer, claim_and_pod, pod
from tests.support.browser import open_browser
from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("chromium", "chromedriver", "kubectl")]

SIZES = [pytest.param((3, 50), id="50 volumes")]
if os.environ.get("VOLPLANE_LARGE_PAGE"):
    SIZES.append(pytest.param((30, 500), id="500 volumes"))
BATCH = 50
PATIENCE = 600.0
MOST_BYTES = 1_500_000  # of a page
MOST_UPDATE = 120_000  # bytes of all updates while one pod moves


@pytest.fixture(scope="module", params=SIZES)
def crowded(request: pytest.FixtureRequest) -> Iterator[tuple[Viewer, int, int]]:
    """A page, the number of nodes, and the number of volumes."""
    nodes, volumes = request.param
    shots = os.environ.get(SCREENSHOTS)
    with Up("--journey-max-size", "64Mi", nodes=nodes) as up, open_browser() as browser:
        for first in range(0, volumes, BATCH):
            names = [f"data-{number:03}" for number in range(first, min(first + BATCH, volumes))]
            up.apply("".join(claim_and_pod(name) for name in names))
            last = names[-1]
            up.kubectl("wait", "--for=condition=Ready", "pod", f"{last}-pod", f"--timeout={PATIENCE:.0f}s")
        up.kubectl("wait", "--for=condition=Ready", "pod", "--all", f"--timeout={PATIENCE:.0f}s")
        yield Viewer(up, browser, Path(shots) if shots else None), nodes, volumes
        # A cluster has a minute to stop, which is too short for hundreds of pods on a busy machine.
        up.kubectl("delete", "pods", "--all", "--wait=false")
        up.kubectl("wait", "--for=delete", "pod", "--all", f"--timeout={PATIENCE:.0f}s")
        wait_until("volumes are detached", lambda: not up.items("volumeattachments"), PATIENCE)


def test_all_volumes_are_seen_at_their_nodes(crowded: tuple[Viewer, int, int]) -> None:
    viewer, nodes, volumes = crowded
    viewer.open("/cluster")
    viewer.browser.wait_for(f"document.getElementById('summary').innerText.includes('{volumes} mounted')")
    assert viewer.browser.count("article.node") == nodes
    assert viewer.browser.count("article.node [data-move]") == volumes
    viewer.take_screenshots(f"cluster-{volumes}")
    size: int = viewer.browser.run(
        "return new TextEncoder().encode(document.documentElement.outerHTML).length"
    )
    assert size < MOST_BYTES
    viewer.check_clean()


def test_the_page_is_not_wider_than_a_phone(crowded: tuple[Viewer, int, int]) -> None:
    viewer, _, _ = crowded
    viewer.browser.resize(390, 844)
    try:
        for path in (
            "/cluster",
            "/journeys",
            "/waiting",
            "/desired-and-actual",
            "/journey/pvc/default/data-001",
            "/journey/pvc/default/data-001?with=pvc/default/data-002",
            "/object/pvc/default/data-001",
        ):
            viewer.open(path)
            viewer.browser.wait_for("document.querySelector('h1')")
            width: int = viewer.browser.run("return document.documentElement.scrollWidth")
            assert width <= 390, path
    finally:
        viewer.browser.resize(1440, 900)


def test_one_pod_that_moves_sends_little_and_its_volume_is_seen_at_the_other_node(
    crowded: tuple[Viewer, int, int],
) -> None:
    viewer, _, _ = crowded
    up, browser = viewer.up, viewer.browser
    viewer.open("/cluster?density=list")
    node = up.get("pod", "data-007-pod")["spec"]["nodeName"]
    zone = up.get("node", node)["metadata"]["labels"]["topology.kubernetes.io/zone"]
    others = up.items("nodes", "-l", f"topology.kubernetes.io/zone={zone}")
    target = next((n["metadata"]["name"] for n in others if n["metadata"]["name"] != node), "")
    if not target:
        pytest.skip(f"zone {zone} has one node only")
    browser.wait_for(f"document.getElementById('node-{node}').innerText.includes('data-007')")
    browser.run(
        "window.sent = {bytes: 0, ids: new Set()};"
        "document.addEventListener('fragments', event => {"
        "  for (const [id, html] of Object.entries(event.detail)) {"
        "    sent.ids.add(id); sent.bytes += html.length;"
        "  }"
        "})"
    )
    up.kubectl("delete", "pod", "data-007-pod", "--wait=false")
    browser.wait_for(f"!document.getElementById('node-{node}').innerText.includes('data-007')")
    up.apply(pod("data-007-again", ["data-007"], f"nodeSelector: {{kubernetes.io/hostname: {target}}}"))
    browser.wait_for(f"document.getElementById('node-{target}').innerText.includes('data-007-again')")
    sent = browser.run("return {bytes: sent.bytes, ids: [...sent.ids]}")
    cards = {id for id in sent["ids"] if id.startswith("node-")}
    assert cards == {f"node-{node}", f"node-{target}"}
    assert sent["bytes"] < MOST_UPDATE, sent
    viewer.check_clean()


def test_a_filter_finds_one_of_many(crowded: tuple[Viewer, int, int]) -> None:
    viewer, _, _ = crowded
    for path, selector in (("/cluster", "article.node [data-move]"), ("/journeys", ".grid-row")):
        viewer.open(path)
        viewer.browser.press("/", "data-042")
        viewer.browser.wait_for(f"document.querySelectorAll('{selector}').length === 1")
    viewer.check_clean()
