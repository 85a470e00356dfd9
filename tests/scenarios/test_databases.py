"""Databases on disks of ours: what they have acknowledged survives an update and the loss of their node.

Nobody here wrote the manifests: PostgreSQL is the database that Tekton Results deploys for itself, Redis the
StatefulSet of Kubernetes' own end-to-end tests, both as the Go module proxy has them (`make peers`). They are
applied as they are, and only the images that bring the programs are ours. Where pods have no networks of
their own, our examples take their place.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.support import peers
from tests.support.up import VOLPLANE, Up

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "05-databases"
ROWS = 200
PASSWORD = "not:a/secret word"

# What the image of PostgreSQL does: a directory for its user, a first start with the variables and scripts
# that its users know, then the server. The image says where the data lies, and this one says: on the disk.
POSTGRES = """#!/bin/sh
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
as="setpriv --reuid=postgres --regid=postgres --clear-groups"
mkdir -p "$PGDATA" /run/postgresql
chmod 700 "$PGDATA"
chown postgres: "$PGDATA" /run/postgresql
if ! test -s "$PGDATA/PG_VERSION"; then
    printf '%s\\n' "$POSTGRES_PASSWORD" > /run/password
    chown postgres: /run/password
    $as "$bin/initdb" -U "$POSTGRES_USER" --pwfile=/run/password --auth-local=trust --auth-host=scram-sha-256
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    $as "$bin/pg_ctl" -w -o '-c listen_addresses=' start
    $as createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        $as psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" -f "$script"
    done
    $as "$bin/pg_ctl" -w -m fast stop
