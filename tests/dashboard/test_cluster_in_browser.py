"""The cluster view in a real browser, of a real cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.dashboard.viewer import Viewer, claim_and_pod, issue_link, pod, run_verb
from tests.support.browser import Keys
from tests.support.up import Up
from volplane.explain.journey.model import Journey

# What another user of the machine may try: the sockets, the files, and the port.
NOBODY = 65534
STRANGER = """
import os, socket, sys, urllib.error, urllib.request
directory, port = sys.argv[1:]
for path in ("run/control.sock", "run/up.waits"):
    try:
        socket.socket(socket.AF_UNIX).connect(os.path.join(directory, path))
        print("connected")
    except OSError as error:
        print(type(error).__name__)
for path in ("kubeconfig", "cluster.json"):
    try:
        print(open(os.path.join(directory, path)).read())
    except OSError as error:
        print(type(error).__name__)
for path in ("/cluster", "/?token=guess"):
    try:
        print(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""

pytestmark = [pytest.mark.root, pytest.mark.peer("chromium", "chromedriver", "kubectl")]


@pytest.fixture(autouse=True)
def nothing_went_wrong(viewer: Viewer) -> Iterator[None]:
    """Scripts have not failed, and nothing was loaded from elsewhere, whatever a test has done."""
    viewer.log_in()
    viewer.browser.requests()
    viewer.browser.problems()
    yield
    viewer.check_clean()


def on(node: str, claim: str) -> str:
    """Whether the card of a node shows a volume, as JavaScript."""
    return f"document.getElementById('node-{node}').innerText.includes('{claim}')"


def test_a_pod_and_its_volume_appear_without_a_reload(cluster: Up, viewer: Viewer) -> None:
    viewer.open("/cluster")
    viewer.browser.run("window.same = true")
    cluster.apply(claim_and_pod("data", node="worker-1"))
    viewer.browser.wait_for(f"{on('worker-1', 'data')} && {on('worker-1', 'mounted')}")
    card = viewer.browser.text("#node-worker-1")
    assert "data-pod" in card
    assert "1 of 28" in card
    assert "1 mounted" in viewer.browser.text("#summary")
    assert "in-use" in viewer.browser.text("#disks")
    assert viewer.browser.run("return window.same") is True
    viewer.take_screenshots("cluster-1")


def test_a_volume_is_seen_moving_when_its_pod_moves(
    cluster: Up, viewer: Viewer, record_property: Callable[[str, object], None]
) -> None:
    """What is pushed to the page moves it: nothing is loaded again. How long that takes is reported."""
    cluster.apply(claim_and_pod("mobile", node="worker-1"))
    viewer.open("/cluster")
    viewer.browser.wait_for(on("worker-1", "mobile"))
    viewer.browser.requests()
    viewer.browser.run(
        "window.seen = {};"
        "document.addEventListener('fragments', () => {"
        f"  if ({on('worker-2', 'mobile-again')}) seen.at ||= Date.now();"
        "})"
    )
    cluster.kubectl("delete", "pod", "mobile-pod", "--wait=false")
    viewer.browser.wait_for(f"!{on('worker-1', 'mobile')}")
    cluster.apply(pod("mobile-again", ["mobile"], "nodeSelector: {kubernetes.io/hostname: worker-2}"))
    viewer.browser.wait_for(f"{on('worker-2', 'mobile')} && {on('worker-2', 'mobile-again')}")
    assert "mobile" not in viewer.browser.text("#node-worker-1")
    seen: float = viewer.browser.run("return seen.at") / 1000  # undefined if the page was loaded again
    pages = [address for address in viewer.browser.requests() if "/cluster" in address]
    assert pages == [], "the page has asked for what it should be sent"
    (journey,) = msgspec.json.decode(
        run_verb(cluster, "journey", "pvc/mobile", "--all", "-o", "json"), type=list[Journey]
    )
    placed = max(s.at for s in journey.steps if any(c.field == "spec.nodeName" for c in s.changes))
    record_property(
        "seconds from the pod's binding until the page shows it", round(seen - placed.timestamp(), 3)
    )


def test_a_lost_node_is_obvious_and_so_is_its_return(cluster: Up, viewer: Viewer) -> None:
    for name, size in (("orders-db", "20Gi"), ("search-index", "8Gi")):
        cluster.apply(claim_and_pod(name, node="worker-3", size=size))
        cluster.wait_running(f"{name}-pod")
    cluster.apply(claim_and_pod("sessions", node="worker-1", size="4Gi"))
    cluster.apply(claim_and_pod("uploads", node="worker-2", size="50Gi", cls="io2"))
    cluster.wait_running("uploads-pod")
    viewer.open("/cluster")
    viewer.browser.wait_for(f"{on('worker-3', 'orders-db')} && {on('worker-3', 'search-index')}")
    run_verb(cluster, "crash", "node/worker-3")
    viewer.browser.wait_for(
        "document.querySelector('#node-worker-3.lost')?.innerText.includes('unreachable')"
    )
    assert "1 lost" in viewer.browser.text("#summary")
    assert viewer.browser.text("#node-worker-3").count("not known") == 2  # what it does with its volumes
    viewer.take_screenshots("cluster-lost")
    taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    cluster.kubectl("taint", "node", "worker-3", taint)
    viewer.browser.wait_for("document.querySelector('#node-worker-3.fenced')?.innerText.includes('Fenced')")
    cluster.kubectl("taint", "node", "worker-3", f"{taint}-")
    run_verb(cluster, "start", "node/worker-3")
    viewer.browser.wait_for("!document.querySelector('#node-worker-3.lost')")


def test_a_filter_is_applied_while_the_user_types(cluster: Up, viewer: Viewer) -> None:
    cluster.apply(claim_and_pod("wanted", node="worker-2"))
    viewer.open("/cluster")
    viewer.browser.press("/")
    assert viewer.browser.focused() == "Filter volumes, pods, nodes"
    viewer.browser.press("wanted")
    viewer.browser.wait_for("location.search.includes('q=wanted')")  # the filter of the whole word
    viewer.browser.wait_for(f"!document.getElementById('node-worker-1') && {on('worker-2', 'wanted')}")
    assert viewer.browser.focused() == "Filter volumes, pods, nodes"  # typing goes on
    viewer.browser.press(*[Keys.BACKSPACE] * len("wanted"))
    viewer.browser.wait_for("document.getElementById('node-worker-1')")


def test_the_keyboard_reaches_everything_in_reading_order(viewer: Viewer) -> None:
    viewer.open("/cluster")
    reached = []
    for _ in range(12):
        viewer.browser.press(Keys.TAB)
        reached.append(viewer.browser.focused())
    assert reached[:3] == ["Skip to content", "Volplane", "Cluster"]
    places = [reached.index(name) for name in ("Filter volumes, pods, nodes", "Auto", "worker-1")]
    assert places == sorted(places)
    viewer.open("/cluster")
    viewer.browser.press(Keys.TAB, Keys.ENTER)
    assert viewer.browser.run("return document.activeElement.id") == "main"


def test_the_page_has_landmarks_headings_and_announces_updates(cluster: Up, viewer: Viewer) -> None:
    viewer.open("/cluster")
    assert [viewer.browser.count(name) for name in ("header.top", "nav[aria-label]", "main", "h1")] == [
        1,
        1,
        1,
        1,
    ]
    assert viewer.browser.run("return document.documentElement.lang") == "en"
    unnamed = "svg:not([aria-hidden]):not([aria-label]), input:not([aria-label]):not([type=hidden]), a:empty"
    assert viewer.browser.count(unnamed) == 0
    cluster.apply(claim_and_pod("announced"))
    viewer.browser.wait_for("document.getElementById('announcement').textContent.includes('Cluster: ')")


def test_updates_stop_while_the_page_is_hidden_and_catch_up_after_that(cluster: Up, viewer: Viewer) -> None:
    viewer.open("/cluster")
    viewer.browser.run(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    cluster.apply(claim_and_pod("unseen"))
    cluster.wait_running("unseen-pod")
    assert "unseen" not in viewer.browser.text("main")
    viewer.browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    viewer.browser.wait_for("document.querySelector('main').innerText.includes('unseen')")


def test_a_page_of_a_cluster_that_ended_says_so_and_lives_again(viewer: Viewer, cluster: Up) -> None:
    """Another page than the module's: its own server is closed under the browser."""
    viewer.open("/cluster")
    address = issue_link(cluster)
    assert address.startswith(viewer.origin)
    with Up(nodes=0) as other:
        viewer.browser.open(issue_link(other))
        viewer.browser.wait_for("document.getElementById('connection').dataset.state === 'live'")
        port = other.memory().ui_port
        other.stop()
        viewer.browser.wait_for("document.getElementById('connection').dataset.state !== 'live'")
        viewer.browser.problems()  # the connection was refused
        other.start()
        assert other.memory().ui_port == port
        viewer.browser.wait_for("document.getElementById('connection').dataset.state === 'ended'")
        viewer.browser.open(issue_link(other))
        viewer.browser.wait_for("document.getElementById('connection').dataset.state === 'live'")
        viewer.browser.open("about:blank")
    viewer.browser.problems()
    viewer.browser.requests()


def test_ui_prints_an_address_and_only_the_owner_gets_one(cluster: Up) -> None:
    links = {issue_link(cluster), issue_link(cluster)}
    assert len(links) == 2
    port = cluster.memory().ui_port
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", STRANGER, str(cluster.directory), str(port)],
        capture_output=True,
        text=True,
        timeout=60,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={},
    )
    assert done.stdout.split() == ["PermissionError"] * 4 + ["403", "403"], done.stdout + done.stderr
