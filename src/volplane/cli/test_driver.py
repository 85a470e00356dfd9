"""`volplane test-driver`: run the conformance cases for a user's CSI driver."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import chain

import click
import yaml

from volplane.base.tasks import run_until
from volplane.base.units import format_duration
from volplane.cli.error import CommandError
from volplane.cli.options import DURATION
from volplane.cli.serve import require_root, serve
from volplane.cluster import external_driver
from volplane.cluster.errors import CannotStart as CannotBring
from volplane.cluster.external_driver import ExternalDriver
from volplane.cluster.user_drivers import BadImage, parse_image_option, read_manifests
from volplane.csi.outcome import CallError
from volplane.testing import driver_run, runner
from volplane.testing.case import Case
from volplane.testing.cases import ALL_CASES
from volplane.testing.driver_process import DriverStartError
from volplane.testing.report import DriverTestRun, console, machine, page

NAME = "volplane"
TIMEOUT = 60.0
WRITERS = {"--junit": machine.write_junit, "--json": machine.write_json, "--html": page.write}
SEEDS = 1 << 31


@click.command()
@click.option("--driver", "file", metavar="FILE", help="your driver, described by a file")
@click.option("--driver-command", "line", metavar="COMMAND", help="command that starts your driver")
@click.option(
    "--manifest", "manifests", multiple=True, metavar="PATH", help="your driver's deployment manifests"
)
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="IMAGE=COMMAND",
    help="run this command instead of the image; names the driver's container",
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="KEY=VALUE", help="secret for calls that take secrets"
)
@click.option("--secret-file", "vault", metavar="FILE", help="file of secrets, as KEY: VALUE lines")
@click.option(
    "--parameter",
    "parameters",
    multiple=True,
    metavar="KEY=VALUE",
    help="StorageClass parameter",
)
@click.option(
    "--mutable-parameter",
    "mutables",
    multiple=True,
    metavar="KEY=VALUE",
    help="VolumeAttributesClass parameter for modified volumes",
)
@click.option("--focus", default="", metavar="REGEX", help="run only cases whose names match")
@click.option("--skip", default="", metavar="REGEX", help="skip cases whose names match")
@click.option("--seed", type=int, default=None, metavar="N", help="random seed; repeats an earlier run")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="1", help="runs of each case")
@click.option("--timeout", type=DURATION, default=TIMEOUT, metavar="1m", help="timeout of one case")
@click.option("--junit", metavar="FILE", help="write results as JUnit XML")
@click.option("--json", "as_json", metavar="FILE", help="write results as JSON")
@click.option("--html", metavar="FILE", help="write results as a web page, with every call of failed cases")
@click.option("--list", "listing", is_flag=True, help="list the cases and what each checks")
def command(
    file: str | None,
    line: str | None,
    manifests: tuple[str, ...],
    images: tuple[str, ...],
    secrets: tuple[str, ...],
    vault: str | None,
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

    Starts the driver from --driver, --driver-command, or --manifest with --image ($CSI_ENDPOINT, $NODE_ID,
    $STATE_DIR and $SHARED_DIR differ between instances), queries its capabilities, and runs every case that
    applies. Needs root.

    Exit code 0: no case failed; 1: a case failed, or the driver does not start; 2: wrong usage;
    130: interrupted.
    """
    for option, pattern in (("--focus", focus), ("--skip", skip)):
        _check_pattern(option, pattern)
    cases = runner.select_cases(ALL_CASES, focus, skip)
    if listing:
        _list(cases)
        return
    if [bool(file), bool(line), bool(manifests)].count(True) != 1:
        raise click.UsageError(
            "give a driver: --driver FILE, --driver-command COMMAND, or --manifest PATH with --image"
        )
    if bool(manifests) != bool(images):
        raise click.UsageError(
            "--manifest and --image must be given together: --image tells which container is the driver"
        )
    if not cases:
        raise click.UsageError(_nothing(focus, skip))
    if timeout <= 0:
        raise click.UsageError(f"--timeout must be longer than 0s, not {format_duration(timeout)}")
    places = {"--junit": junit, "--json": as_json, "--html": html}
    for option, place in places.items():
        _check_report_path(option, place)
    sent = {**_read_secrets(vault), **_pairs(secrets, "--secret")}
    wanted = _pairs(parameters, "--parameter")
    mutable = _pairs(mutables, "--mutable-parameter")
    require_root()
    try:
        if manifests:
            driver = _read_deployment(manifests, images)
        else:
            driver = (
                external_driver.read_driver_file(file) if file else external_driver.from_command(line or "")
            )
    except BadImage as error:
        raise CommandError(str(error)) from error
    except CannotBring as error:
        option = "--driver" if file else "--manifest" if manifests else "--driver-command"
        raise CommandError(f"{option}: {error}") from error
    option_values: dict[str, Sequence[str | None]] = {
        "--driver": [file],
        "--driver-command": [line],
        "--manifest": manifests,
        "--image": images,
        "--parameter": parameters,
        "--mutable-parameter": mutables,
        "--secret-file": [vault],
        "--secret": [f"{pair.partition('=')[0]}=…" for pair in secrets],
        "--timeout": [format_duration(timeout) if timeout != TIMEOUT else None],
    }
    pairs = [(option, word) for option, words in option_values.items() for word in words if word]
    again = [_program_name(sys.argv[0]), "test-driver", *chain.from_iterable(pairs)]
    chosen = runner.CaseSettings(
        focus=focus,
        skip=skip,
        seed=random.randrange(SEEDS) if seed is None else seed,
        repeat=repeat,
        timeout=timeout,
    )
    begun: list[DriverTestRun] = []

    async def work(stop: asyncio.Event) -> None:
        await run_until(stop, _test(driver, cases, chosen, again, sent, wanted, mutable, begun))

    try:
        serve(work, level="ERROR")
    finally:
        for run in begun:  # also after an error
            _write(run, places)
    if not (begun and begun[0].complete):
        raise click.exceptions.Abort
    if begun[0].failed_results:
        sys.exit(1)


