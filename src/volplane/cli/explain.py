"""`volplane explain`: which step waits, for whom, since when, and what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import click
import msgspec

from volplane.api.errors import APIError, NotFound
from volplane.cli.client_factory import open_transport
from volplane.cli.error import CommandError
from volplane.client import kubeconfig as configs
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.explain import wait_reports
from volplane.explain.cluster_state import ClusterState
from volplane.explain.render import MARKS, render_lines
from volplane.explain.resolve import ExplainTarget, MissingName, UnsupportedKind, explain, parse_target
from volplane.explain.result import ExplainResult, StepState

WAITS = 3  # exit code if something waits
WIDEST = 110
PATIENCE = 60.0  # timeout in seconds


@click.command()
@click.argument("what", metavar="KIND/NAME")
@click.option("-n", "--namespace", default="", metavar="NAME", help="namespace; default: the kubeconfig's")
@click.option("--kubeconfig", default="", metavar="FILE", help="any Kubernetes cluster; default: $KUBECONFIG")
@click.option("--data-dir", default="", metavar="DIR", help="cluster of `volplane up`; shows its timers, too")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="output format")
def command(what: str, namespace: str, kubeconfig: str, data_dir: str, output: str) -> None:
    """Explain why KIND/NAME waits: the step, for whom, since when, and what to do.

    KIND is pvc, pv, pod, volumeattachment, node or volumesnapshot. Changes nothing in the cluster. Exit
    code 0: nothing waits; 3: something waits; 1: it could not be determined.
    """
    if kubeconfig and data_dir:
        raise click.UsageError(
            "--kubeconfig and --data-dir exclude each other: a data directory has its own kubeconfig"
        )
    file = _file(kubeconfig, data_dir)
    try:
        asked = parse_target(what, namespace or (configs.namespace(file) if file else "") or "default")
    except (UnsupportedKind, MissingName) as error:
        raise click.UsageError(str(error)) from error
    except configs.BadKubeconfig as error:
        raise CommandError(str(error)) from error
    answer = asyncio.run(_ask(asked, file))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))
    else:
        _print(answer)
    sys.exit(WAITS if answer.waits else 0)


def _file(kubeconfig: str, data_dir: str) -> str:
    """The kubeconfig to use; "" for a pod's service account."""
    if data_dir:
        return str(Path(data_dir).expanduser().absolute() / "kubeconfig")
    if kubeconfig:
        return kubeconfig
    given = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    usual = [Path("~/.kube/config").expanduser(), Path("~/.volplane/kubeconfig").expanduser()]
    return next(iter(given), "") or next((str(path) for path in usual if path.exists()), "")


async def _ask(asked: ExplainTarget, file: str) -> ExplainResult:
    try:
        async with asyncio.timeout(PATIENCE):
            return await _explain(asked, file)
    except NotFound as error:
        raise CommandError(str(error)) from error
    except APIError as error:
        raise CommandError(f"the API server does not answer: {error}") from error
    except TimeoutError:
        raise CommandError(f"no answer within {PATIENCE:g} seconds") from None


async def _explain(asked: ExplainTarget, file: str) -> ExplainResult:
    carrier: HttpsTransport = open_transport(file, "volplane-explain")
    still = SnapshotCaches(carrier, namespace=asked.namespace)
    try:
        obj = await Client(carrier, caches=still).get(asked.type, asked.name, asked.namespace)
        reports = (
            await wait_reports.read_all_reports(Path(file).parent / "run")
            if file
            else wait_reports.RoleReports()
        )
        return await explain(ClusterState(still, reports), asked, obj)
    finally:
        await still.close()
        await carrier.close()


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
