"""`volplane world`: desired and actual state of volumes, and the step between them."""

from __future__ import annotations

import sys

import click

from volplane.cli.cluster_reader import WAITS, ClusterChoice, cluster_options, print_report, read_roles
from volplane.explain.cluster_state import ClusterState
from volplane.explain.state_of_world import StateReport, report_states
from volplane.explain.state_table import render_states
from volplane.explain.wait_reports import RoleAnswers
from volplane.loops.volume_states import StateComparison
from volplane.loops.wait_reports import Question


@click.command()
@click.argument("what", metavar="[attachdetach | node/NAME]", default="", required=False)
@click.option("--pending", is_flag=True, help="only volumes whose desired and actual state differ")
@cluster_options
def command(what: str, pending: bool, cluster: ClusterChoice, output: str) -> None:
    """Show DesiredStateOfWorld beside ActualStateOfWorld, and the step that comes next.

    Of the attach/detach controller and of each kubelet, or of one of them. Changes nothing in the cluster.
    Exit code 0: the states agree; 3: something is to be done; 1: it could not be determined.
    """

    async def read(state: ClusterState, answers: RoleAnswers[StateComparison]) -> StateReport:
        return await report_states(state, answers, what, only_pending=pending)

    report = read_roles(cluster, Question.VOLUMES, StateComparison, read)
    print_report(report, render_states, output)
    sys.exit(WAITS if report.waits else 0)
