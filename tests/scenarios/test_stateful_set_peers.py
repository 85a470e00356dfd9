"""PostgreSQL and its replica find each other by name: through a move, a crash and a restart of the cluster.

Both are pods of one StatefulSet, each with a disk. The replica copies the primary from `db-0.db`, and follows
it there; clients write through a Service with an address.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import Up

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

START = r"""
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
data=/var/data/pgdata
mkdir -p "$data" /run/postgresql
chmod 700 "$data"
chown postgres: "$data" /run/postgresql
as="setpriv --reuid=postgres --regid=postgres --clear-groups"
if ! test -s "$data/PG_VERSION"; then
    if test "$(hostname)" = db-0; then
        $as "$bin/initdb" -D "$data" -U postgres --auth=trust >/dev/null
        printf 'host all all all trust\nhost replication all all trust\n' >> "$data/pg_hba.conf"
    else
        until $as "$bin/pg_basebackup" -D "$data" -R -h db-0.db -U postgres; do sleep 0.2; done
    fi
fi
exec $as "$bin/postgres" -D "$data" -c 'listen_addresses=*' -c wal_retrieve_retry_interval=200
"""
MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: db}, ports: [{name: sql, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: primary}
spec: {selector: {statefulset.kubernetes.io/pod-name: db-0}, ports: [{port: 5433, targetPort: 5432}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: postgres
        image: postgres
        env: [{name: LC_ALL, value: C.UTF-8}]
        command: [sh, -c, SCRIPT]
        volumeMounts: [{name: data, mountPath: /var/data}]
        readinessProbe: {tcpSocket: {port: 5432}, periodSeconds: 1}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: gp3, resources: {requests: {storage: 1Gi}}}
"""


def sql(up: Up, pod: str, host: str, port: int, text: str) -> str:
    """Run a statement, as a client in that pod, and return the last line of its result."""
    client = ("psql", "-At", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-h", host, "-p", str(port))
    lines = up.kubectl("exec", pod, "--", "env", "PGCONNECT_TIMEOUT=5", *client, "-c", text).splitlines()
    return lines[-1] if lines else ""


def write_and_follow(up: Up, row: int) -> None:
    """Write a row from the replica's pod through the Service, and wait until the replica has it."""
    insert = f"INSERT INTO t VALUES ({row})"
    up.wait(f"row {row} is written", lambda: sql(up, "db-1", "primary", 5433, insert))
    rows = ",".join(str(number) for number in range(1, row + 1))
    ask = "SELECT string_agg(DISTINCT n::text, ',') FROM t"
    up.wait(f"row {row} is replicated", lambda: sql(up, "db-0", "db-1.db", 5432, ask) == rows)


def find_node(up: Up, pod: str) -> Any:
    return up.get("pod", pod)["spec"]["nodeName"]


def test_a_replica_follows_its_primary_by_name_wherever_it_is() -> None:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("Debian's postgresql is not installed: tools/packages.sh")
    with Up(nodes=2) as up:
        up.apply(MANIFEST.replace("SCRIPT", json.dumps(START)))
        up.wait("the primary answers", lambda: sql(up, "db-0", "db-0.db", 5432, "CREATE TABLE t (n int)"))
        write_and_follow(up, 1)
        where, address = find_node(up, "db-0"), up.get("pod", "db-0")["status"]["podIP"]
        up.kubectl("cordon", where)
        up.kubectl("delete", "pod", "db-0")
        write_and_follow(up, 2)
        assert find_node(up, "db-0") != where
        assert up.get("pod", "db-0")["status"]["podIP"] != address
        up.kubectl("uncordon", where)

        up.kill()
        up.start()
        write_and_follow(up, 3)
        assert up.stop() == 0
        assert up.leftovers() == {}
        up.start()
        write_and_follow(up, 4)
        assert up.stop() == 0
        assert up.leftovers() == {}
