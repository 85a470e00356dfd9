"""The OpenTelemetry collector gets one connected trace for a claim with a pod: the tree of the journey."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.scenarios.test_journeys import MANIFEST
from tests.support import peers
from tests.support.etcd import free_port
from tests.support.up import VOLPLANE, Up, wait_until
from volplane.base.trace_context import root_span_id, trace_id
from volplane.explain.journey.model import Journey

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl", "otlp-receiver")]

RECORD = "--journey-max-size=64Mi"
FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Receiver:
    def __init__(self, port: int, file: Path) -> None:
        self.url, self._file = f"http://127.0.0.1:{port}", file

    def spans(self) -> list[dict[str, Any]]:
        """All spans with the name of their service."""
        found = []
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            for group in json.loads(line)["resourceSpans"]:
                service = read_attributes(group["resource"])["service.name"]
                for scope in group["scopeSpans"]:
                    found += [{**span, "service": service} for span in scope["spans"]]
        return found


def read_attributes(of: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in of.get("attributes", [])}


@contextmanager
def receiving(directory: Path) -> Iterator[Receiver]:
    port, file = free_port(), directory / "traces"
    command = [peers.path("otlp-receiver"), f"127.0.0.1:{port}", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield Receiver(port, file)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def read_journey(up: Up) -> Journey:
    command = [VOLPLANE, "journey", "pvc/data", "--all", "-o", "json", "--data-dir", str(up.directory)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (found,) = msgspec.json.decode(text, type=list[Journey])
    return found


@pytest.mark.parametrize("arguments", [(), ("--separate",)], ids=["one process", "separate"])
def test_the_collector_gets_the_tree_of_the_journey(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with (
        receiving(tmp_path) as receiver,
        Up(*arguments, RECORD, f"--otlp-endpoint={receiver.url}", nodes=1) as up,
    ):
        up.apply(MANIFEST)
        up.wait("the pod runs", lambda: up.phase("web") == "Running")
        uid = up.get("pvc", "data")["metadata"]["uid"]
        up.wait("the start of the container is exported", lambda: "StartContainer" in _names(receiver, uid))
        up.stop()
        sent = {span["spanId"]: span for span in receiver.spans() if span["traceId"] == trace_id(uid)}
        steps = {step.id: step for step in read_journey(up).steps if step.seconds is not None}
        assert sent.keys() == steps.keys()
        root = root_span_id(trace_id(uid))
        assert [id for id, span in sent.items() if not span.get("parentSpanId")] == [root]
        for id, step in steps.items():
            span, attributes = sent[id], read_attributes(sent[id])
            assert (span["service"], attributes["volplane.step"]) == (step.component, step.what)
            assert attributes["volplane.subject"] == step.subject
            if id != root:
                assert span["parentSpanId"] == (step.parent or root)
                assert span["parentSpanId"] in sent
        called = next(span for span in sent.values() if span["name"] == "csi.v1.Node/NodeStageVolume")
        assert read_attributes(called)["rpc.method"] == "NodeStageVolume"


def _names(receiver: Receiver, uid: str) -> set[str]:
    return {span["name"] for span in receiver.spans() if span["traceId"] == trace_id(uid)}


def test_a_request_with_a_trace_of_its_own_is_linked(tmp_path: Path) -> None:
    with receiving(tmp_path) as receiver, Up(f"--otlp-endpoint={receiver.url}", nodes=0) as up:
        claim = MANIFEST.partition("---")[0]
        (tmp_path / "claim.yaml").write_text(claim)
        token = (up.directory / "pki" / "admin.token").read_text().strip()
        server = json.loads(up.kubectl("config", "view", "--raw", "-o", "json"))["clusters"][0]["cluster"][
            "server"
        ]
        subprocess.run(
            [
                "curl",
                "--silent",
                "--fail",
                "--insecure",
                *("-H", f"Authorization: Bearer {token}"),
                *("-H", "Content-Type: application/yaml"),
                *("-H", f"traceparent: {FOREIGN}"),
                *("--data-binary", f"@{tmp_path / 'claim.yaml'}"),
                f"{server}/api/v1/namespaces/default/persistentvolumeclaims",
            ],
            check=True,
            capture_output=True,
        )
        uid = up.get("pvc", "data")["metadata"]["uid"]
        created = wait_until("the claim's creation is exported", lambda: _find(receiver, uid, "create"))
        assert not created.get("parentSpanId")
        _, trace, span, _ = FOREIGN.split("-")
        assert [(link["traceId"], link["spanId"]) for link in created["links"]] == [(trace, span)]


def _find(receiver: Receiver, uid: str, name: str) -> dict[str, Any] | None:
    spans = receiver.spans()
    return next((s for s in spans if s["traceId"] == trace_id(uid) and s["name"] == name), None)


def test_a_collector_that_is_down_delays_nothing(tmp_path: Path) -> None:
    with Up(f"--otlp-endpoint=http://127.0.0.1:{free_port()}", nodes=1) as up:
        up.apply(MANIFEST)
        up.wait("the pod runs", lambda: up.phase("web") == "Running")
        assert "does not answer" in up.log(400)


def test_a_bad_endpoint_is_refused(tmp_path: Path) -> None:
    command = [VOLPLANE, "up", "--data-dir", str(tmp_path / "d"), "--otlp-endpoint", "collector:4317"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--otlp-endpoint: 'collector:4317' is not an HTTP address" in done.stderr
