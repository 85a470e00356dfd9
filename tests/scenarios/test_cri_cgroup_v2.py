"""Containers with cgroup v2: limits, kills for memory, usage, devices, and what is left.

They run in a virtual machine with VOLPLANE_TEST_VM=all, because machines that run tests often have cgroup v1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cri.cluster import NODE_ROOT, CriUp, make_claim, make_pod, mount_claim
from tests.support.cri.containerd import CGROUPS, HANDLERS, run, run_containerd
from tests.support.cri.registry import Registry
from volplane.node.containers.cri.sandbox_config import CGROUP_ROOT, cgroup_parent

pytestmark = [
    pytest.mark.root,
    pytest.mark.peer("kubectl", "crictl"),
    pytest.mark.slow,
    pytest.mark.vm(long=True),
]

LIMITS = {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
EXPECTED = {
    "memory.max": f"{64 << 20}",
    "memory.oom.group": "1",
    "cpu.max": "50000 100000",
    "cpu.weight": "10",  # of 256 shares
}


@pytest.fixture(scope="module")
def up(registry: Registry) -> Iterator[CriUp]:
    run("mount", "-t", "cgroup2", "cgroup2", str(CGROUPS))
    assert "memory" in (CGROUPS / "cgroup.controllers").read_text().split()
    run("mount", "-t", "tmpfs", "tmpfs", "/var/lib")  # for the cache of CNI; it is read-only in the VM
    with run_containerd({"_default": registry.url}) as runtime:
        with CriUp(runtime, "--no-builtin-drivers", nodes=1) as cluster:
            yield cluster
        assert cluster.leftovers() == {}
        assert not (CGROUPS / CGROUP_ROOT).exists()


def find_usage(up: CriUp, pod: str) -> Any:
    summary = json.loads(up.kubectl("get", "--raw", "/api/v1/nodes/worker-1/proxy/stats/summary"))
    found = [c for each in summary["pods"] if each["podRef"]["name"] == pod for c in each["containers"]]
    return [c for c in found if c["memory"].get("workingSetBytes") and c["cpu"].get("usageCoreNanoSeconds")]


@pytest.mark.parametrize("handler", HANDLERS)
def test_limits_and_usage_are_those_of_the_containers_cgroup(up: CriUp, handler: str) -> None:
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    up.apply(json.dumps({**kind, "metadata": {"name": handler}, "handler": handler}))
    up.run_pod(handler, runtimeClassName=handler, container={"resources": LIMITS})
    shown = up.exec(handler, "sh", "-c", f"cd /sys/fs/cgroup && head -n 1 {' '.join(EXPECTED)}")
    found = [line for line in shown.splitlines() if line and not line.startswith("==>")]
    assert dict(zip(EXPECTED, found, strict=True)) == EXPECTED
    up.wait("its usage is known", lambda: find_usage(up, handler))
    (sandbox,) = up.list_sandboxes("--label", f"io.kubernetes.pod.name={handler}")
    uid = up.get("pod", handler)["metadata"]["uid"]
    cgroup = CGROUPS / cgroup_parent(uid, sandbox["labels"][NODE_ROOT], systemd=False).lstrip("/")
    assert any(cgroup.glob("*/cgroup.procs"))
    up.kubectl("delete", "pod", handler, "--timeout=300s")
    up.wait("its cgroup is removed", lambda: not cgroup.exists())


def test_a_container_without_memory_ends_as_a_whole(up: CriUp) -> None:
    """Without a group only the shell inside would be killed, and the container would go on."""
    limit = {"limits": {"memory": "16Mi"}}
    command = ("sh", "-c", "(a=x; while true; do a=$a$a; done); sleep infinity")
    up.apply(make_pod("hungry", *command, container={"resources": limit}, restartPolicy="Never"))
    up.wait("it has failed", lambda: up.phase("hungry") == "Failed")
    ended = up.find_state("hungry")["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_a_container_has_its_raw_block_device_and_no_other(up: CriUp, tmp_path: Path) -> None:
    """With cgroup v2 devices are allowed by a program of the kernel, instead of a list."""
    (tmp_path / "disk").write_bytes(bytes(1 << 20))
    device = run("losetup", "--find", "--show", str(tmp_path / "disk")).strip()
    up.apply(json.dumps(make_local_volume("raw", device)))
    up.apply(make_claim("raw", volumeMode="Block", storageClassName="", volumeName="raw"))
    devices = [{"name": "data", "devicePath": "/dev/disk"}]
    up.run_pod("block", container={"volumeDevices": devices}, volumes=mount_claim("raw", "")["volumes"])
    up.exec("block", "sh", "-c", "echo on the disk | dd of=/dev/disk bs=512 count=1 conv=sync,fsync")
    assert (tmp_path / "disk").read_bytes().startswith(b"on the disk\n")
    other = "mknod /tmp/other b 7 77 && head -c 1 /tmp/other"
    assert "Operation not permitted" in up.kubectl("exec", "block", "--", "sh", "-c", other, check=False)
    up.kubectl("delete", "pod", "block", "--timeout=300s")
    up.kubectl("delete", "pvc/raw", "pv/raw", "--timeout=300s")
    run("losetup", "--detach", device)


def make_local_volume(name: str, device: str) -> dict[str, Any]:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["worker-1"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block",
            "local": {"path": device},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
