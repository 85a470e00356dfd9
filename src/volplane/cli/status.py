"""`volplane status`: whether a cluster runs, and where."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import click
import msgspec
from msgspec import Struct

from volplane.base.units import format_duration
from volplane.cli.cluster_directory import OUTPUT, directory_options, require_cluster
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.lifecycle import ClusterPhase, find_processes

NOT_RUNNING = 3  # exit code


class ClusterStatus(Struct, frozen=True, rename="camel"):
    data_dir: str
    phase: ClusterPhase
    pid: int
    supervisor: int  # 0: runs in the foreground, or not at all
    age: float  # seconds since its start
    server: str
    kubeconfig: str
    name: str = ""


@click.command()
@OUTPUT
@directory_options
def command(output: str, layout: DataDirectory) -> None:
    """Show whether a cluster runs, and where. Exit code 0: it is ready; 3: it is not; 1: there is none."""
    require_cluster(layout)
    status = read_status(layout)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(status), indent=2))
    else:
        for line in render_status(status):
            click.echo(line)
    sys.exit(0 if status.phase is ClusterPhase.RUNNING else NOT_RUNNING)


def read_status(layout: DataDirectory, name: str = "") -> ClusterStatus:
    found = find_processes(layout)
    port = layout.load_saved().port
    return ClusterStatus(
        data_dir=str(layout.directory),
        phase=found.phase,
        pid=found.pid,
        supervisor=found.supervisor,
        age=round(time.time() - found.started, 1) if found.started else 0.0,
        server=f"https://127.0.0.1:{port}" if port else "",
        kubeconfig=str(layout.kubeconfig) if layout.kubeconfig.exists() else "",
        name=name,
    )


def render_status(status: ClusterStatus) -> Iterable[str]:
    yield f"{status.phase.value}: {status.data_dir}"
    if status.pid:
        where = (
            f"in the background, supervisor {status.supervisor}" if status.supervisor else "in the foreground"
        )
        yield f"  process {status.pid} for {format_duration(round(status.age))}, {where}"
    if status.server:
        yield f"  API server {status.server}"
    if status.kubeconfig:
        yield f"  kubeconfig {status.kubeconfig}"
