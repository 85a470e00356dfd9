"""`volplane explain`: which step waits, for what, since when, and what to do."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click
import msgspec

from volplane.cli.cluster_reader import (
    WAITS,
    WIDEST,
    ClusterChoice,
    cluster_options,
    read_cluster,
)
from volplane.client.client import Client
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.explain import wait_reports
from volplane.explain.cluster_state import ClusterState
from volplane.explain.render import MARKS, render_lines
from volplane.explain.resolve import ExplainTarget, MissingName, UnsupportedKind, explain, parse_target
from volplane.explain.result import ExplainResult, StepState


@click.command()
@click.argument("what", metavar="KIND/NAME")
@click.option("-n", "--namespace", default="", metavar="NAME", help="namespace; default: the kubeconfig's")
@cluster_options
def command(what: str, namespace: str, cluster: ClusterChoice, output: str) -> None:
    """Explain why KIND/NAME waits: the step, for what, since when, and what to do.

    KIND is pvc, pv, pod, volumeattachment, node or volumesnapshot. Changes nothing in the cluster. Exit
    code 0: nothing waits; 3: something waits; 1: it could not be determined.
    """
    try:
        target = parse_target(what, namespace or cluster.namespace or "default")
    except (UnsupportedKind, MissingName) as error:
        raise click.UsageError(str(error)) from error
    answer = read_cluster(
        cluster,
        lambda caches: explain_target(caches, target, cluster.sockets),
        component="volplane-explain",
        namespace=target.namespace,
    )
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))
    else:
        _print(answer)
    sys.exit(WAITS if answer.waits else 0)


async def explain_target(
    caches: SnapshotCaches, target: ExplainTarget, sockets: Path | None
) -> ExplainResult:
    """Explain one object; `sockets` is the directory with the sockets of the running roles."""
    client = Client(caches._transport, caches=caches)
    obj = await client.get(target.type, target.name, target.namespace)
    reports = await wait_reports.read_all_reports(sockets) if sockets else wait_reports.RoleReports()
    return await explain(ClusterState(caches, reports), target, obj)


def _print(answer: ExplainResult) -> None:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    first = True
    for line in render_lines(answer, width):
        first = first and bool(line.strip())
        if first:
            line = click.style(line, bold=True)
        elif line.startswith(f"  {MARKS[StepState.WAITS]}"):
            line = click.style(line, fg="yellow")
        click.echo(line)
