"""`helm install` of AWS's chart of the EBS driver and of ours, on a cluster without the built-in drivers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.test_aws_ebs_csi_driver import (
    PATIENCE,
    claim,
    pod,
    remove,
    wait_until_nothing_is_left,
)
from tests.scenarios.test_bring_your_own_driver import apply, ready
from tests.support import aws_ebs_driver, peers
from tests.support.aws_ebs_driver import NAME, PEER
from tests.support.up import Up
from tools import deploy

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl"), pytest.mark.peer("helm")]
THEIRS = pytest.mark.peer(PEER)
EBS_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "disk"},
    "provisioner": NAME,
    "volumeBindingMode": "WaitForFirstConsumer",
}


@pytest.fixture
def up() -> Iterator[Up]:
    # Only the test of AWS's chart needs the program.
    program = peers.find(PEER) or "/bin/true"
    with Up("--no-builtin-drivers", "--image", f"{aws_ebs_driver.IMAGE}={program}", nodes=2) as up:
        yield up
        assert up.stop() == 0, up.log()
        assert up.leftovers() == {}


def helm(up: Up, *arguments: str) -> str:
    home = up.directory / "helm"
    home.mkdir(exist_ok=True)
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "KUBECONFIG": up.kubeconfig}
    command = [peers.path("helm"), *arguments, "--namespace", "kube-system"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stdout + done.stderr + up.diagnostics()
    return done.stdout


def install(up: Up, release: str, chart: Path) -> None:
    helm(up, "install", release, str(chart), "--wait", f"--timeout={PATIENCE:.0f}s")


def use_a_disk(up: Up, storage_class: str) -> None:
    for name in ("ebs-csi-node", "ebs-csi-controller"):
        kind = "daemonset" if name.endswith("node") else "deployment"
        up.kubectl("rollout", "status", "-n", "kube-system", f"{kind}/{name}", f"--timeout={PATIENCE:.0f}s")
    apply(up, claim("a", storage_class), pod("one", "worker-1", ["a"], [], "echo one > /a/file"))
    ready(up, "one")
    remove(up, "pod", "one")
    apply(up, pod("two", "worker-2", ["a"], [], "cat /a/file"))
    ready(up, "two")
    assert up.kubectl("logs", "two").splitlines()[0] == "one"
    remove(up, "pod", "two")
    remove(up, "pvc", "a")
    wait_until_nothing_is_left(up)


@THEIRS
def test_the_chart_of_aws_is_installed_used_and_uninstalled(up: Up) -> None:
    install(up, "aws-ebs-csi-driver", aws_ebs_driver.chart())
    apply(up, EBS_CLASS)
    use_a_disk(up, "disk")
    helm(up, "uninstall", "aws-ebs-csi-driver", "--wait")
    assert not up.items("csidrivers")


def test_our_chart_is_installed_used_and_uninstalled(up: Up) -> None:
    install(up, "volplane-csi", deploy.CHART)
    use_a_disk(up, "gp3")
    helm(up, "uninstall", "volplane-csi", "--wait")
    assert not up.items("csidrivers")
