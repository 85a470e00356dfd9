"""`volplane status`: whether a cluster runs, and where."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from datetime import timedelta

import click
import msgspec
from msgspec import Struct, structs

from volplane.base import clock
from volplane.base.units import format_duration
from volplane.cli.cluster_directory import OUTPUT, directory_options, require_cluster
from volplane.cli.progress import describe_bytes
from volplane.cloud.disks import RESERVE
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.lifecycle import ClusterPhase, find_processes
from volplane.store.sqlite.space import NEEDED, free_space

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
    free: int = 0  # bytes on the disk of the data directory
    certificates_expire: str = ""  # the first of them


class SpaceThreshold(Struct, frozen=True):
    """What does not work below so many free bytes."""

    size: int
    effect: str


# From the most severe one.
THRESHOLDS = (
    SpaceThreshold(NEEDED, "objects can be deleted, none can be created; no cluster starts"),
    SpaceThreshold(100 << 20, "pods are evicted, and no disk is created"),
    SpaceThreshold(RESERVE, "no disk is created"),
)
RENEWED = timedelta(days=30)  # before they expire, a start renews certificates


@click.command()
@OUTPUT
@directory_options
def command(output: str, layout: DataDirectory) -> None:
    """Show whether a cluster runs, and where. Exit code 0: it is ready; 3: it is not; 1: there is none."""
    require_cluster(layout)
    status = add_health(layout, read_status(layout))
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


def add_health(layout: DataDirectory, status: ClusterStatus) -> ClusterStatus:
    """Add what is not needed in a list of clusters."""
    from volplane.apiserver.auth.certificates import inspect_certificates  # takes a while to import

    expiries = [s.expires for s in inspect_certificates(layout.directory / "pki") if s.expires is not None]
    return structs.replace(
        status,
        free=free_space(str(layout.directory)),
        certificates_expire=clock.stamp(min(expiries)) if expiries else "",
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
    if status.certificates_expire:
        yield f"  certificates valid until {status.certificates_expire}{_describe_renewal(status)}"
    if below := next((each for each in THRESHOLDS if status.free < each.size), None):
        yield f"  only {describe_bytes(status.free)} free on its disk: {below.effect}"
    else:
        yield f"  {describe_bytes(status.free)} free on its disk"


def _describe_renewal(status: ClusterStatus) -> str:
    soon = clock.parse(status.certificates_expire) - RENEWED < clock.wall()
    return ": stop and start the cluster to renew them" if soon else ""
