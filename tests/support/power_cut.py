"""A cluster's directory after a power cut: processes and mounts are gone, files remain."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import machine
from tests.support.up import Up, wait_until
from volplane.host import devices

# One volume of each kind that leaves files on a node: a disk, a disk as a device, a shared directory, and
# what the node itself writes.
OBJECTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {word: kept}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: gp3, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: device}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: gp3
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec: {accessModes: [ReadWriteMany], storageClassName: efs, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox
    command: [sh, -c, "echo kept > /data/file; sync -f /data; echo kept > /shared/file; sleep infinity"]
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: shared, mountPath: /shared}
    - {name: words, mountPath: /words}
    - {name: scratch, mountPath: /scratch}
    volumeDevices:
    - {name: device, devicePath: /dev/data}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: device, persistentVolumeClaim: {claimName: device}}
  - {name: shared, persistentVolumeClaim: {claimName: shared}}
  - {name: words, configMap: {name: words}}
  - {name: scratch, emptyDir: {}}
"""


def fill(up: Up) -> None:
    """Create one pod with volumes of many kinds."""
    up.apply(OBJECTS)
    up.wait("the pod runs", lambda: up.phase("user") == "Running")
    up.wait("it has written", lambda: is_pod_running(up))


def is_pod_running(up: Up) -> bool:
    """Whether the pod runs with its volumes; after a restart its status is stale for a while."""
    return up.kubectl("exec", "user", "--", "cat", "/data/file", check=False).strip() == "kept"


def cut_power(up: Up) -> None:
    """Simulate a power cut: remove processes, mounts, loop devices and networks, but no files."""
    up.kill()
    machine.kill(up.directory)
    # The loop device that holds a pod's device has a path that is gone with the mounts.
    pins = [device for device, file in devices.loops().items() if file.startswith(f"{up.directory}/n/")]
    for device in pins:
        wait_until(f"{device} is free", partial(detach, device))
    machine.purge(up.directory)
    assert not (left := up.leftovers()), left


def detach(device: str) -> bool:
    try:
        devices.loop_detach(device)
    except devices.DeviceBusy:
        return False
    return True


def copy(source: Path, target: Path) -> None:
    """Copy into an existing directory, so that its inode stays the same."""
    for inside in target.iterdir():
        shutil.rmtree(inside) if inside.is_dir() and not inside.is_symlink() else inside.unlink()
    subprocess.run(["cp", "-a", "--sparse=always", f"{source}/.", str(target)], check=True)


def objects(up: Up) -> set[tuple[str, str]]:
    """The objects that a user has created, by kind and name."""
    found: list[Any] = up.items("pods,pvc,pv,configmaps", "--namespace", "default")
    return {(item["kind"], item["metadata"]["name"]) for item in found}
