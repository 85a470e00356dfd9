"""A full disk: writes fail with a clear error, deletes work, and everything continues when there is space."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import Api, client_of
from tests.loops.inprocess import until
from tests.support import machine
from tests.support.ec2_client import assert_refused
from tests.support.ec2_client import client as ec2_client
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.up import VOLPLANE, Up, wait_until
from volplane import apiserver
from volplane.api.core import ConfigMap
from volplane.api.errors import InsufficientStorage
from volplane.api.meta import ObjectMeta
from volplane.client.client import Client
from volplane.cloud import CloudOptions, serve_endpoint
from volplane.host import Host
from volplane.store import StoreFull
from volplane.store.sqlite import SqliteStore, writer

pytestmark = pytest.mark.root

PATIENCE = 60.0
MAPS = "/api/v1/namespaces/default/configmaps"
ZONE = "us-east-1a"
REFUSED = "objects can be deleted, none can be created"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, 700) as made:
        yield made
        machine.purge(made.path / "vp")


# --- the API server and the disk service


async def fill_store(store: SqliteStore, prefix: str) -> None:
    """Write until the store's log has taken what is left."""
    async with asyncio.timeout(PATIENCE):
        try:
            while True:
                await store.create(f"{prefix}{store.revision}", b"x" * 10_000)
        except StoreFull:
            return


