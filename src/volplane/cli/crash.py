"""`volplane crash`: simulate a power loss of a node, or kill the process of a role."""

from __future__ import annotations

import click

from volplane.cli.cluster_directory import directory_options
from volplane.cli.role_change import change_role
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.role_control import CRASH, START


@click.command()
@click.argument("role")
@click.option("--revive", is_flag=True, help="start a crashed node again, like volplane start")
@directory_options
def command(role: str, revive: bool, layout: DataDirectory) -> None:
    """Crash ROLE: node/worker-2, apiserver, cloud, scheduler or controller-manager.

    A node loses its kubelet, containers and mounts, like a machine that loses power, and stays down until
    `volplane start`. Other roles are killed with SIGKILL and restarted at once; they are processes of their
    own only in a cluster started with `volplane up --separate`.
    """
    change_role(layout, START if revive else CRASH, role)
