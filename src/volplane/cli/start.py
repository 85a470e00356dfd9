"""`volplane start`: start a stopped cluster, or a node that `volplane crash` took down."""

from __future__ import annotations

import click

from volplane.cli.background import prepare_directory, start_cluster
from volplane.cli.cluster_directory import directory_options, require_cluster
from volplane.cli.options import DURATION
from volplane.cli.role_change import change_role
from volplane.cli.serve import require_root
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.lifecycle import load_start_options
from volplane.cluster.role_control import START


@click.command()
@click.argument("role", required=False, default="")
@click.option("--wait", type=DURATION, default=0.0, metavar="2m", help="time to become ready")
@directory_options
def command(role: str, wait: float, layout: DataDirectory) -> None:
    """Start a stopped cluster again in the background, with the options of its last start.

    With a ROLE such as node/worker-2: start this node again after `volplane crash`. Only a node stays down
    after a crash; other roles are restarted at once.
    """
    if role:
        change_role(layout, START, role)
        return
    require_cluster(layout)
    require_root()
    prepare_directory(layout)
    start_cluster(layout, load_start_options(layout).arguments, fresh=False, timeout=wait)
