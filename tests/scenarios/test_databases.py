"""Databases on disks of ours: what they have acknowledged survives an update and the loss of their node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.up import VOLPLANE, Up

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "05-databases"
NAMES = ("postgresql", "redis")
ROWS = 200

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "redis-server"), pytest.mark.slow]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("Debian's postgresql is not installed: tools/packages.sh")
    made = Up("--separate", nodes=2)  # of one zone
    with made as cluster:
        yield cluster
    assert made.leftovers() == {}


def psql(up: Up, statement: str) -> str:
    """The answer of the database, as psql prints it."""
    command = ("psql", "-h", "/tmp", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-At", "-c", statement)
    return up.kubectl("exec", "postgresql-0", "--", *command).strip()


def redis(up: Up, *words: str) -> str:
    return up.kubectl("exec", "redis-0", "--", "redis-cli", "-s", "/tmp/redis.sock", *words).strip()


def put(up: Up, run: str) -> None:
    """Rows and keys of a run; both databases answer when they are on the disk."""
    psql(up, f"INSERT INTO kept SELECT '{run}', n FROM generate_series(1, {ROWS}) n")
    values = [word for n in range(ROWS) for word in (f"{run}:{n}", str(n))]
    assert redis(up, "MSET", *values) == "OK"


def check(up: Up, *runs: str) -> None:
    """All that was ever put is there, and nothing else."""
    expected = "\n".join(f"{run}|{ROWS}|{ROWS * (ROWS + 1) // 2}" for run in sorted(runs))
    assert psql(up, "SELECT run, count(*), sum(n) FROM kept GROUP BY run ORDER BY run") == expected
    assert redis(up, "DBSIZE") == str(len(runs) * ROWS)
    for run in runs:
        assert redis(up, "MGET", *(f"{run}:{n}" for n in range(ROWS))).split() == list(map(str, range(ROWS)))


def is_ready(up: Up, name: str) -> bool:
    found = up.get("statefulset", name)
    status = found["status"]
    current = status.get("updateRevision") == status.get("currentRevision")
    seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return bool(seen and current and status.get("readyReplicas") == 1)


def are_ready(up: Up, node: str) -> bool:
    """Both, and on this node."""
    pods = [up.get("pod", f"{name}-0") for name in NAMES]
    return all(is_ready(up, name) for name in NAMES) and {p["spec"]["nodeName"] for p in pods} == {node}


def crash(up: Up, node: str, *more: str) -> None:
    command = [VOLPLANE, "crash", f"node/{node}", "--data-dir", str(up.directory), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_database_has_acknowledged_survives_an_update_and_a_lost_node(up: Up) -> None:
    up.kubectl("cordon", "worker-2")
    up.kubectl("apply", "-f", str(EXAMPLE))
    up.wait("both databases are ready", lambda: are_ready(up, "worker-1"))
    psql(up, "CREATE TABLE kept (run text, n int, PRIMARY KEY (run, n))")
    put(up, "first")
    check(up, "first")

    for name in NAMES:
        up.kubectl("set", "env", f"statefulset/{name}", "RELEASE=two")
        up.kubectl("rollout", "status", f"statefulset/{name}", "--timeout=100s")
    up.wait("both are new", lambda: are_ready(up, "worker-1"))
    assert up.kubectl("exec", "postgresql-0", "--", "printenv", "RELEASE").strip() == "two"
    check(up, "first")

    up.kubectl("uncordon", "worker-2")
    put(up, "second")
    crash(up, "worker-1")  # with the last answers just given
    up.kubectl("delete", "node", "worker-1")
    up.wait("both databases run elsewhere", lambda: are_ready(up, "worker-2"))
    check(up, "first", "second")
    put(up, "third")
    check(up, "first", "second", "third")

    crash(up, "worker-1", "--revive")
    up.kubectl("delete", "-f", str(EXAMPLE), "--timeout=100s")
    up.kubectl("delete", "pvc", "--all", "--timeout=100s")
    up.wait("nothing is left", lambda: not up.items("pv"))
    up.wait("the node is back", lambda: up.get("csinode", "worker-1")["spec"].get("drivers"))