fi
exec $as "$bin/postgres" -c 'listen_addresses=*'
"""

# What the other image does at the start of each pod: a program, its settings, and somebody who looks for the
# peers of the set. There is one replica here, so there are none.
REDIS = """#!/bin/sh
set -e
mkdir -p /opt/redis
ln -sf /usr/bin/redis-server /usr/bin/redis-cli /opt/redis/
printf 'dir /data\\nappendonly yes\\nappendfsync always\\n' > /opt/redis/redis.conf
printf 'protected-mode no\\nbind 0.0.0.0\\n' >> /opt/redis/redis.conf
printf '#!/bin/sh\\nexit 0\\n' > /work-dir/peer-finder
chmod 755 /work-dir/peer-finder
"""

PROGRAMS = ("kubectl", "redis-server", "redis-manifests", "postgresql-manifests")
pytestmark = [pytest.mark.root, pytest.mark.peer(*PROGRAMS), pytest.mark.slow]


class Database(Struct, frozen=True):
    set: str
    client: tuple[str, ...]  # what asks it, in its own container
    namespace: str = "default"

    @property
    def place(self) -> tuple[str, str]:
        return "-n", self.namespace


SQL = ("psql", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-At")
EXAMPLES = (
    Database("postgresql", (*SQL, "-h", "/tmp", "-c")),
    Database("redis", ("redis-cli", "-s", "/tmp/redis.sock")),
)
TEKTON = "tekton-results-postgres"
OTHERS = (
    Database(
        TEKTON,
        ("env", f"PGPASSWORD={PASSWORD}", *SQL, "-h", f"{TEKTON}-0", "-d", "tekton-results", "-c"),
        "tekton-pipelines",
    ),
    Database("rd", ("/opt/redis/redis-cli", "-h", "rd-0")),
)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("Debian's postgresql is not installed: tools/packages.sh")
    place = tmp_path_factory.mktemp("images")
    for name, script in (("postgres", POSTGRES), ("redis-installer", REDIS)):
        (place / name).write_text(script)
        (place / name).chmod(0o755)
    images = (
        f"postgres=PGDATA=/var/data/pgdata LC_ALL=C.UTF-8 {place}/postgres",
        f"gcr.io/kubernetes-e2e-test-images/pets/redis-installer={place}/redis-installer",
    )
    made = Up(
        "--separate", *(word for image in images for word in ("--image", image)), nodes=2
    )  # of one zone
    with made as cluster:
        yield cluster
    assert made.leftovers() == {}


def deploy(up: Up) -> tuple[Database, Database]:
    if not up.get("node", "worker-1")["spec"].get("podCIDR"):
        for database in EXAMPLES:
            up.kubectl("apply", "-f", str(EXAMPLE / f"{database.set}.yaml"))
        return EXAMPLES  # the others are asked by their pods' names, which need networks of their own
    # As its installation guide says: the namespace and the secret are the operator's, and all else is
    # applied, but for the two programs that would use the database.
    sql, redis = OTHERS
    up.kubectl("create", "namespace", sql.namespace)
    words = (f"--from-literal=POSTGRES_{k}={v}" for k, v in (("USER", "postgres"), ("PASSWORD", PASSWORD)))
    up.kubectl("create", "secret", "generic", TEKTON, *sql.place, *words)
    without = "app.kubernetes.io/name notin (tekton-results-api, tekton-results-watcher)"
    (config,) = peers.manifests("postgresql-manifests", "kustomization.yaml")
    up.kubectl("apply", "-k", str(config.parent), "-l", without)
    for file in peers.manifests("redis-manifests", "service.yaml", "statefulset.yaml"):
        up.kubectl("apply", "-f", str(file))
    up.kubectl("scale", "statefulset", redis.set, "--replicas=1")
    return OTHERS


class Databases:
    def __init__(self, up: Up) -> None:
        self.up = up
        self.both = self.postgresql, self.redis = deploy(up)

    def ask(self, database: Database, *words: str) -> str:
        command = ("exec", f"{database.set}-0", *database.place, "--", *database.client, *words)
        return self.up.kubectl(*command).strip()

    def put(self, run: str) -> None:
        """Rows and keys of a run; both databases answer when they are on the disk."""
        self.ask(self.postgresql, f"INSERT INTO kept SELECT '{run}', n FROM generate_series(1, {ROWS}) n")
        values = [word for n in range(ROWS) for word in (f"{run}:{n}", str(n))]
        assert self.ask(self.redis, "MSET", *values) == "OK"

    def check(self, *runs: str) -> None:
        """All that was ever put is there, and nothing else."""
        expected = "\n".join(f"{run}|{ROWS}|{ROWS * (ROWS + 1) // 2}" for run in sorted(runs))
        asked = "SELECT run, count(*), sum(n) FROM kept GROUP BY run ORDER BY run"
        assert self.ask(self.postgresql, asked) == expected
        assert self.ask(self.redis, "DBSIZE") == str(len(runs) * ROWS)
        for run in runs:
            held = self.ask(self.redis, "MGET", *(f"{run}:{n}" for n in range(ROWS))).split()
            assert held == list(map(str, range(ROWS)))

    def are_ready(self, node: str, release: str = "") -> bool:
        """Both, on this node, and of this release."""
        return all(self._is_ready(each, node, release) for each in self.both)

    def _is_ready(self, database: Database, node: str, release: str) -> bool:
        pod = self.up.get("pod", f"{database.set}-0", *database.place)["spec"]
        variables = {e["name"]: e.get("value") for e in pod["containers"][0].get("env", [])}
        return (
            is_ready(self.up.get("statefulset", database.set, *database.place))
            and pod["nodeName"] == node
            and (not release or variables.get("RELEASE") == release)
        )


def is_ready(found: dict[str, Any]) -> bool:
    status = found["status"]
    current = status.get("updateRevision") == status.get("currentRevision")
    seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    return bool(seen and current and status.get("readyReplicas") == status.get("replicas") == 1)


def crash(up: Up, node: str, *more: str) -> None:
    command = [VOLPLANE, "crash", f"node/{node}", "--data-dir", str(up.directory), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_database_has_acknowledged_survives_an_update_and_a_lost_node(up: Up) -> None:
    up.kubectl("cordon", "worker-2")
    databases = Databases(up)
    up.wait("both databases are ready", lambda: databases.are_ready("worker-1"))
    if databases.both is OTHERS:  # its own tables, from the script that lies beside it
        assert databases.ask(databases.postgresql, "SELECT count(*) FROM results, records") == "0"
    databases.ask(databases.postgresql, "CREATE TABLE kept (run text, n int, PRIMARY KEY (run, n))")
    databases.put("first")
    databases.check("first")

    for database in databases.both:
        up.kubectl("set", "env", f"statefulset/{database.set}", *database.place, "RELEASE=two")
    up.wait("both are new", lambda: databases.are_ready("worker-1", "two"))
    databases.check("first")

    up.kubectl("uncordon", "worker-2")
    databases.put("second")
    crash(up, "worker-1")  # with the last answers just given
    up.kubectl("delete", "node", "worker-1")
    up.wait("both databases run elsewhere", lambda: databases.are_ready("worker-2", "two"))
    databases.check("first", "second")
    databases.put("third")
    databases.check("first", "second", "third")

    crash(up, "worker-1", "--revive")
    for database in databases.both:
        up.kubectl("delete", "statefulset", database.set, *database.place, "--timeout=100s")
        up.kubectl("delete", "pvc", "--all", *database.place, "--timeout=100s")
    up.wait("nothing is left", lambda: not up.items("pv"))
    up.wait("the node is back", lambda: up.get("csinode", "worker-1")["spec"].get("drivers"))
