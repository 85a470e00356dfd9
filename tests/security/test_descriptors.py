"""File descriptors: the process takes all it may have, its children do not, and pods never take the last."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.up import VOLPLANE, Up, environment
from volplane.host import Host
from volplane.host.processes import run
from volplane.node.descriptor_budget import LEAST_RESERVE

SOFT = 1024
LOW = 224  # what a cluster of one node needs to start; it has about 115 open then
ROOM = 20  # descriptors that are left for pods


def with_limits(soft: int, hard: int, *program: str) -> list[str]:
    """A command line whose program starts under these limits of open files, in the shell's own process."""
    return ["/bin/sh", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$0" "$@"', *program]


def python(code: str, soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    command = with_limits(soft, hard, sys.executable, "-c", code)
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


RAISED = """
import resource
from volplane.base import descriptors
from volplane.host.processes import run
print(descriptors.raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))
print(run(["/bin/sh", "-c", "sleep 0.05; ulimit -Sn; ulimit -Hn"]).output)
"""


def test_the_soft_limit_is_raised_and_commands_get_the_old_one() -> None:
    done = python(RAISED, 300, 2000)
    assert done.stdout.split() == ["2000", "(2000,", "2000)", "300", "2000"], done.stderr


SPAWNED = """
import asyncio, os, resource
from volplane.base import descriptors
from volplane.host.processes import spawn
descriptors.raise_limit()
child = spawn(["/bin/sleep", "60"])
print(resource.prlimit(child.pid, resource.RLIMIT_NOFILE))
child.kill()
asyncio.run(child.wait())
"""


def test_a_program_that_is_spawned_gets_the_old_limit() -> None:
    done = python(SPAWNED, 300, 2000)
    assert done.stdout.strip() == "(300, 2000)", done.stderr


@pytest.mark.parametrize("verb", ["up", "apiserver"])
def test_too_few_descriptors_are_said_in_a_sentence(verb: str, tmp_path: Path) -> None:
    command = with_limits(64, 64, VOLPLANE, verb, "--data-dir", str(tmp_path / "data"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == 1
    assert "the limit of open files is 64" in done.stderr
    assert "ulimit -Hn" in done.stderr
    assert "Traceback" not in done.stderr


def pod(name: str) -> dict[str, object]:
    container = {"name": "main", "image": "busybox", "command": ["sleep", "3600"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def create(up: Up, *names: str) -> None:
    up.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod(name) for name in names]}))


def statuses(up: Up) -> dict[str, tuple[str, str]]:
    found = up.items("pods", "-n", "default")
    return {p["metadata"]["name"]: (p["status"].get("phase"), p["status"].get("reason", "")) for p in found}


def pressure(up: Up) -> dict[str, str]:
    conditions = up.get("node", "worker-1")["status"]["conditions"]
    found: dict[str, str] = next(c for c in conditions if c["type"] == "PIDPressure")
    return found


def set_limit(up: Up, soft: int) -> None:
    _, hard = resource.prlimit(up.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(up.pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.root
def test_pods_are_refused_before_descriptors_run_out_and_taken_again_when_there_is_room() -> None:
    names = [f"p{number}" for number in range(8)]
    with Up(nodes=1, program=with_limits(LOW, LOW, VOLPLANE, "up")) as up:
        create(up, "first")
        up.wait_running("first")
        limit = min(LOW, len(os.listdir(f"/proc/{up.pid}/fd")) + LEAST_RESERVE + ROOM)
        set_limit(up, limit)
        create(up, *names)

        def are_some_refused() -> bool:
            phases = [phase for phase, _ in statuses(up).values()]
            return "Running" in phases and "Failed" in phases

        up.wait("some pods run, others are refused", are_some_refused, 60)
        seen = statuses(up)
        running = [name for name, (phase, _) in seen.items() if phase == "Running"]
        refused = [name for name, (phase, _) in seen.items() if phase == "Failed"]
        assert {seen[name][1] for name in refused} == {"OutOfFileDescriptors"}
        assert "OutOfFileDescriptors" in up.kubectl("get", "pod", refused[0])
        up.describe("pod", refused[0], "OutOfFileDescriptors", f"of {limit} file descriptors")

        # Running pods go on, and exec and logs work.
        inside = up.kubectl("exec", running[0], "--", "sh", "-c", "ulimit -Sn")
        assert int(inside) == LOW  # what `up` itself was started with
        assert up.kubectl("logs", running[0]) == ""

        set_limit(up, len(os.listdir(f"/proc/{up.pid}/fd")) + LEAST_RESERVE)
        up.wait("the node says so", lambda: pressure(up)["status"] == "True", 60)
        assert pressure(up)["reason"] == "KubeletHasInsufficientFileDescriptors"
        up.describe("node", "worker-1", "file descriptors", "node.kubernetes.io/pid-pressure")

        set_limit(up, limit)
        up.kubectl("delete", "pods", "-n", "default", "--all", "--force", "--grace-period=0")
        up.wait("the pressure is gone", lambda: pressure(up)["status"] == "False", 60)
        create(up, "later")
        up.wait_running("later")


@pytest.mark.root
async def test_a_container_does_not_inherit_a_limit_that_was_raised() -> None:
    """select() breaks above 1024, so programs get what the process was started with."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= SOFT:
        pytest.skip("the hard limit leaves nothing to raise")
    with Up(nodes=1, program=with_limits(SOFT, hard, VOLPLANE, "up")) as up:
        assert resource.prlimit(up.pid, resource.RLIMIT_NOFILE)[0] > SOFT
        create(up, "a")
        up.wait_running("a")
        assert int(up.kubectl("exec", "a", "--", "sh", "-c", "ulimit -Sn")) == SOFT


async def test_commands_keep_the_limit_where_nothing_was_raised() -> None:
    host = Host()
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (await host.call(run, ["/bin/sh", "-c", "ulimit -Sn"])).output == str(soft)
    finally:
        await host.close()
