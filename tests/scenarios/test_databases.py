"""Databases on disks of ours: what they have acknowledged survives an update and the loss of their node.

PostgreSQL is our own example. Redis is a StatefulSet that nobody here wrote, from the end-to-end tests of
Kubernetes as the Go proxy has them: its manifests are applied as they are, and only the image that brings the
program is ours. Where the module cannot be had, or pods have no networks of their own, the example's Redis
takes its place.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.up import VOLPLANE, Up

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "05-databases"
ROWS = 200
MODULE = "k8s.io/kubernetes@v1.20.0"  # the last version that had it
IMAGE = "gcr.io/kubernetes-e2e-test-images/pets/redis-installer"

# What the image does at the start of each pod: a program, its settings, and somebody who looks for the peers
# of the set. There is one replica here, so there are none.
INSTALLER = """#!/bin/sh
set -e
mkdir -p /opt/redis
ln -sf /usr/bin/redis-server /usr/bin/redis-cli /opt/redis/
printf 'dir /data\\nappendonly yes\\nappendfsync always\\n' > /opt/redis/redis.conf
printf 'protected-mode no\\nbind 0.0.0.0\\n' >> /opt/redis/redis.conf
printf '#!/bin/sh\\nexit 0\\n' > /work-dir/peer-finder
chmod 755 /work-dir/peer-finder
"""

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "redis-server"), pytest.mark.slow]


class Redis(Struct, frozen=True):
    set: str
    manifests: tuple[Path, ...]
    client: tuple[str, ...]


OURS = Redis("redis", (EXAMPLE / "redis.yaml",), ("redis-cli", "-s", "/tmp/redis.sock"))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("Debian's postgresql is not installed: tools/packages.sh")
    program = tmp_path_factory.mktemp("image") / "install"
    program.write_text(INSTALLER)
    program.chmod(0o755)
    made = Up("--separate", "--image", f"{IMAGE}={program}", nodes=2)  # of one zone
    with made as cluster:
        yield cluster
    assert made.leftovers() == {}


@pytest.fixture(scope="module")
def redis(up: Up) -> Redis:
    apart = up.get("node", "worker-1")["spec"].get("podCIDR")
    if not apart or shutil.which("go") is None:
        return OURS  # the other one is asked by its pod's name and port, which only a network of its own has
    done = subprocess.run(
        ["go", "mod", "download", "-json", MODULE], cwd="/", capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        return OURS
    place = Path(json.loads(done.stdout)["Dir"]) / "test/e2e/testing-manifests/statefulset/redis"
    manifests = (place / "service.yaml", place / "statefulset.yaml")
    return Redis("rd", manifests, ("/opt/redis/redis-cli", "-h", "rd-0"))


class Databases:
    def __init__(self, up: Up, redis: Redis) -> None:
        self.up, self.redis = up, redis
        self.sets = ("postgresql", redis.set)

    def apply(self) -> None:
        for file in (EXAMPLE / "postgresql.yaml", *self.redis.manifests):
            self.up.kubectl("apply", "-f", str(file))
        self.up.kubectl("scale", "statefulset", self.redis.set, "--replicas=1")

    def sql(self, statement: str) -> str:
        """The answer of the database, as psql prints it."""
        command = ("psql", "-h", "/tmp", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-At", "-c", statement)
        return self.up.kubectl("exec", "postgresql-0", "--", *command).strip()

    def ask(self, *words: str) -> str:
        command = ("exec", f"{self.redis.set}-0", "-c", "redis", "--", *self.redis.client, *words)
        return self.up.kubectl(*command).strip()

    def put(self, run: str) -> None:
        """Rows and keys of a run; both databases answer when they are on the disk."""
        self.sql(f"INSERT INTO kept SELECT '{run}', n FROM generate_series(1, {ROWS}) n")
        values = [word for n in range(ROWS) for word in (f"{run}:{n}", str(n))]
        assert self.ask("MSET", *values) == "OK"

    def check(self, *runs: str) -> None:
        """All that was ever put is there, and nothing else."""
        expected = "\n".join(f"{run}|{ROWS}|{ROWS * (ROWS + 1) // 2}" for run in sorted(runs))
        assert self.sql("SELECT run, count(*), sum(n) FROM kept GROUP BY run ORDER BY run") == expected
        assert self.ask("DBSIZE") == str(len(runs) * ROWS)
        for run in runs:
            held = self.ask("MGET", *(f"{run}:{n}" for n in range(ROWS))).split()
            assert held == list(map(str, range(ROWS)))

    def are_ready(self, node: str, release: str = "") -> bool:
        """Both, on this node, and of this release."""
        pods = [self.up.get("pod", f"{name}-0") for name in self.sets]
        variables = [
            {e["name"]: e.get("value") for e in p["spec"]["containers"][0].get("env", [])} for p in pods
        ]
        return (
            all(is_ready(self.up, name) for name in self.sets)
            and {p["spec"]["nodeName"] for p in pods} == {node}
            and (not release or [v.get("RELEASE") for v in variables] == [release] * len(pods))
        )


def is_ready(up: Up, name: str) -> bool:
    found = up.get("statefulset", name)
    status = found["status"]
    current = status.get("updateRevision") == status.get("currentRevision")
    seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return bool(seen and current and status.get("readyReplicas") == status.get("replicas") == 1)


def crash(up: Up, node: str, *more: str) -> None:
    command = [VOLPLANE, "crash", f"node/{node}", "--data-dir", str(up.directory), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_database_has_acknowledged_survives_an_update_and_a_lost_node(up: Up, redis: Redis) -> None:
    both = Databases(up, redis)
    up.kubectl("cordon", "worker-2")
    both.apply()
    up.wait("both databases are ready", lambda: both.are_ready("worker-1"))
    both.sql("CREATE TABLE kept (run text, n int, PRIMARY KEY (run, n))")
    both.put("first")
    both.check("first")

    for name in both.sets:
        up.kubectl("set", "env", f"statefulset/{name}", "RELEASE=two")
    up.wait("both are new", lambda: both.are_ready("worker-1", "two"))
    both.check("first")

    up.kubectl("uncordon", "worker-2")
    both.put("second")
    crash(up, "worker-1")  # with the last answers just given
    up.kubectl("delete", "node", "worker-1")
    up.wait("both databases run elsewhere", lambda: both.are_ready("worker-2", "two"))
    both.check("first", "second")
    both.put("third")
    both.check("first", "second", "third")

    crash(up, "worker-1", "--revive")
    up.kubectl("delete", "statefulset", *both.sets, "--timeout=100s")
    up.kubectl("delete", "pvc", "--all", "--timeout=100s")
    up.wait("nothing is left", lambda: not up.items("pv"))
    up.wait("the node is back", lambda: up.get("csinode", "worker-1")["spec"].get("drivers"))
