"""Journeys are complete: every step of the contract, in its order, in one process and in many, on etcd with
two API servers, and after a kill in the middle.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.support.etcd import etcd
from tests.support.up import VOLPLANE, Up
from tools import journey_picture
from volplane.explain.journey import order
from volplane.explain.journey.ending import is_over
from volplane.explain.journey.model import Journey, JourneyOutcome, StateHistory, StepOutcome
from volplane.explain.journey.select import select_back

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

MANIFEST = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: gp3
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: idle
      image: busybox
      command: [sleep, infinity]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""
RECORD = "--journey-max-size=64Mi"
UP = (*order.PROVISION, *order.LATE_BINDING, *order.FORWARDS)


def read_journey(up: Up, *arguments: str, what: str = "pvc/data") -> Journey:
    (found,) = msgspec.json.decode(
        ask(up, "journey", what, "--all", "-o", "json", *arguments), type=list[Journey]
    )
    return found


def ask(up: Up, *arguments: str) -> str:
    command = [VOLPLANE, *arguments, "--data-dir", str(up.directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def run_lifecycle(up: Up) -> Journey:
    """A claim with a pod, until nothing of both is left; returns its journey."""
    up.apply(MANIFEST)
    up.wait("the pod runs", lambda: up.phase("web") == "Running")
    journey = read_journey(up)
    assert (journey.outcome, is_over(journey)) == (JourneyOutcome.IN_USE, False)
    up.kubectl("delete", "pod", "web")
    up.wait("the attachment is gone", lambda: not up.items("volumeattachments"))
    up.kubectl("delete", "pvc", "data")
    up.wait("the volume is gone", lambda: not up.items("pv"))
    return read_journey(up)


def check_complete(journey: Journey) -> None:
    problems = order.find_order_problems(journey.steps, UP)
    # A kubelet that starts again also removes what is not mounted from volumesInUse.
    problems += order.find_order_problems(select_back(journey.steps), (*order.BACK, *order.DELETE))
    assert problems == [], "\n".join(
        [*problems, *(f"{s.at} {s.component} {s.what} {s.subject}" for s in journey.steps)]
    )
    assert journey.outcome is JourneyOutcome.DELETED


def in_one_process(directory: Path) -> Up:
    return Up(RECORD, nodes=1)


def as_separate_processes(directory: Path) -> Up:
    return Up(RECORD, "--separate", nodes=1)


@pytest.mark.parametrize("make", [in_one_process, as_separate_processes])
def test_a_journey_has_every_step_of_the_contract(make: Callable[[Path], Up], tmp_path: Path) -> None:
    with make(tmp_path) as up:
        journey = run_lifecycle(up)
        check_complete(journey)
        assert is_over(journey), "journey --follow would go on for ever"
        inner = {(step.component, step.what) for step in journey.steps if step.parent}
        assert ("driver", "NodeStageVolume") in inner, "the driver does not continue its caller's trace"
        assert ("cloud", "AttachVolume") in inner, "the disk service does not continue its caller's trace"
        assert ("apiserver", "patch") in inner, "the API server does not continue its caller's trace"
        assert ("host", "mkfs") in inner
        states = msgspec.json.decode(ask(up, "states", "pvc/data", "-o", "json"), type=StateHistory)
        phases = [each.after for each in states.transitions if each.field == "status.phase"]
        assert phases == ["Pending", "Bound"]
        protection = "metadata.finalizers[kubernetes.io/pvc-protection]"
        assert [each.after for each in states.transitions if each.field == protection] == ["yes", ""]
        assert "sequenceDiagram" in ask(up, "journey", "pvc/data", "-o", "mermaid")
        assert "<svg" in ask(up, "journey", "pv/" + journey.volumes[0], "-o", "html")
        assert "NodeUnstageVolume" in ask(up, "journey", "pod/web", "--back")
        ElementTree.fromstring(journey_picture.draw(ask(up, "journey", "pod/web", "-o", "json")))


# For the second pod, this may happen before the volume is detached from the first one's node.
ATTACH_IS_ASKED_FOR = {"pod stored", "pod bound", "volumesInUse", "attachment stored"}
ATTACH_IS_ASKED_FOR |= {"finalizer of the attachment"}
AGAIN = """
apiVersion: v1
kind: Pod
metadata: {name: again}
spec:
  nodeName: NODE
