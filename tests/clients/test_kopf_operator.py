"""A kopf operator: it handles a custom resource, patches its status, delays its deletion, resumes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow]

PATIENCE = 60
HERE = Path(__file__).parent
NAMESPACE = "gallery"

DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: paintings.art.example.com}
spec:
  group: art.example.com
  scope: Namespaced
  names: {kind: Painting, plural: paintings, singular: painting, listKind: PaintingList}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {colour: {type: string}}}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
PAINTING = """
apiVersion: art.example.com/v1
kind: Painting
metadata: {name: %s, namespace: gallery}
spec: {colour: %s}
"""


@contextmanager
def operator(up: Up, log: Path) -> Iterator[None]:
    """`kopf run` as a process; ended by its pid."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kopf", "run", "-n", NAMESPACE, str(HERE / "painter.py")],
            env={**os.environ, "KUBECONFIG": up.kubeconfig},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def painting(up: Up, name: str) -> Any:
    return up.get("painting", name, "-n", NAMESPACE)


def colour(up: Up, name: str) -> str:
    found: str = up.get("configmap", f"{name}-paint", "-n", NAMESPACE)["data"]["colour"]
    return found


def until(what: str, test: Any, log: Path) -> Any:
    try:
        return wait_until(what, test, PATIENCE)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-4000:]}") from error


def test_an_operator_paints_repaints_resumes_and_lets_go(up: Up, tmp_path: Path) -> None:
    log = tmp_path / "kopf.log"
    up.kubectl("create", "namespace", NAMESPACE)
    up.apply(DEFINITION)
    up.kubectl("wait", "--for=condition=Established", "crd/paintings.art.example.com", "--timeout=60s")
    with operator(up, log):
        up.apply(PAINTING % ("sky", "blue"))
        until("its status", lambda: painting(up, "sky")["status"]["paint"] == {"colour": "blue"}, log)
        assert colour(up, "sky") == "blue"
        owners = up.get("configmap", "sky-paint", "-n", NAMESPACE)["metadata"]["ownerReferences"]
        assert (owners[0]["kind"], owners[0]["controller"]) == ("Painting", True)
        made = painting(up, "sky")
        assert made["metadata"]["finalizers"] == ["art.example.com/painter"]
        generation = made["metadata"]["generation"]
        up.apply(PAINTING % ("sky", "grey"))
        until("it is repainted", lambda: painting(up, "sky")["status"]["repainted"] == "grey", log)
        assert colour(up, "sky") == "grey"
        assert painting(up, "sky")["metadata"]["generation"] == generation + 1  # status does not count
    # Without the operator, its finalizer keeps the object.
    up.apply(PAINTING % ("sea", "green"))
    up.kubectl("delete", "painting", "sky", "-n", NAMESPACE, "--wait=false")
    assert painting(up, "sky")["metadata"]["deletionTimestamp"]
    assert "status" not in painting(up, "sea")
    with operator(up, log):
        until("it resumes", lambda: painting(up, "sea")["status"]["paint"] == {"colour": "green"}, log)
        gone = "get", "painting", "sky", "-n", NAMESPACE
        until("it lets go", lambda: "NotFound" in up.kubectl(*gone, check=False), log)
        paint = "get", "configmap", "sky-paint", "-n", NAMESPACE
        until("what it adopted goes, too", lambda: "NotFound" in up.kubectl(*paint, check=False), log)
        until("its last word", lambda: up.get("configmap", "sky-was-here", "-n", NAMESPACE), log)
        get_events = "get", "events", "-n", NAMESPACE
        until("it told an event", lambda: "in green" in up.kubectl(*get_events), log)
        assert re.search(r"Normal +Painted +painting/sea +in green", up.kubectl(*get_events))
        up.kubectl("delete", "painting", "sea", "-n", NAMESPACE)
    assert "Traceback" not in log.read_text(), log.read_text()
