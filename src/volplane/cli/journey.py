"""`volplane journey`: every step that was taken for a volume, by whom, when, and how it ended."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence

import click
import msgspec
from msgspec import structs

from volplane.cli.cluster_reader import ClusterChoice, cluster_flags
from volplane.cli.error import CommandError
from volplane.cli.journey_target import JourneySource
from volplane.explain.journey.model import Journey, JourneyStep
from volplane.explain.journey.render_html import render_html
from volplane.explain.journey.render_mermaid import render_mermaid
from volplane.explain.journey.render_text import PROBLEM, render_journeys
from volplane.explain.journey.select import hide_details, select_back, select_forwards

OUTPUTS = ("text", "json", "mermaid", "html")
UNLIMITED = 10_000  # characters

Select = Callable[[Journey], Sequence[JourneyStep]]


@click.command()
@click.argument("what", metavar="KIND/NAME")
@click.option("-n", "--namespace", default="", metavar="NAME", help="namespace; default: the kubeconfig's")
@click.option("--back", is_flag=True, help="the way back: stop, unpublish, unstage, detach, delete")
@click.option("--all", "everything", is_flag=True, help="all steps, of all objects that had this name")
@click.option("--follow", is_flag=True, help="print steps as they happen, until it is deleted")
@click.option("-o", "--output", type=click.Choice(OUTPUTS), default="text", help="output format")
@cluster_flags
def command(
    what: str,
    namespace: str,
    back: bool,
    everything: bool,
    follow: bool,
    output: str,
    cluster: ClusterChoice,
) -> None:
    """Show every step of a volume: who took it, when, how long it took, and how it ended.

    KIND is pvc, pv or pod; a pod has a journey for each of its claims. By default the way forwards, from the
    claim to the running container. In a cluster of `volplane up` the steps were recorded by its roles, also
    for objects that no longer exist; of any other cluster they are derived from its objects and events.
    Changes nothing in the cluster.
    """
    source = JourneySource(what, namespace, cluster)
    select = _selection(back=back, everything=everything)
    if follow:
        if output != "text":
            raise click.UsageError("--follow prints text; leave out -o")
        return _follow(source, select)
    journeys = source.read(every=everything)
    if not journeys:
        raise CommandError(f"{source.target.text} has no volume of its own, so it has no journey")
    _print(journeys, [select(journey) for journey in journeys], output)


def _selection(*, back: bool, everything: bool) -> Select:
    if everything:
        return lambda journey: journey.steps
    chosen = select_back if back else select_forwards
    return lambda journey: hide_details(chosen(journey.steps))


def _print(journeys: Sequence[Journey], shown: Sequence[Sequence[JourneyStep]], output: str) -> None:
    match output:
        case "json":
            selected = [structs.replace(j, steps=tuple(s)) for j, s in zip(journeys, shown, strict=True)]
            click.echo(msgspec.json.format(msgspec.json.encode(selected), indent=2))
        case "mermaid":
            for journey, steps in zip(journeys, shown, strict=True):
                click.echo("\n".join(render_mermaid(steps, journey.subject)))
        case "html":
            click.echo("\n".join(render_html(journeys, shown)))
        case _:
            width = _line_width()
            for line in render_journeys(journeys, shown, width):
                _echo(line)


def _follow(source: JourneySource, select: Select) -> None:
    """Print each step once, when it has ended, until the volume is deleted."""
    from volplane.cli import journey_follow as follow

    printer = follow.StepPrinter(select, _echo, _line_width())

    async def run() -> None:
        recorded, target, cluster = source.recorded, source.target, source.cluster
        if recorded is not None and await follow.wait_for_recorded_steps(recorded, cluster, target, _note):
            await follow.follow_recorded(recorded, target, printer)
        else:
            await follow.follow_derived(cluster, target, printer, _note)

    asyncio.run(run())


def _note(line: str) -> None:
    click.echo(line, err=True)


def _line_width() -> int:
    """Lines are cut on a terminal only."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def _echo(line: str) -> None:
    if line.startswith(PROBLEM):
        line = click.style(line, fg="yellow")
    elif line and not line.startswith(" "):
        line = click.style(line, bold=True)
    click.echo(line)
