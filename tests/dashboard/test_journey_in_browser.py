"""Journeys, waits, states and objects in a real browser, of a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboard.viewer import Viewer, claim_and_pod, issue_link, pod
from tests.support.browser import Keys
from tests.support.up import Up

pytestmark = [pytest.mark.root, pytest.mark.peer("chromium", "chromedriver", "kubectl")]

# What the articles draw, from left to right.
LANES = [
    "kubectl",
    "API server",
    "binder",
    "scheduler",
    "provisioner",
    "driver controller",
    "cloud",
    "attach/ detach",
    "attacher",
    "kubelet",
    "driver node",
    "container",
]


@pytest.fixture(autouse=True)
def nothing_went_wrong(viewer: Viewer) -> Iterator[None]:
    """Scripts have not failed, and nothing was loaded from elsewhere, whatever a test has done."""
    viewer.log_in()
    viewer.browser.requests()
    viewer.browser.problems()
    yield
    viewer.check_clean()


def has_step(words: str) -> str:
    """Whether a row of the diagram says this, as JavaScript."""
    return f"[...document.querySelectorAll('.step .spoken')].some(row => row.textContent.includes('{words}'))"


def click_step(viewer: Viewer, words: str) -> None:
    viewer.browser.run(
        "[...document.querySelectorAll('.step a.row')]"
        ".find(row => row.textContent.includes(arguments[0])).click()",
        words,
    )


def test_arrows_appear_as_the_steps_happen(cluster: Up, viewer: Viewer) -> None:
    viewer.open("/journey/pvc/default/story")
    assert "There is no pvc/default/story" in viewer.browser.text("main")
    viewer.browser.run("window.same = true")
    cluster.apply(claim_and_pod("story"))
    viewer.browser.wait_for(
        f"{has_step('kubelet to container: StartContainer')} && {has_step('NodePublishVolume')}"
    )
    viewer.browser.wait_for("document.querySelector('h1').innerText.includes('in use by a running pod')")
    assert viewer.browser.run("return window.same") is True
    names = viewer.browser.run(
        "return [...document.querySelectorAll('.step-head .lane-name')].map(e => "
        "[...e.children].map(part => part.textContent).join(' '))"
    )
    assert names == LANES
    rows: list[str] = viewer.browser.run(
        "return [...document.querySelectorAll('.step .spoken')].map(row => row.textContent)"
    )
    order = [
        "create pvc",
        "CreateVolume",
        "claim Bound",
        "ControllerPublishVolume",
        "NodeStageVolume",
        "StartContainer",
    ]
    places = [next(n for n, row in enumerate(rows) if step in row) for step in order]
    assert places == sorted(places)
    viewer.take_screenshots("journey")


def test_a_step_opens_its_request_and_answer_and_what_it_changed(cluster: Up, viewer: Viewer) -> None:
    cluster.apply(claim_and_pod("opened"))
    cluster.wait_running("opened-pod")
    viewer.open("/journey/pvc/default/opened")
    viewer.browser.wait_for(has_step("StartContainer"))
    click_step(viewer, "csi-provisioner to driver controller: CreateVolume")
    viewer.browser.wait_for("document.querySelectorAll('.step-details pre').length >= 2")
    details = viewer.browser.text(".step-details")
    assert '"required_bytes": 1073741824' in details
    assert '"volume_id": "vol-' in details
    assert "driver: CreateVolume" in details
    viewer.take_screenshots("journey-step")
    click_step(viewer, "ebs-plugin to cloud: CreateVolume")
    viewer.browser.wait_for("document.querySelector('.step-details')?.innerText.includes('<volumeId>vol-')")
    details = viewer.browser.text(".step-details")
    assert '"VolumeType": "gp3"' in details
    assert cluster.memory().secret_key not in details
    click_step(viewer, "kubectl to API server: create pvc/default/opened")
    viewer.browser.wait_for("document.querySelector('.step-details .changes')")
    assert "status.phase" in viewer.browser.text(".step-details .changes")
    assert viewer.browser.count(".step-details") == 1
    click_step(viewer, "kubectl to API server: create pvc/default/opened")
    viewer.browser.wait_for("!document.querySelector('.step-details')")


def test_a_step_is_opened_with_the_keyboard_and_keeps_the_focus(cluster: Up, viewer: Viewer) -> None:
    cluster.apply(claim_and_pod("keys"))
    cluster.wait_running("keys-pod")
    viewer.open("/journey/pvc/default/keys")
    viewer.browser.wait_for(has_step("StartContainer"))
    viewer.browser.run("document.querySelector('.step a.row').focus()")
    viewer.browser.press(Keys.TAB, Keys.ENTER)
    viewer.browser.wait_for("document.querySelector('.step-details')")
    assert viewer.browser.run("return document.activeElement.getAttribute('aria-expanded')") == "true"
    viewer.browser.press(Keys.ENTER)
    viewer.browser.wait_for("!document.querySelector('.step-details')")


def test_log_lines_of_the_moment_are_shown(cluster: Up, viewer: Viewer) -> None:
    viewer.open("/cluster")
    cluster.apply(claim_and_pod("logged"))
    cluster.wait_running("logged-pod")
    viewer.open("/journey/pvc/default/logged")
    viewer.browser.wait_for(has_step("ControllerPublishVolume"))
    click_step(viewer, "csi-attacher to driver controller: ControllerPublishVolume")
    viewer.browser.wait_for("document.querySelector('.step-details .log')")
    handle = viewer.browser.run("return /vol-[0-9a-f]+/.exec(document.querySelector('.facts').innerText)[0]")
    assert handle in viewer.browser.text(".step-details .log")


def test_two_journeys_stand_side_by_side(cluster: Up, viewer: Viewer) -> None:
    for name in ("left", "right"):
        cluster.apply(claim_and_pod(name))
        cluster.wait_running(f"{name}-pod")
    viewer.open("/journey/pvc/default/left")
    viewer.browser.run("document.querySelector('.compare input').focus()")
    viewer.browser.press("pvc/default/right", Keys.ENTER)
    viewer.browser.wait_for("document.querySelector('h1')?.innerText === 'Two journeys'")
    assert "pvc/default/left" in viewer.browser.text(".sides")
    assert "pvc/default/right" in viewer.browser.text(".sides")
    both = viewer.browser.run(
        "return [...document.querySelectorAll('.compared .step')]"
        ".filter(row => row.querySelectorAll('.bar').length === 2).length"
    )
    assert both > 25
    viewer.take_screenshots("journey-two")


def test_the_way_back_of_a_deleted_claim_is_found_in_the_list(cluster: Up, viewer: Viewer) -> None:
    cluster.apply(claim_and_pod("gone"))
    cluster.wait_running("gone-pod")
    viewer.open("/journeys")
    viewer.browser.wait_for("document.querySelector('.claims').innerText.includes('gone')")
    cluster.kubectl("delete", "pod", "gone-pod")
    cluster.kubectl("delete", "pvc", "gone")
    viewer.browser.wait_for("document.getElementById('deleted').innerText.includes('default/gone')")
    viewer.browser.click("#deleted a")
    viewer.browser.wait_for(f"{has_step('DeleteVolume')} && {has_step('NodeUnstageVolume')}")
    assert "deleted" in viewer.browser.text("h1")


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_saved_journey_needs_nothing_else(
    cluster: Up, viewer: Viewer, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster.apply(claim_and_pod("saved"))
    cluster.wait_running("saved-pod")
    viewer.open("/journey/pvc/default/saved")
    viewer.browser.wait_for(has_step("StartContainer"))
    text: str = viewer.browser.driver.execute_async_script(
        "const [kind, done] = arguments;"
        "const link = document.querySelector(`.save a[href*='save=${kind}']`);"
        "fetch(link.href).then(answer => answer.text()).then(done)",
        kind,
    )
    file = tmp_path_factory.mktemp("saved") / f"journey.{kind}"
    file.write_text(text)
    viewer.browser.requests()
    viewer.browser.open(file.as_uri())
    assert "NodeStageVolume" in viewer.browser.run("return document.documentElement.textContent")
    assert viewer.browser.requests() == [file.as_uri()]


def test_a_stuck_attach_is_the_first_that_waits_and_leaves_when_it_is_mended(
    cluster: Up, viewer: Viewer
) -> None:
    cluster.apply(claim_and_pod("stuck", node="worker-1"))
    cluster.wait_running("stuck-pod")
    # Past the scheduler, which would not put it there.
    cluster.apply(pod("thief", ["stuck"], "nodeName: worker-2"))
    viewer.open("/waiting")
    card = "document.getElementById('wait-pod/default/thief')"
    viewer.browser.wait_for(f"{card}?.innerText.includes('attached to worker-1')")
    text = viewer.browser.run(f"return {card}.innerText")
    assert "failing" in text
    assert "kubectl delete pod -n default stuck-pod" in text
    assert viewer.browser.run(f"return document.querySelector('.waits > li') === {card}")
    viewer.take_screenshots("waiting")
    viewer.open("/desired-and-actual?show=pending")
    viewer.browser.wait_for(
        "document.getElementById('role-attachdetach')?.innerText.includes('it is attached to worker-1')"
    )
    viewer.take_screenshots("desired-and-actual")
    viewer.open("/waiting")
    cluster.kubectl("delete", "pod", "stuck-pod", "--wait=false")
    viewer.browser.wait_for(f"!{card}")
    cluster.kubectl("delete", "pod", "thief", "--wait=false")


def test_an_object_shows_the_state_that_it_is_in(cluster: Up, viewer: Viewer) -> None:
    viewer.open("/object/pvc/default/stateful")
    cluster.apply(claim_and_pod("stateful"))
    marked = "[...document.querySelectorAll('.state.present')].map(state => state.textContent).join()"
    viewer.browser.wait_for(f"{marked} === 'Bound,Bound,attached'")
    text = viewer.browser.text("main")
    assert "kubernetes.io/pvc-protection" in text
    assert "claim protection: removed when no pod uses the claim" in text
    viewer.take_screenshots("object")
    cluster.kubectl("delete", "pvc", "stateful", "--wait=false")
    viewer.browser.wait_for(f"{marked}.startsWith('Terminating')")
    viewer.browser.wait_for(
        "document.getElementById('object-answer').innerText.includes('still used by pod')"
    )
    cluster.kubectl("delete", "pod", "stateful-pod", "--wait=false")
    viewer.browser.wait_for("document.querySelector('h1').innerText.includes('There is no')")


def test_without_recording_steps_are_recorded_while_the_page_is_open(viewer: Viewer) -> None:
    browser = viewer.browser
    with Up(nodes=1) as up:
        up.apply(claim_and_pod("early"))
        up.wait_running("early-pod")
        browser.open(issue_link(up))
        browser.wait_for("document.getElementById('connection').dataset.state === 'live'")
        base = browser.run("return location.href.replace('/cluster', '')")
        up.apply(claim_and_pod("late"))
        browser.open(f"{base}/journey/pvc/default/late")
        browser.wait_for(f"{has_step('NodeStageVolume')} && {has_step('StartContainer')}")
        assert browser.count("#unknown p") == 0
        browser.open(f"{base}/journey/pvc/default/early")
        browser.wait_for("document.querySelector('h1').innerText.includes('pvc/default/early')")
        assert "calls to the driver" in browser.text("#unknown")
        assert browser.problems() == []
        browser.open("about:blank")
    browser.requests()
    browser.problems()
