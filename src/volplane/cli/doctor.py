"""`volplane doctor`: is this machine able to run a cluster, and is the cluster well?"""

from __future__ import annotations

import sys
from functools import partial

import click
import msgspec

from volplane.cli.cluster_reader import choice_options, choose_cluster, read_cluster, resolve_name
from volplane.cli.error import CommandError
from volplane.client.client import Client
from volplane.client.kubeconfig import CURRENT, ContextChoice
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.explain.doctor import (
    DoctorArea,
    DoctorCheck,
    check_cluster,
    check_machine,
    check_rights,
)

FOUND = 3  # exit code
DEFAULT_DIRECTORY = "~/.volplane"


@click.command()
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="output format")
@partial(choice_options, data_dir_help="cluster of `volplane up`")
def command(
    kubeconfig: str, context: str, cluster: str, user: str, name: str, data_dir: str, output: str
) -> None:
    """Check this machine, the rights of this user, and the cluster, and say what to do.

    Changes nothing, and runs on any operating system. Without a cluster, only the machine is checked. Exit
    code 0: everything is fine; 3: there is a problem.
    """
    directory = resolve_name(name, data_dir) if name else data_dir or DEFAULT_DIRECTORY
    found = [*check_machine(directory), *check_rights()]
    found += _check_cluster(kubeconfig, data_dir, ContextChoice(context, cluster, user), name)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        _print(found)
    sys.exit(FOUND if any(check.is_problem for check in found) else 0)


def _check_cluster(kubeconfig: str, data_dir: str, context: ContextChoice, name: str) -> list[DoctorCheck]:
    area = DoctorArea.CLUSTER
    is_named = bool(kubeconfig or data_dir or name) or context != CURRENT
    try:
        chosen = choose_cluster(kubeconfig, data_dir, context, name)
    except CommandError as error:
        return [DoctorCheck(area, "not checked", str(error), is_named)]

    async def read(caches: SnapshotCaches) -> list[DoctorCheck]:
        return list(await check_cluster(Client(caches._transport, caches=caches)))

    try:
        return read_cluster(chosen, read, component="volplane-doctor")
    except CommandError as error:
        advice = "start it, or choose another with --kubeconfig or --context"
        return [DoctorCheck(area, str(error), advice, is_problem=True)]


def _print(found: list[DoctorCheck]) -> None:
    for check in found:
        mark = "✗" if check.is_problem else "·" if check.advice else "✓"
        line = f"{mark} {check.area.value}: {check.text}"
        click.echo(click.style(line, fg="yellow") if check.is_problem else line)
        if check.advice:
            click.echo(f"    {check.advice}")
