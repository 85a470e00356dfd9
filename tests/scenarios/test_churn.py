"""Pods with volumes come and go, over and over: nothing leaks, and the process does not grow.

`VOLPLANE_CHURN=100x20` makes it a hundred pods and twenty rounds, and `-s` shows the figures. What is kept
then is known: every event for its hour (six hundred a round, some two hundred bytes each), and of every
component the last 512 things at most that it has told. With fewer pods the second round has not yet filled
what is bounded (the store's window of 4 MB, the ring of 8192 spans), so a size in between would measure that
and no leak. With a hundred pods what the process keeps is compared: it tidies up every now and then, and a
round may end just before that or just after.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import Up, wait_until
from volplane.base.memory import EVERY

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

NODES = 4
PODS, ROUNDS = map(int, os.environ.get("VOLPLANE_CHURN", "12x3").split("x"))
LONG = 300.0
GROWTH = 1.10  # of what it needed after the second round
SLACK = 4.0 if PODS < 100 else 0.0  # MB; a small process may grow by that much without a leak


@pytest.fixture
def up() -> Iterator[Up]:
    cluster = Up(nodes=NODES)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


def claim(number: int) -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "gp3",
        "resources": {"requests": {"storage": "16Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"c{number}"},
        "spec": spec,
    }


def pod(number: int) -> dict[str, Any]:
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sh", "-c", "echo x >> /data/rounds; exec sleep 1000"],
        "volumeMounts": [{"name": "v", "mountPath": "/data"}],
    }
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": f"c{number}"}}]
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes}
    metadata = {"name": f"p{number}", "labels": {"app": "churn"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def listed(*objects: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def resident(pid: int) -> float:
    """Megabytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no Rss")


def kept(pid: int) -> float:
    """The least that it needs within two rounds of its own tidying up."""
    seconds = 2 * EVERY if PODS >= 100 else 0.0
    least, end = resident(pid), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.5)
        least = min(least, resident(pid))
    return least


def one_round(up: Up) -> None:
    up.kubectl("apply", "-f", "-", stdin=listed(*map(pod, range(PODS))))

    def all_run() -> bool:
        phases = [p["status"].get("phase") for p in up.items("pods", "-l", "app=churn")]
        return phases == ["Running"] * PODS

    wait_until("all pods run", all_run, LONG)
    up.kubectl("delete", "pods", "-l", "app=churn", "--wait=false")
    wait_until("all pods are gone", lambda: up.items("pods", "-l", "app=churn") == [], LONG)
    wait_until("all disks are detached", lambda: up.items("volumeattachments") == [], LONG)


def leftovers_of_pods(up: Up) -> dict[str, list[str]]:
    """What the cluster has on this machine, without its bridge, its Services and its nodes' metadata."""
    found = up.leftovers()
    networks = [alias for alias in found.pop("networks", []) if " pod " in alias]
    return {**found, "networks": networks} if networks else found


def test_pods_with_volumes_come_and_go_and_nothing_is_left(up: Up) -> None:
    up.kubectl("apply", "-f", "-", stdin=listed(*map(claim, range(PODS))))
    idle = up.leftovers()
    memory: list[float] = []
    for number in range(ROUNDS):
        one_round(up)
        now = resident(up.pid)
        memory.append(kept(up.pid) if number in (1, ROUNDS - 1) else now)
        print(f"round {number + 1}: {now:.1f} MB, kept {memory[-1]:.1f} MB")
    # The kernel removes networks a bit later.
    wait_until("nothing of any pod is left", lambda: leftovers_of_pods(up) == idle, LONG)
    assert memory[-1] <= memory[1] * GROWTH + SLACK, (memory, len(up.items("events")))
    up.kubectl("apply", "-f", "-", stdin=listed(pod(0)))
    up.wait_running("p0", LONG)
    written = up.kubectl("exec", "p0", "--", "cat", "/data/rounds").split()
    assert len(written) == ROUNDS + 1  # no round has lost what an earlier one had written
    up.kubectl("delete", "pod", "p0")
    up.kubectl("delete", "pvc", "--all")
