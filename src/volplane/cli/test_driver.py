"""`volplane test-driver`: a driver of your own through every lifecycle that it promises."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Sequence

import click

from volplane.cli.failure import Failure
from volplane.cli.running import need_root, serve, until
from volplane.cluster import guest
from volplane.cluster.errors import CannotStart as CannotBring
from volplane.cluster.guest import Guest
from volplane.csi.outcome import CallError
from volplane.testing import runner, session
from volplane.testing.case import Case
from volplane.testing.cases import ALL
from volplane.testing.instances import CannotStart
from volplane.testing.report import Run, console, machine, page

SEEDS = 1 << 31


@click.command()
@click.option("--driver", "file", metavar="FILE", help="the driver, as a file says")
@click.option("--driver-command", "line", metavar="COMMAND", help="how to start it")
@click.option(
    "--secret", "secrets", multiple=True, metavar="KEY=VALUE", help="sent with calls that take secrets"
)
@click.option(
    "--parameter", "parameters", multiple=True, metavar="KEY=VALUE", help="of new volumes, as in a class"
)
@click.option(
    "--mutable-parameter",
    "mutables",
    multiple=True,
    metavar="KEY=VALUE",
    help="for volumes that are modified, as in a VolumeAttributesClass",
)
@click.option("--focus", default="", metavar="REGEX", help="only the cases whose names match")
@click.option("--skip", default="", metavar="REGEX", help="not the cases whose names match")
@click.option("--seed", type=int, default=None, help="of everything random; as printed by an earlier run")
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, help="how often each case is run"
)
@click.option("--timeout", type=float, default=60.0, show_default=True, help="seconds for one case")
@click.option("--junit", metavar="FILE", help="write the results as JUnit XML")
@click.option("--json", "as_json", metavar="FILE", help="write the results as JSON")
@click.option("--html", metavar="FILE", help="write the results as a page, with every call of what failed")
@click.option("--list", "listing", is_flag=True, help="print the cases and what each holds a driver to")
def command(
    file: str | None,
    line: str | None,
    secrets: tuple[str, ...],
    parameters: tuple[str, ...],
    mutables: tuple[str, ...],
    focus: str,
    skip: str,
    seed: int | None,
    repeat: int,
    timeout: float,
    junit: str | None,
    as_json: str | None,
    html: str | None,
    listing: bool,
) -> None:
    """Test a CSI driver: its calls, its data, and what happens when it is killed.

    Starts the driver as --driver or --driver-command say ($CSI_ENDPOINT, $NODE_ID, $STATE_DIR and $SHARED_DIR
    differ between instances), asks what it can do, and runs every case that this promises. Needs root.

    Exit code 0: no case failed; 1: some did, or the driver does not start; 2: wrong usage.
    """
    try:
        cases = runner.chosen(ALL, focus, skip)
    except re.error as error:
        raise click.UsageError(f"--focus and --skip are regular expressions: {error}") from error
    if listing:
        _list(cases)
        return
    if bool(file) == bool(line):
        raise click.UsageError("say which driver: --driver FILE or --driver-command COMMAND")
    if not cases:
        raise click.UsageError("no case has such a name; --list shows them")
    if timeout <= 0:
        raise click.UsageError("--timeout must be more than nothing")
    sent, wanted = _pairs(secrets, "--secret"), _pairs(parameters, "--parameter")
    mutable = _pairs(mutables, "--mutable-parameter")
    need_root()
    try:
        brought = guest.read(file) if file else guest.from_command(line or "")
    except CannotBring as error:
        raise Failure(str(error)) from error
    again = ["volplane", "test-driver", *(["--driver", file] if file else ["--driver-command", line or ""])]
    again += [word for pair in parameters for word in ("--parameter", pair)]
    again += [word for pair in mutables for word in ("--mutable-parameter", pair)]
    again += [word for pair in secrets for word in ("--secret", f"{pair.partition('=')[0]}=…")]
    chosen = runner.Settings(
        focus=focus,
        skip=skip,
        seed=random.randrange(SEEDS) if seed is None else seed,
        repeat=repeat,
        timeout=timeout,
    )
    ended: list[Run] = []

    async def work(stop: asyncio.Event) -> None:
        await until(stop, _test(brought, cases, chosen, again, sent, wanted, mutable, ended))

    serve(work, level="ERROR")
    if not ended:
        raise click.exceptions.Abort
    for path, write in ((junit, machine.write_junit), (as_json, machine.write_json), (html, page.write)):
        if path:
            write(ended[0], path)
    if ended[0].failed:
        sys.exit(1)


async def _test(
    brought: Guest,
    cases: Sequence[Case],
    settings: runner.Settings,
    again: Sequence[str],
    secrets: dict[str, str],
    parameters: dict[str, str],
    mutable: dict[str, str],
    ended: list[Run],
) -> None:
    progress = console.Progress(sys.stdout, total=len(cases) * settings.repeat)

    def started(run: Run) -> None:
        promises = ", ".join(run.promises) or "nothing beyond mounting"
        progress.console.print(
            f"{run.driver} {run.version}, {len(run.nodes)} nodes, seed {run.seed}\n  {promises}\n"
        )

    try:
        run = await session.drive(
            brought,
            cases,
            settings,
            progress.told,
            command=again,
            secrets=secrets,
            parameters=parameters,
            mutable=mutable,
            started=started,
        )
    except (CannotStart, CannotBring) as error:
        raise Failure(str(error)) from error
    except CallError as error:
        raise Failure(f"the driver does not say what it is: {error}") from error
    progress.end(run)
    ended.append(run)


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    made = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError(f"{option} is KEY=VALUE, not {text!r}")
        made[key] = value
    return made


def _list(cases: Sequence[Case]) -> None:
    for case in cases:
        click.echo(f"{case.name:<44} {case.section}")
