"""`volplane explain`: which step waits, on whom, since when, and what to do about it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import click
import msgspec

from volplane.api.errors import APIError, NotFound
from volplane.cli.connecting import transport
from volplane.cli.failure import Failure
from volplane.client import kubeconfig as configs
from volplane.client.client import Client
from volplane.client.https import Https
from volplane.client.still import Still
from volplane.explain import roles
from volplane.explain.answer import Answer, State
from volplane.explain.asking import NoName, Subject, UnknownKind, explain, subject
from volplane.explain.scene import Scene
from volplane.explain.text import MARKS, lines

WAITS = 3  # the exit code where something waits
WIDEST = 110
PATIENCE = 60.0  # seconds for the whole answer


@click.command()
@click.argument("what", metavar="KIND/NAME")
@click.option("-n", "--namespace", default="", metavar="NAME", help="namespace; default: the kubeconfig's")
@click.option("--kubeconfig", default="", metavar="FILE", help="any Kubernetes cluster; default: $KUBECONFIG")
@click.option("--data-dir", default="", metavar="DIR", help="cluster of `volplane up`; shows its timers, too")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="output format")
def command(what: str, namespace: str, kubeconfig: str, data_dir: str, output: str) -> None:
    """Say why KIND/NAME waits: the step, on whom, since when, and what to do.

    KIND is pvc, pv, pod, volumeattachment, node or volumesnapshot. Nothing is changed in the cluster. The
    exit code is 0 if nothing waits, 3 if something does, 1 if it could not be found out.
    """
    if kubeconfig and data_dir:
        raise click.UsageError("--kubeconfig and --data-dir exclude each other: a directory has its own")
    file = _file(kubeconfig, data_dir)
    try:
        asked = subject(what, namespace or (configs.namespace(file) if file else "") or "default")
    except (UnknownKind, NoName) as error:
        raise click.UsageError(str(error)) from error
    except configs.BadKubeconfig as error:
        raise Failure(str(error)) from error
    answer = asyncio.run(_ask(asked, file))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))
    else:
        _print(answer)
    sys.exit(WAITS if answer.waits else 0)


def _file(kubeconfig: str, data_dir: str) -> str:
    """The kubeconfig to use; "" is a pod's own."""
    if data_dir:
        return str(Path(data_dir).expanduser().absolute() / "kubeconfig")
    if kubeconfig:
        return kubeconfig
    given = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    usual = [Path("~/.kube/config").expanduser(), Path("~/.volplane/kubeconfig").expanduser()]
    return next(iter(given), "") or next((str(path) for path in usual if path.exists()), "")


async def _ask(asked: Subject, file: str) -> Answer:
    try:
        async with asyncio.timeout(PATIENCE):
            return await _answered(asked, file)
    except NotFound as error:
        raise Failure(str(error)) from error
    except APIError as error:
        raise Failure(f"the API server does not answer: {error}") from error
    except TimeoutError:
        raise Failure(f"no answer within {PATIENCE:g} seconds") from None


async def _answered(asked: Subject, file: str) -> Answer:
    carrier: Https = transport(file, "volplane-explain")
    still = Still(carrier, namespace=asked.namespace)
    try:
        obj = await Client(carrier, caches=still).get(asked.type, asked.name, asked.namespace)
        told = await roles.ask(Path(file).parent / "run") if file else roles.Roles()
        return await explain(Scene(still, told), asked, obj)
    finally:
        await still.close()
        await carrier.close()


def _print(answer: Answer) -> None:
    width = min(shutil.get_terminal_size().columns, WIDEST)
    first = True
    for line in lines(answer, width):
        first = first and bool(line.strip())
        if first:
            line = click.style(line, bold=True)
        elif line.startswith(f"  {MARKS[State.WAITS]}"):
            line = click.style(line, fg="yellow")
        click.echo(line)