""" + MANIFEST.partition("metadata: {name: web}\nspec:\n")[2]


@pytest.mark.parametrize("arguments", [(), ("--separate",)], ids=["one process", "separate"])
def test_a_volume_that_moves_takes_every_step_on_both_nodes(arguments: tuple[str, ...]) -> None:
    with Up(RECORD, *arguments, nodes=2) as up:
        up.apply(MANIFEST)
        up.wait("the pod runs", lambda: up.phase("web") == "Running")
        first = up.get("pod", "web")["spec"]["nodeName"]
        second = ({"worker-1", "worker-2"} - {first}).pop()
        up.kubectl("delete", "pod", "web", "--wait=false")
        up.apply(AGAIN.replace("NODE", second))
        up.wait("the second pod runs", lambda: up.phase("again") == "Running")
        up.wait("it is attached once", lambda: len(up.items("volumeattachments")) == 1)
        journey = read_journey(up)
    assert (journey.nodes, journey.outcome) == ((first, second), JourneyOutcome.IN_USE)
    forwards = ["NodeStageVolume", "NodePublishVolume", "StartContainer"]
    back = ["StopContainer", "NodeUnpublishVolume", "NodeUnstageVolume"]
    by_kubelets = [s for s in journey.steps if s.component == "kubelet" and s.what in {*forwards, *back}]
    assert [s.what for s in by_kubelets] == forwards + back + forwards
    assert [s.node for s in by_kubelets] == [first] * 6 + [second] * 3
    calls = [s for s in journey.steps if s.component == "csi-attacher" and s.what.startswith("Controller")]
    methods = ["ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerPublishVolume"]
    assert [s.what for s in calls] == methods
    assert [s.subject == calls[0].subject for s in calls] == [True, True, False]
    # All of the first way, all of the way back, and the second way from the attach, as the contract says.
    attach_again = calls[-1].at
    assert calls[1].end <= attach_again
    of_second = {s.id for s in journey.steps if s.at >= attach_again or s.subject == "pod/default/again"}
    moved = [s for s in journey.steps if s.id not in of_second]
    assert order.find_order_problems(moved, (*UP, *order.BACK)) == []
    later = [s for s in journey.steps if s.id in of_second]
    expected = [m for m in order.FORWARDS if m.name not in ATTACH_IS_ASKED_FOR]
    assert order.find_order_problems(later, expected) == []


@pytest.mark.peer("etcd")
def test_a_journey_is_complete_on_etcd_with_two_api_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with etcd(tmp_path) as store:
        monkeypatch.setenv("VOLPLANE_TEST_ETCD_URL", store.url)
        program = (sys.executable, "-m", "tests.support.two_api_servers")
        with Up(RECORD, nodes=1, program=program) as up:
            check_complete(run_lifecycle(up))
            roles = {path.name.split(".")[0] for path in (up.directory / "spans").iterdir()}
            assert {"apiserver", "apiserver-2", "scheduler", "node-worker-1"} <= roles


@pytest.mark.parametrize(
    "failpoint",
    [
        "rpc:CreateVolume:after",
        "write:create:volumeattachments.storage.k8s.io:after",
        "rpc:ControllerPublishVolume:served",
        "rpc:NodeStageVolume:before",
        "rpc:NodePublishVolume:after",
    ],
)
def test_a_journey_is_complete_after_a_kill_in_the_middle(failpoint: str) -> None:
    with Up(RECORD, nodes=1) as up:
        up.stop()
        up.start(env={"VOLPLANE_FAILPOINT": failpoint})
        up.kubectl("apply", "-f", "-", stdin=MANIFEST, check=False)
        assert up.process is not None
        assert up.process.wait(60) == -signal.SIGKILL
        up.start()
        journey = run_lifecycle(up)
        check_complete(journey)
        cut_off = [step.what for step in journey.steps if step.outcome is StepOutcome.CUT_OFF]
        if failpoint.endswith(":served"):
            assert "ControllerPublishVolume" in cut_off


def test_without_recorded_steps_the_journey_is_derived_from_the_cluster() -> None:
    with Up(nodes=1) as up:
        up.apply(MANIFEST)
        up.wait("the pod runs", lambda: up.phase("web") == "Running")
        reasons = {"ProvisioningSucceeded", "SuccessfulAttachVolume"}  # events are written a moment later
        up.wait("its events are stored", lambda: reasons <= {e["reason"] for e in up.items("events")})
        assert not (up.directory / "spans").exists()
        journey = read_journey(up, what="pod/web")
        known = {(step.source.value, step.what) for step in journey.steps}
        assert {("event", "ProvisioningSucceeded"), ("event", "SuccessfulAttachVolume")} <= known
        assert ("field", "StartContainer") in known
        assert ("condition", "PodScheduled=True") in known
        assert journey.outcome is JourneyOutcome.IN_USE
        assert any("ControllerPublishVolume" in line for line in journey.unknown)
        calls = {(call.node, call.method): call for call in journey.calls}  # from the kubelet's metrics
        assert calls["worker-1", "NodePublishVolume"].count >= 1
        assert 0 < calls["worker-1", "NodeStageVolume"].seconds < 60


def test_the_files_of_spans_are_private_and_have_no_secrets() -> None:
    with Up(RECORD, nodes=1) as up:
        up.apply(MANIFEST)
        up.wait("the pod runs", lambda: up.phase("web") == "Running")
        for path in (up.directory / "spans").iterdir():
            assert path.stat().st_mode & 0o077 == 0
            for line in path.read_bytes().splitlines():
                json.loads(line)
            assert up.memory().secret_key.encode() not in path.read_bytes()
        assert os.stat(up.directory / "spans").st_mode & 0o077 == 0
