"""A machine joins a cluster that runs: a token, a certificate of its own, a pod, its log, and a debugger."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.support.up import VOLPLANE, Up, wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

LONG = 60.0
TOKEN = """
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: abcdef, token-secret: 0123456789abcdef, usage-bootstrap-authentication: "true"}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: on-edge}
spec:
  nodeName: edge-1
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: busybox, command: [sh, -c, "echo from the edge; exec sleep 1000"]}]
"""


@pytest.fixture
def up() -> Iterator[Up]:
    cluster = Up(nodes=1)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def write_bootstrap(up: Up, path: Path) -> None:
    config = yaml.safe_load(Path(up.kubeconfig).read_text())
    for user in config["users"]:
        user["user"] = {"token": "abcdef.0123456789abcdef"}
    path.write_text(yaml.safe_dump(config))


@contextmanager
def machine(up: Up, directory: Path) -> Iterator[None]:
    """Another `volplane node`, as somebody starts it elsewhere."""
    bootstrap = directory / "bootstrap"
    write_bootstrap(up, bootstrap)
    flags = {
        "bootstrap-kubeconfig": bootstrap,
        "kubeconfig": directory / "kubeconfig",
        "hostname-override": "edge-1",
        "root-dir": directory / "n",
        "rotate-server-certificates": "true",
        "port": 0,
    }
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [VOLPLANE, "node", *(f"--{name}={value}" for name, value in flags.items())],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ,
        )
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(LONG) == 0, (directory / "log").read_text()


def is_ready(up: Up) -> bool:
    conditions = up.get("node", "edge-1")["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_a_machine_joins_with_a_token_and_runs_pods(up: Up, tmp_path: Path) -> None:
    up.apply(TOKEN)
    with machine(up, tmp_path):
        wait_until("the node is ready", lambda: is_ready(up), LONG)
        up.apply(POD)
        up.wait_running("on-edge", LONG)
        asked = [r for r in up.items("csr") if r["spec"]["signerName"] == "kubernetes.io/kubelet-serving"]
        assert [r["spec"]["username"] for r in asked] == ["system:node:edge-1"]
        up.kubectl("certificate", "approve", asked[0]["metadata"]["name"])
        wait_until("its log is there", lambda: "from the edge" in up.kubectl("logs", "on-edge"), LONG)
        assert up.kubectl("exec", "on-edge", "--", "echo", "works").strip() == "works"
        up.kubectl("debug", "on-edge", "--image=busybox", "--container=look", "--", "sh", "-c", "exit 3")

        def ended() -> bool:
            (status,) = up.get("pod", "on-edge")["status"]["ephemeralContainerStatuses"]
            return bool(status["state"]["terminated"]["exitCode"] == 3)

        wait_until("the debugger has run", ended, LONG)
        up.kubectl("delete", "pod", "on-edge")