async def _test(
    driver: ExternalDriver,
    cases: Sequence[Case],
    settings: runner.CaseSettings,
    again: Sequence[str],
    secrets: dict[str, str],
    parameters: dict[str, str],
    mutable: dict[str, str],
    begun: list[DriverTestRun],
) -> None:
    progress = console.ProgressDisplay(sys.stdout, total=len(cases) * settings.repeat)

    def note_start(run: DriverTestRun) -> None:
        begun.append(run)
        promises = ", ".join(run.capabilities) or "nothing beyond mounting"
        progress.console.print(
            f"{run.driver} {run.version}, {len(run.nodes)} nodes, seed {run.seed}\n  {promises}\n"
        )

    try:
        await driver_run.run_driver_tests(
            driver,
            cases,
            settings,
            progress.case_ended,
            command=again,
            secrets=secrets,
            parameters=parameters,
            mutable=mutable,
            on_start=note_start,
            on_case_start=progress.case_starts,
        )
    except (DriverStartError, CannotBring) as error:
        raise CommandError(str(error)) from error
    except CallError as error:
        raise CommandError(f"the driver does not answer identity calls: {error}") from error
    finally:
        for run in begun:
            progress.end(run)


def _program_name(program: str) -> str:
    """How to call this program again: by its name, if it is on PATH."""
    if os.path.basename(program) != NAME or shutil.which(NAME) == os.path.abspath(program):
        return NAME
    return program


def _check_pattern(option: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise click.UsageError(f"{option} is a regular expression, not {pattern!r}: {error}") from error


def _check_report_path(option: str, place: str | None) -> None:
    """Check before the run that a report can be written."""
    if not place:
        return
    directory = os.path.dirname(os.path.abspath(place))
    if os.path.isdir(place):
        raise click.UsageError(f"{option} {place} is a directory")
    if not os.path.isdir(directory):
        raise click.UsageError(f"{option} {place}: there is no directory {directory}")
    if not os.access(directory, os.W_OK):
        raise click.UsageError(f"{option} {place}: {directory} cannot be written to")


def _nothing(focus: str, skip: str) -> str:
    wanted = f"--focus {focus!r}" if focus else "all cases"
    without = f" without --skip {skip!r}" if skip else ""
    return f"{wanted}{without} selects no case; --list shows all names"


def _write(run: DriverTestRun, places: Mapping[str, str | None]) -> None:
    """Write all reports, even if one fails. Raises CommandError."""
    problems = []
    for option, path in places.items():
        try:
            if path:
                WRITERS[option](run, path)
        except OSError as error:
            problems.append(f"{option} {path}: {error.strerror or error}")
    if problems:
        raise CommandError("\n".join(problems))


def _read_deployment(manifests: Sequence[str], images: Sequence[str]) -> ExternalDriver:
    """The driver in deployment manifests. Raises CannotStart."""
    things = [thing for path in manifests for thing in read_manifests(path)]
    return external_driver.from_manifests(
        things, {image: option_values.command for image, option_values in map(parse_image_option, images)}
    )


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    made = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError(f"{option} is KEY=VALUE, not {text!r}")
        made[key] = value
    return made


def _read_secrets(file: str | None) -> dict[str, str]:
    """Read secrets from a file, which keeps them out of process lists and lets a report be reproduced."""
    if not file:
        return {}
    try:
        with open(file) as opened:
            values = yaml.safe_load(opened)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(
            f"--secret-file {file}: {getattr(error, 'strerror', None) or error}"
        ) from error
    except yaml.YAMLError as error:
        raise click.UsageError(f"--secret-file {file} is not YAML: {error}") from error
    if not isinstance(values, dict) or not all(
        isinstance(value, str | int | float) for value in values.values()
    ):
        raise click.UsageError(f"--secret-file {file} is not a list of KEY: VALUE lines")
    return {str(key): str(value) for key, value in values.items()}


def _list(cases: Sequence[Case]) -> None:
    for case in cases:
        click.echo(f"{case.name:<44} {case.section}")
