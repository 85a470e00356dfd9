"""Fail points around every commit, named by verb and resource."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

WRITES = """
import asyncio
from volplane.api.coordination import Lease
from volplane.api.core import ConfigMap, Event, ObjectReference, PersistentVolume, PersistentVolumeSpec
from volplane.api.core import CSIPersistentVolumeSource
from volplane.api.meta import DeleteOptions, ObjectMeta
from volplane.apiserver.in_process_server import InProcessServer
from volplane.client.transport import PatchStyle
from volplane.store.memory import MemoryStore

async def main():
    core = await InProcessServer(MemoryStore()).start()
    local = core.in_process_transport()
    made = await local.create(ConfigMap(metadata=ObjectMeta(name="a", namespace="default")))
    await local.patch(ConfigMap, "a", "default", {"data": {"x": "1"}}, PatchStyle.MERGE)
    await local.patch(ConfigMap, "a", "default", {"data": {"x": "1"}}, PatchStyle.MERGE)
    await local.delete(ConfigMap, "a", "default")
    volume = PersistentVolume(
        metadata=ObjectMeta(name="v"),
        spec=PersistentVolumeSpec(
            capacity={"storage": "1Gi"},
            access_modes=("ReadWriteOnce",),
            csi=CSIPersistentVolumeSource(driver="d.example", volume_handle="h"),
        ),
    )
    await local.create(volume)
    status = {"status": {"phase": "Available"}}
    await local.patch(PersistentVolume, "v", "", status, PatchStyle.MERGE, subresource="status")
    await local.create(Lease(metadata=ObjectMeta(name="l", namespace="default")))
    about = ObjectReference(kind="ConfigMap", name="a", namespace="default")
    await local.create(Event(metadata=ObjectMeta(name="e", namespace="default"), involved_object=about))
    await core.close()

asyncio.run(main())
print("survived")
"""


def run(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WRITES],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_commit_has_a_fail_point_before_and_after(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run(VOLPLANE_FAILPOINT_LOG=str(log))
    assert done.stdout == "survived\n", done.stderr
    passed = [name for name in log.read_text().split() if not name.startswith("write:create:namespaces")]
    places = [
        "write:create:configmaps",
        "write:patch:configmaps",
        "write:delete:configmaps",
        "write:create:persistentvolumes",
        "write:patch:persistentvolumes/status",
        "write:create:leases.coordination.k8s.io",
        "write:create:events",
    ]
    assert passed == [f"{place}:{when}" for place in places for when in ("before", "after")]


def test_the_process_dies_at_the_armed_fail_point() -> None:
    died = run(VOLPLANE_FAILPOINT="write:patch:configmaps:before")
    assert died.returncode == -signal.SIGKILL
    assert died.stdout == ""
