"""`volplane start`: start a stopped cluster, or a node that `volplane crash` took down."""

from __future__ import annotations

import click

from volplane.cli import cluster_directory
from volplane.cli.background import start_cluster
from volplane.cli.cluster_directory import directory_options, require_cluster, require_known_version
from volplane.cli.error import CommandError
from volplane.cli.options import DURATION
from volplane.cli.role_change import change_role
from volplane.cli.serve import require_root
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.lifecycle import load_start_options
from volplane.cluster.role_control import START
from volplane.cluster.service import choose_unit


@click.command()
@click.argument("role", required=False, default="")
@click.option("--wait", type=DURATION, default=0.0, metavar="2m", help="time to become ready")
@click.option("--update-kubeconfig", is_flag=True, help="make it the current context of ~/.kube/config")
@directory_options
def command(role: str, wait: float, update_kubeconfig: bool, layout: DataDirectory) -> None:
    """Start a stopped cluster again in the background, with the options of its last start.

    With a ROLE such as node/worker-2: start this node again after `volplane crash`. Only a node stays down
    after a crash; other roles are restarted at once.
    """
    if role:
        change_role(layout, START, role)
        return
    require_cluster(layout)
    require_root(layout)
    require_known_version(layout)
    _refuse_service(layout)
    start_cluster(layout, load_start_options(layout).arguments, timeout=wait)
    if update_kubeconfig:
        cluster_directory.update_kubeconfig(layout)


def _refuse_service(layout: DataDirectory) -> None:
    for unit in (choose_unit(layout), choose_unit(layout, user=True)):
        if unit.exists and unit.is_controlled:
            user = " --user" if unit.user else ""
            raise CommandError(f"the cluster is a service: start it with systemctl{user} start {unit.name}")
