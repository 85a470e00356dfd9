"""`volplane plugins`: the volume plugins of nodes and controllers."""

from __future__ import annotations

import sys

import click

from volplane.cli.cluster_reader import WAITS, ClusterChoice, cluster_options, print_report, read_roles
from volplane.explain.cluster_state import ClusterState
from volplane.explain.plugin_table import render_plugins
from volplane.explain.plugins import PluginsReport, report_plugins
from volplane.explain.wait_reports import RoleAnswers
from volplane.loops.wait_reports import Question
from volplane.volumes.plugin_description import PluginReport


@click.command()
@click.argument("what", metavar="[controller-manager | node/NAME]", default="", required=False)
@cluster_options
def command(what: str, cluster: ClusterChoice, output: str) -> None:
    """List volume plugins: built-in ones, FlexVolume drivers, CSI drivers.

    Of the controllers and of each node, or of one of them, with kind, version, capabilities, health, age and
    origin. Exit code 0: all are healthy; 3: one is not; 1: it could not be determined.
    """

    async def read(state: ClusterState, answers: RoleAnswers[PluginReport]) -> PluginsReport:
        return await report_plugins(state, answers, what)

    report = read_roles(cluster, Question.PLUGINS, PluginReport, read)
    print_report(report, render_plugins, output)
    sys.exit(0 if report.is_healthy else WAITS)