async def test_a_write_fails_alike_over_https_and_in_process_and_goes_on_when_there_is_space(
    tmp_path: Path, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOOK_EVERY", 0.02)
    store = await SqliteStore.open(disk.path / "state.db")
    server = await apiserver.run(apiserver.ApiServerOptions(data_dir=str(tmp_path / "data")), store)
    http = client_of(server)
    api, local = Api(server, store, http), Client(server.in_process_transport())  # type: ignore[arg-type]
    try:
        await api.post(MAPS, {"metadata": {"name": "old"}})
        disk.fill()
        await fill_store(store, "/filler/")

        answer = await api.post(MAPS, {"metadata": {"name": "new"}})
        assert (answer.status, answer.json["reason"]) == (507, "InsufficientStorage")
        assert REFUSED in answer.json["message"]
        with pytest.raises(InsufficientStorage, match=REFUSED):
            await local.create(ConfigMap(metadata=ObjectMeta(name="new", namespace="default")))
        large = {"data": {"a": "x" * 100_000}}
        with pytest.raises(InsufficientStorage):
            await local.patch(ConfigMap, "old", "default", merge=large)
        assert (await api.get("/readyz")).status == 500

        await local.patch(ConfigMap, "old", "default", merge={"data": {"a": "small"}})
        assert (await api.call("DELETE", f"{MAPS}/old")).status == 200
        assert (await api.get(f"{MAPS}/old")).status == 404

        disk.empty()

        async def is_stored() -> bool:
            return (await api.post(MAPS, {"metadata": {"name": "new"}})).status == 201

        await until(is_stored, PATIENCE)
        assert (await local.get(ConfigMap, "new", "default")).name == "new"
        assert (await api.get("/readyz")).status == 200
    finally:
        await http.close()
        await server.close(0)
        await store.close()


async def test_the_disk_service_refuses_what_it_cannot_write_down_and_leaves_nothing(
    tmp_path: Path, disk: SmallDisk
) -> None:
    """Its records are on the full disk, its disks on another."""
    store, host = await SqliteStore.open(disk.path / "state.db"), Host()
    settings = CloudOptions(
        data_dir=str(tmp_path / "cloud"), access_key="AKIAVOLPLANE", secret_key="secret", zones=(ZONE,)
    )

    def story(ec2: Any) -> None:
        request = {"AvailabilityZone": ZONE, "Size": 1}
        text = assert_refused("InsufficientVolumeCapacity", ec2.create_volume, ClientToken="t", **request)
        assert "no space left on the disk" in text
        ec2.delete_volume(VolumeId=old)

    try:
        async with serve_endpoint(settings, host, store) as address:
            ec2 = await asyncio.to_thread(ec2_client, address)
            made = await asyncio.to_thread(ec2.create_volume, AvailabilityZone=ZONE, Size=1)
            old = made["VolumeId"]
            disk.fill()
            await fill_store(store, "/filler/")
            await asyncio.to_thread(story, ec2)
            assert os.listdir(tmp_path / "cloud" / "disks") == []
            assert (await asyncio.to_thread(ec2.describe_volumes))["Volumes"] == []
    finally:
        await host.close()
        await store.close()


# --- a whole cluster


def cluster(disk: SmallDisk, output: Path, *arguments: str) -> Up:
    up = Up(*arguments, nodes=1, directory=disk.path / "vp")
    up.directory.mkdir(exist_ok=True)
    up.output = output
    return up


CLAIM_AND_POD = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: busybox
      command: [sh, -c, "echo hello > /data/file; while :; do date; sleep 0.1; done"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""


@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_a_cluster_whose_disk_fills_up_runs_on_deletes_recovers_and_stops(
    tmp_path: Path, disk: SmallDisk
) -> None:
    up = cluster(disk, tmp_path / "up.log", "--eviction-hard=")  # a pod that stays shows more
    with up:
        up.apply(CLAIM_AND_POD)
        up.wait_running("app", 60)
        disk.fill()

        def write_error() -> str:
            number = f"m{os.urandom(4).hex()}"
            said = up.kubectl("create", "configmap", number, f"--from-literal=a={'x' * 50_000}", check=False)
            return said if "configmap/" not in said else ""

        assert REFUSED in wait_until("a write is refused", write_error, 60)
        assert up.phase("app") == "Running"
        up.kubectl("delete", "pod", "app", "--timeout=60s")
        up.kubectl("delete", "pvc", "data", "--timeout=60s")
        wait_until("the volume is gone", lambda: up.kubectl("get", "pv", "-o", "name") == "", 60)
        assert up.process is not None
        assert up.process.poll() is None

        disk.empty()
        wait_until("writes are stored again", lambda: not write_error(), 60)
        up.wait("the same things again", lambda: up.apply(CLAIM_AND_POD), 60)
        up.wait_running("app", 60)
        disk.fill()
        up.send(signal.SIGINT)
        assert up.process.wait(60) == 0
        assert "Traceback" not in up.log(1000)
    assert up.leftovers() == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [(), ("--separate",)], ids=["one process", "separate"])
def test_a_start_on_a_full_disk_says_how_much_space_is_missing(
    disk: SmallDisk, mode: tuple[str, ...]
) -> None:
    place = disk.path / "vp"
    place.mkdir()
    disk.fill(leave=3 << 20)
    command = [VOLPLANE, "up", "--data-dir", str(place), "--nodes", "1", *mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    write_error = done.stderr.strip().splitlines()[-1]
    assert (
        f"MiB are free in {place}, at least 20 MiB are needed: free some space and start again" in write_error
    )


TWO_PODS = """
apiVersion: v1
kind: Pod
metadata: {name: scheduled}
spec: {containers: [{name: c, image: x, command: [sleep, "1000"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: placed}
spec: {nodeName: worker-1, containers: [{name: c, image: x, command: [sleep, "1000"]}]}
"""


@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_a_cluster_starts_under_disk_pressure_with_its_drivers_and_keeps_other_pods_away(
    tmp_path: Path, disk: SmallDisk
) -> None:
    with cluster(disk, tmp_path / "up.log", "--eviction-hard=nodefs.available<100%") as up:
        (node,) = up.items("nodes")
        taints = [(t["key"], t["effect"]) for t in node["spec"]["taints"]]
        assert taints == [("node.kubernetes.io/disk-pressure", "NoSchedule")]
        up.apply(TWO_PODS)
        wait_until("the node refuses a pod", lambda: up.phase("placed") == "Failed", 60)
        assert "Evicted" in up.kubectl("get", "pod", "placed")
        up.describe("pod", "scheduled", "FailedScheduling", "1 node(s) had untolerated taint(s)")


CHATTY = """
apiVersion: v1
kind: Pod
metadata: {name: chatty}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: busybox
      command: [PYTHON, -c, "for n in range(100_000): print(f'{n:06}')"]
""".replace("PYTHON", sys.executable)


@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_a_chatty_container_is_bounded_and_its_log_is_read_across_its_files(
    tmp_path: Path, disk: SmallDisk
) -> None:
    limits = ("--container-log-max-size=1Mi", "--container-log-max-files=3")
    with cluster(disk, tmp_path / "up.log", *limits) as up:
        up.apply(CHATTY)
        wait_until("it has come to its end", lambda: up.phase("chatty") == "Succeeded", 60)
        (directory,) = (up.directory / "n" / "1" / "logs").glob("default_chatty_*/c")
        there = sorted(directory.iterdir(), key=lambda p: p.name)
        assert len(there) == 3  # of five and a half million bytes
        assert all(file.stat().st_size <= 1 << 20 for file in there)
        lines = up.kubectl("logs", "chatty").splitlines()
        last = len(lines)
        assert lines == [f"{n:06}" for n in range(100_000 - last, 100_000)]
        assert last > 40_000
        assert up.kubectl("logs", "chatty", "--tail=30000").splitlines() == lines[-30_000:]
        assert up.kubectl("logs", "chatty", "--since=1h").splitlines() == lines
        up.kubectl("delete", "pod", "chatty", "--timeout=60s")
        wait_until("its log is gone with it", lambda: not directory.exists(), 60)


@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_kubectl_logs_f_goes_on_in_the_new_files(tmp_path: Path, disk: SmallDisk) -> None:
    limits = ("--container-log-max-size=64Ki", "--container-log-max-files=200")
    with cluster(disk, tmp_path / "up.log", *limits) as up:
        up.apply(CHATTY)
        wait_until("it has begun", lambda: up.phase("chatty") != "Pending", 60)
        assert up.kubectl("logs", "-f", "chatty").splitlines() == [f"{n:06}" for n in range(100_000)]
        wait_until("it has come to its end", lambda: up.phase("chatty") == "Succeeded", 60)
        (directory,) = (up.directory / "n" / "1" / "logs").glob("default_chatty_*/c")
        assert len(list(directory.iterdir())) > 50
