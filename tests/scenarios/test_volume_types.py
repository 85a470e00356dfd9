"""Every volume type in a cluster: a pod with real mounts, an update, a node killed in between, bad input."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import Up, wait_until
from volplane.host import devices

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

MIB = 1 << 20
NODE = "worker-1"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    cluster = Up(nodes=1)
    with cluster:
        yield cluster
        cluster.kubectl("delete", "pods,pvc,pv", "--all", "--timeout=60s")
    assert cluster.leftovers() == {}


def apply(up: Up, kind: str, name: str, api_version: str = "v1", **fields: Any) -> None:
    up.apply(json.dumps({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **fields}))


def start(
    up: Up,
    name: str,
    volumes: Mapping[str, Mapping[str, Any]],
    *,
    places: list[dict[str, Any]] | None = None,
    container: Mapping[str, Any] | None = None,
    wait: bool = True,
    **spec: Any,
) -> None:
    """A pod with these volumes, each at /<its name> unless `places` says otherwise."""
    mounts = places if places is not None else [{"name": n, "mountPath": f"/{n}"} for n in volumes]
    main = {
        "name": "c",
        "image": "busybox",
        "command": ["sleep", "10000"],
        "volumeMounts": mounts,
        **(container or {}),
    }
    fields = {
        "terminationGracePeriodSeconds": 0,
        "containers": [main],
        "volumes": [{"name": n, **source} for n, source in volumes.items()],
        **spec,
    }
    apply(up, "Pod", name, spec=fields)
    if wait:
        up.wait("pod runs", lambda: up.phase(name) == "Running", 60)


def sh(up: Up, name: str, command: str) -> str:
    return up.kubectl("exec", name, "--", "sh", "-c", command).strip()


def fails(up: Up, name: str, command: str) -> str:
    """The output of a command that must fail."""
    return sh(up, name, f"! ( {command} ) 2>&1")


def restart(up: Up, *pods: str) -> None:
    """Kill everything but the containers, and start it again."""
    up.kill()
    up.start()
    for name in pods:
        up.wait_running(name, 60)


def wait_for(up: Up, name: str, command: str, output: str) -> None:
    up.wait(f"{command} shows {output!r}", lambda: sh(up, name, command) == output, 60)


def remove(up: Up, *pods: str) -> None:
    up.kubectl("delete", "pod", *pods, "--timeout=60s")


def test_files_from_the_api(up: Up) -> None:
    apply(up, "ConfigMap", "settings", data={"colour": "red", "size": "big"})
    apply(up, "ConfigMap", "extra", data={"extra": "1"})
    apply(up, "Secret", "password", stringData={"password": "geheim"})
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    token = {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}}
    volumes: dict[str, dict[str, Any]] = {
        "config": {"configMap": {"name": "settings", "defaultMode": 0o440}},
        "maybe": {"configMap": {"name": "extra", "optional": True}},
        "secret": {"secret": {"secretName": "password", "items": [{"key": "password", "path": "a/b"}]}},
        "down": {"downwardAPI": {"items": [labels]}},
        "all": {"projected": {"sources": [token, {"secret": {"name": "password"}}]}},
    }
    places: list[dict[str, Any]] = [{"name": n, "mountPath": f"/{n}"} for n in volumes]
    places.append({"name": "config", "mountPath": "/fixed", "subPath": "colour"})
    start(up, "files", volumes, places=places, securityContext={"fsGroup": 2000})
    assert sh(up, "files", "cat /config/colour /fixed /secret/a/b /all/password") == "redredgeheimgeheim"
    assert sh(up, "files", "stat -L -c '%a %g' /config/colour /all/token").split() == [
        "440", "2000", "640", "2000",
    ]  # fmt: skip
    assert sh(up, "files", "cut -d. -f1,2 --output-delimiter=' ' /all/token | wc -w") == "2"
    assert "Read-only file system" in fails(up, "files", "touch /config/x")

    restart(up, "files")
    apply(up, "ConfigMap", "settings", data={"colour": "blue"})
    wait_for(up, "files", "ls /config; cat /config/colour", "colour\nblue")
    assert sh(up, "files", "cat /fixed") == "red"  # a subPath is not updated
    up.kubectl("delete", "configmap", "extra")
    wait_for(up, "files", "ls /maybe", "")
    apply(up, "ConfigMap", "extra", data={"again": "2"})
    wait_for(up, "files", "cat /maybe/again", "2")
    up.kubectl("label", "pod", "files", "stage=second")
    wait_for(up, "files", "cat /down/labels", 'stage="second"')

    bad = {"v": {"secret": {"secretName": "password", "items": [{"key": "user", "path": "u"}]}}}
    start(up, "bad", bad, wait=False)
    up.describe(
        "pod", "bad", 'MountVolume.SetUp failed for volume "v" : references non-existent secret key: user'
    )
    remove(up, "files", "bad")


def test_a_token_is_renewed(up: Up) -> None:
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
    start(up, "token", {"v": {"projected": {"sources": [token]}}})
    first = sh(up, "token", "cat /v/token")
    restart(up, "token")  # it keeps no token in memory
    up.wait("another token", lambda: sh(up, "token", "cat /v/token") != first, 60)
    remove(up, "token")


def test_empty_dir(up: Up) -> None:
    volumes: dict[str, dict[str, Any]] = {
        "disk": {"emptyDir": {}},
        "memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
    }
    start(up, "empty", volumes, securityContext={"fsGroup": 2000})
    assert sh(up, "empty", "stat -c '%a %g' /disk /memory").split() == ["2777", "2000", "2777", "2000"]
    assert sh(up, "empty", "df -k /memory | tail -1").split()[1] == "8192"
    sh(up, "empty", "echo disk > /disk/file && echo memory > /memory/file && chmod 2700 /disk")
    assert "No space left" in fails(up, "empty", f"head -c {9 * MIB} /dev/zero > /memory/big")
    restart(up, "empty")
    assert sh(up, "empty", "cat /disk/file /memory/file; stat -c %a /disk") == "disk\nmemory\n2700"
    remove(up, "empty")


def test_a_pod_over_its_size_limit_is_evicted(up: Up) -> None:
    start(up, "greedy", {"v": {"emptyDir": {"sizeLimit": "1Mi"}}})
    sh(up, "greedy", f"head -c {4 * MIB} /dev/zero > /v/file")
    up.wait("it is evicted", lambda: up.phase("greedy") == "Failed", 60)
    status = up.get("pod", "greedy")["status"]
    assert (status["reason"], status["message"]) == (
        "Evicted",
        'Usage of EmptyDir volume "v" exceeds the limit "1Mi". ',
    )
    remove(up, "greedy")


def test_host_path(up: Up, tmp_path: Path) -> None:
    made = tmp_path / "made"
    start(up, "host", {"v": {"hostPath": {"path": str(made)}}})  # no type: the runtime creates it
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o755
    sh(up, "host", "echo kept > /v/file")
    restart(up, "host")
    assert sh(up, "host", "cat /v/file") == "kept"
    start(up, "bad", {"v": {"hostPath": {"path": "/var/lib/kubelet/pods", "type": "Socket"}}}, wait=False)
    up.describe("pod", "bad", "hostPath type check failed: /var/lib/kubelet/pods is not a socket file")
    remove(up, "host", "bad")
    assert (made / "file").read_text() == "kept\n"


def test_the_devices_of_a_node_include_its_own_disks(up: Up) -> None:
    apply(
        up,
        "PersistentVolumeClaim",
        "disk",
        spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    )
    start(up, "user", {"v": {"persistentVolumeClaim": {"claimName": "disk"}}})
    volumes = {
        "dev": {"hostPath": {"path": "/dev", "type": "Directory"}},
        "k": {"hostPath": {"path": "/var/lib/kubelet"}},
        "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
    }
    places = [{"name": "shm", "mountPath": "/dev/shm"}] + [
        {"name": name, "mountPath": f"/{name}"} for name in ("dev", "k")
    ]
    start(up, "driver", volumes, places=places, container={"securityContext": {"privileged": True}})
    assert sh(up, "driver", "df -k /dev/shm | tail -1").split()[1] == "8192"  # the pod's, not the machine's
    disk = sh(up, "driver", "ls /dev | grep ^xvd")
    assert sh(up, "driver", f"blockdev --getsize64 /dev/{disk}") == str(1 << 30)
    assert (
        sh(up, "driver", "test -c /dev/null && test -c /dev/pts/ptmx && test -b /dev/loop0 && echo all")
        == "all"
    )
    assert "ebs.csi.aws.com" in sh(up, "driver", "ls /k/plugins")
    device = sh(up, "driver", "losetup -f")  # as drivers do that make loop devices
    assert sh(up, "driver", f"test -b {device} && echo there") == "there"
    remove(up, "user", "driver")
    up.kubectl("delete", "pvc", "disk", "--timeout=60s")


def local_volume(up: Up, name: str, path: str, mode: str = "Filesystem", **local: Any) -> None:
    """A volume and a claim for it."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeMode": mode}
    apply(
        up,
        "PersistentVolume",
        name,
        spec={
            **common,
            "capacity": {"storage": "300Mi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": path, **local},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    )
    apply(
        up,
        "PersistentVolumeClaim",
        name,
        spec={**common, "volumeName": name, "resources": {"requests": {"storage": "300Mi"}}},
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A file and its loop device."""
    file = tmp_path / "disk"
    file.touch()
    os.truncate(file, 320 * MIB)
    device = devices.loop_attach(str(file))
    yield file, device
    devices.loop_detach(device, str(file))


def forget(up: Up, *claims: str) -> None:
    up.kubectl("delete", "pvc", *claims, "--timeout=60s")
    up.kubectl("delete", "pv", *claims, "--timeout=60s")


def test_a_local_disk(up: Up, disk: tuple[Path, str]) -> None:
    file, device = disk
    local_volume(up, "local", device, fsType="xfs")
    start(
        up,
        "disk",
        {"v": {"persistentVolumeClaim": {"claimName": "local"}}},
        securityContext={"fsGroup": 2000},
    )
    assert sh(up, "disk", "stat -f -c %T /v; stat -c %g /v") == "xfs\n2000"
    sh(up, "disk", "echo kept > /v/file && sync")
    restart(up, "disk")
    os.truncate(file, 1024 * MIB)
    devices.loop_resize(device)
    up.kubectl("patch", "pv", "local", "-p", '{"spec": {"capacity": {"storage": "1Gi"}}}')
    up.wait(
        "the claim has grown",
        lambda: up.get("pvc", "local")["status"]["capacity"]["storage"] == "1Gi",
        60,
    )
    assert int(sh(up, "disk", "df -k /v | tail -1").split()[1]) > 800 << 10
    remove(up, "disk")
    start(up, "disk", {"v": {"persistentVolumeClaim": {"claimName": "local", "readOnly": True}}})
    assert sh(up, "disk", "cat /v/file") == "kept"
    assert "Read-only file system" in fails(up, "disk", "touch /v/x")
    remove(up, "disk")
    forget(up, "local")


def test_a_local_raw_device(up: Up, disk: tuple[Path, str]) -> None:
    _, device = disk
    local_volume(up, "raw", device, "Block")
    claim = {"v": {"persistentVolumeClaim": {"claimName": "raw"}}}
    use = {"volumeDevices": [{"name": "v", "devicePath": "/dev/data"}]}
    start(up, "raw", claim, places=[], container=use)
    sh(up, "raw", "echo raw > /dev/data && sync")
    restart(up, "raw")
    assert sh(up, "raw", "head -c 3 /dev/data") == "raw"
    assert Path(device).read_bytes()[:3] == b"raw"
    remove(up, "raw")
    forget(up, "raw")


def test_a_local_directory_that_is_missing(up: Up, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    local_volume(up, "missing", str(missing))
    start(up, "missing", {"v": {"persistentVolumeClaim": {"claimName": "missing"}}}, wait=False)
    why = f'MountVolume.MountDevice failed for volume "missing" : path "{missing}" does not exist'
    up.describe("pod", "missing", why)
    restart(up)
    missing.mkdir()
    up.wait("pod runs", lambda: up.phase("missing") == "Running", 60)
    sh(up, "missing", "echo kept > /v/file")
    remove(up, "missing")
    assert (missing / "file").read_text() == "kept\n"
    forget(up, "missing")


def test_bad_volumes_are_refused_by_the_api(up: Up) -> None:
    affinity: dict[str, Any] = {"required": {"nodeSelectorTerms": [{"matchFields": []}]}}
    local = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": "/mnt/../etc"},
    }
    for kind, spec, why in (
        ("PersistentVolume", {**local, "nodeAffinity": affinity}, "must not contain '..'"),
        ("PersistentVolume", local, "Local volume requires node affinity"),
    ):
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "bad"}, "spec": spec}
        assert why in up.kubectl("apply", "-f", "-", stdin=json.dumps(body), check=False)


def test_an_image_volume_says_what_is_missing(up: Up) -> None:
    start(up, "image", {"v": {"image": {"reference": "models/small:1"}}}, wait=False)
    why = 'image "models/small:1" cannot be mounted: image volumes need a container runtime'
    up.describe("pod", "image", "FailedMount", why)
    restart(up)
    up.describe("pod", "image", why)
    remove(up, "image")


def test_an_ephemeral_volume_does_not_take_over_a_claim(up: Up) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    apply(up, "PersistentVolumeClaim", "scratch-v", spec=spec)
    source = {"v": {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}}
    start(up, "scratch", source, wait=False)
    up.describe(
        "pod", "scratch", "PVC default/scratch-v was not created for pod default/scratch (pod is not owner)"
    )
    up.kubectl("delete", "pvc", "scratch-v", "--wait=false")  # another one takes its name at once
    up.wait("pod runs", lambda: up.phase("scratch") == "Running", 90)
    owner = up.get("pvc", "scratch-v")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Pod", "scratch", True)
    sh(up, "scratch", "echo kept > /v/file")
    restart(up, "scratch")
    assert sh(up, "scratch", "cat /v/file") == "kept"
    remove(up, "scratch")
    wait_until("its claim is gone", lambda: up.kubectl("get", "pvc", "-o", "name") == "", 60)
