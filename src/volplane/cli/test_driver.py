"""`volplane test-driver`: run the conformance cases for a user's CSI driver."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import click
import yaml

from volplane.base.tasks import run_until
from volplane.base.units import format_duration
from volplane.cli import soak
from volplane.cli.error import CommandError
from volplane.cli.options import DURATION
from volplane.cli.serve import require_root, serve
from volplane.cluster import external_driver, helm_chart
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver import ExternalDriver
from volplane.cluster.user_drivers import (
    BadImage,
    BadImageSyntax,
    check_own_images,
    parse_image_option,
    read_manifests,
)
from volplane.csi.outcome import CallError
from volplane.node.options import check_endpoint
from volplane.testing import driver_run, known_failures, runner, sanity
from volplane.testing.case import Case
from volplane.testing.cases import ALL_CASES
from volplane.testing.driver_process import DriverStartError
from volplane.testing.given_volumes import GivenVolumes
from volplane.testing.report import (
    DriverTestRun,
    badge,
    comparison,
    console,
    github,
    machine,
    page,
    summary,
)
from volplane.testing.soak.run import SoakSettings

NAME = "volplane"
TIMEOUT = 60.0
WRITERS = {
    "--junit": machine.write_junit,
    "--json": machine.write_json,
    "--html": page.write,
    "--summary": summary.write,
    "--badge": badge.write,
    "--annotations": github.write,
}
SEEDS = 1 << 31


@click.command()
@click.option("--driver", "file", metavar="FILE", help="your driver, described by a file")
@click.option("--driver-command", "line", metavar="COMMAND", help="command that starts your driver")
@click.option(
    "--manifest", "manifests", multiple=True, metavar="PATH", help="your driver's deployment manifests"
)
@click.option("--chart", metavar="DIR", help="your driver's Helm chart, rendered by helm")
@click.option("--values", "values", multiple=True, metavar="FILE", help="values of the chart")
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="IMAGE[=COMMAND]",
    help="names the driver's container; run this command instead of its image, or without one the image",
)
@click.option(
    "--container-runtime-endpoint",
    "runtime",
    default="",
    metavar="ENDPOINT",
    help="socket of the container runtime that runs the image, such as unix:///run/containerd/containerd.sock",
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="KEY=VALUE", help="secret for calls that take secrets"
)
@click.option("--secret-file", "secret_file", metavar="FILE", help="file of secrets, as KEY: VALUE lines")
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
@click.option(
    "--api-server",
    "api_server",
    is_flag=True,
    help="API server for the driver outside of the cluster, also if it starts without one",
)
@click.option(
    "--volume-id",
    "volume_ids",
    multiple=True,
    metavar="ID",
    help="volume that exists, for a driver that does not create any",
)
@click.option(
    "--volume-context",
    "contexts",
    multiple=True,
    metavar="KEY=VALUE",
    help="volume_context of the volumes of --volume-id",
)
@click.option("--inline", is_flag=True, help="test with inline volumes of pods (Ephemeral)")
@click.option(
    "--inline-attribute",
    "attributes",
    multiple=True,
    metavar="KEY=VALUE",
    help="volumeAttributes of inline volumes; implies --inline",
)
@click.option(
    "--read-only",
    "read_only",
    is_flag=True,
    help="publish given and inline volumes read-only, and never write",
)
@click.option("--focus", default="", metavar="REGEX", help="run only cases whose names match")
@click.option(
    "--skip", default="", metavar="REGEX", help="skip cases whose names match; with --soak calls and faults"
)
@click.option("--seed", type=int, default=None, metavar="N", help="random seed; repeats an earlier run")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="1", help="runs of each case")
@click.option("--timeout", type=DURATION, default=TIMEOUT, metavar="1m", help="timeout of one case")
@click.option("--junit", metavar="FILE", help="write results as JUnit XML")
@click.option("--json", "as_json", metavar="FILE", help="write results as JSON")
@click.option("--html", metavar="FILE", help="write results as a web page, with every call of failed cases")
@click.option("--summary", "summary_file", metavar="FILE", help="write a short Markdown summary")
@click.option("--badge", "badge_file", metavar="FILE", help="write an SVG badge with the result")
@click.option(
    "--annotations",
    "annotations_file",
    metavar="FILE",
    help="write the failures as workflow commands of GitHub Actions",
)
@click.option(
    "--known-failures",
    "known_file",
    metavar="FILE",
    help="file of cases that may fail without failing the run, one name per line",
)
@click.option("--compare", "old_report", metavar="OLD.json", help="compare with an earlier run's --json")
@click.option(
    "--soak",
    "soak_seconds",
    type=DURATION,
    default=None,
    metavar="10m",
    help="run random sequences of calls and faults for this time, instead of the cases",
)
@click.option("--replay", "replay_file", metavar="FILE", help="run a sequence that --soak has printed")
@click.option("--list", "listing", is_flag=True, help="list the cases and what each checks")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="format of --list; the results are written as JSON with --json",
)
def command(
    file: str | None,
    line: str | None,
    manifests: tuple[str, ...],
    chart: str | None,
    values: tuple[str, ...],
    images: tuple[str, ...],
    runtime: str,
    secrets: tuple[str, ...],
    secret_file: str | None,
    parameters: tuple[str, ...],
    mutables: tuple[str, ...],
    api_server: bool,
    volume_ids: tuple[str, ...],
    contexts: tuple[str, ...],
    inline: bool,
    attributes: tuple[str, ...],
    read_only: bool,
    focus: str,
    skip: str,
    seed: int | None,
    repeat: int,
    timeout: float,
    junit: str | None,
    as_json: str | None,
    html: str | None,
    summary_file: str | None,
    badge_file: str | None,
    annotations_file: str | None,
    known_file: str | None,
    old_report: str | None,
    soak_seconds: float | None,
    replay_file: str | None,
    listing: bool,
    output: str,
) -> None:
    """Test a CSI driver: its calls, its data, and what happens when it is killed.

    Starts the driver from --driver, --driver-command, or --manifest or --chart with --image ($CSI_ENDPOINT,
    $NODE_ID, $STATE_DIR and $SHARED_DIR differ between instances; with --container-runtime-endpoint the
    driver's own image), queries its capabilities, and runs every case that applies. Needs root. With --soak
    it runs random sequences of calls and faults instead.

    Exit code 0: no case failed that is not in --known-failures; 1: a case failed, or the driver does not
    start; 2: wrong usage; 130: interrupted.
    """
    for option, pattern in (("--focus", focus), ("--skip", skip)):
        _check_pattern(option, pattern)
    cases = runner.select_cases(ALL_CASES, focus, skip)
    if listing:
        _list(cases, output)
        return
    if output != "text":
        raise click.UsageError("-o json needs --list; use --json FILE for the results")
    deployed = bool(manifests or chart)
    if [bool(file), bool(line), deployed].count(True) != 1:
        raise click.UsageError(
            "give a driver: --driver FILE, --driver-command COMMAND, or --manifest PATH or --chart DIR"
            " with --image"
        )
    if deployed != bool(images):
        option = "--chart" if chart and not manifests else "--manifest"
        raise click.UsageError(
            f"{option} and --image must be given together: --image tells which container is the driver"
        )
    if values and not chart:
        raise click.UsageError("--values needs --chart")
    soaks, life = soak_seconds is not None or bool(replay_file), None
    if soaks:
        others: dict[str, object] = {"--focus": focus, "--junit": junit, "--html": html}
        others |= {"--summary": summary_file, "--badge": badge_file, "--known-failures": known_file}
        others |= {"--compare": old_report, "--volume-id": volume_ids, "--annotations": annotations_file}
        others |= {"--inline": inline, "--inline-attribute": attributes, "--read-only": read_only}
        others |= {"--repeat": repeat > 1, "--mutable-parameter": mutables}
        life = soak.read_options(soak_seconds, replay_file, others)
    elif not cases:
        raise click.UsageError(_nothing(focus, skip))
    if timeout <= 0:
        raise click.UsageError(f"--timeout must be longer than 0s, not {format_duration(timeout)}")
    places = {
        "--junit": junit,
        "--json": as_json,
        "--html": html,
        "--summary": summary_file,
        "--badge": badge_file,
        "--annotations": annotations_file,
    }
    for option, place in places.items():
        _check_report_path(option, place)
    sent = {**_read_secrets(secret_file), **_pairs(secrets, "--secret")}
    wanted = _pairs(parameters, "--parameter")
    mutable = _pairs(mutables, "--mutable-parameter")
    given_volumes = GivenVolumes(
        ids=volume_ids,
        context=_pairs(contexts, "--volume-context"),
        inline=inline or bool(attributes),
        attributes=_pairs(attributes, "--inline-attribute"),
        read_only=read_only,
    )
    _check_given_volumes(given_volumes)
    known, old = _read_known_failures(known_file), _read_old_report(old_report)
    require_root()
    try:
        check_endpoint("--container-runtime-endpoint", runtime)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        if deployed:
            driver = _read_deployment(manifests, images, chart, values, runtime)
        else:
            driver = (
                external_driver.read_driver_file(file) if file else external_driver.from_command(line or "")
            )
    except BadImageSyntax as error:
        raise click.UsageError(str(error)) from error
    except BadImage as error:
        raise CommandError(str(error)) from error
    except CannotStart as error:
        deployment = "--manifest" if manifests and not isinstance(error, helm_chart.BadChart) else "--chart"
        option = "--driver" if file else "--driver-command" if line else deployment
        raise CommandError(f"{option}: {error}") from error
    if soaks and driver.runs_images:
        raise click.UsageError("--soak needs a command for the driver: --image IMAGE=COMMAND")
    if runtime and not driver.runs_images:
        raise click.UsageError("--container-runtime-endpoint is for --image IMAGE without a command")
    option_values: dict[str, Sequence[str | None]] = {
        "--driver": [file],
        "--driver-command": [line],
        "--manifest": manifests,
        "--chart": [chart],
        "--values": values,
        "--image": images,
        "--container-runtime-endpoint": [runtime],
        "--parameter": parameters,
        "--mutable-parameter": mutables,
        "--volume-id": volume_ids,
        "--volume-context": contexts,
        "--inline-attribute": attributes,
        "--secret-file": [secret_file],
        "--secret": [f"{pair.partition('=')[0]}=…" for pair in secrets],
        "--timeout": [format_duration(timeout) if timeout != TIMEOUT else None],
    }
    pairs = [(option, word) for option, words in option_values.items() for word in words if word]
    switches = (("--api-server", api_server), ("--inline", inline), ("--read-only", read_only))
    flags = [flag for flag, is_set in switches if is_set]
    again = [_program_name(sys.argv[0]), "test-driver", *chain.from_iterable(pairs), *flags]
    seed = random.randrange(SEEDS) if seed is None else seed
    if soaks:
        soak.run_soak(
            driver,
            SoakSettings(seconds=soak_seconds or 0.0, seed=seed, skip=skip, timeout=timeout),
            life,
            command=again,
            secrets=sent,
            parameters=wanted,
            json_file=as_json,
            api_server=api_server,
        )
        return
    chosen = runner.CaseSettings(
        focus=focus,
        skip=skip,
        seed=seed,
        repeat=repeat,
        timeout=timeout,
    )
    begun: list[DriverTestRun] = []

    given: dict[str, Any] = {
        "command": again,
        "secrets": sent,
        "parameters": wanted,
        "mutable": mutable,
        "known_failures": known,
        "given_volumes": given_volumes,
        "api_server": api_server,
        "runtime": runtime,
    }

    async def work(stop: asyncio.Event) -> None:
        await run_until(stop, _test(driver, cases, chosen, given, old, begun))

    try:
        serve(work, level="ERROR")
    finally:
        for run in begun:  # also after an error
            _write(run, places)
    if not (begun and begun[0].complete):
        raise click.exceptions.Abort
    if begun[0].new_failures:
        sys.exit(1)


async def _test(
    driver: ExternalDriver,
    cases: Sequence[Case],
    settings: runner.CaseSettings,
    given: Mapping[str, Any],
    old: comparison.OldReport | None,
    begun: list[DriverTestRun],
) -> None:
    once = sum(case.name == sanity.CASE for case in cases)  # not repeated
    progress = console.ProgressDisplay(sys.stdout, total=(len(cases) - once) * settings.repeat + once)

    def note_start(run: DriverTestRun) -> None:
        begun.append(run)
        capabilities = ", ".join(run.capabilities) or "nothing beyond mounting"
        nodes = "1 node" if len(run.nodes) == 1 else f"{len(run.nodes)} nodes"
        progress.console.print(f"{run.driver} {run.version}, {nodes}, seed {run.seed}\n  {capabilities}\n")

    try:
        await driver_run.run_driver_tests(
            driver,
            cases,
            settings,
            progress.case_ended,
            **given,
            on_start=note_start,
            on_case_start=progress.case_starts,
        )
    except (DriverStartError, CannotStart) as error:
        raise CommandError(str(error)) from error
    except CallError as error:
        raise CommandError(f"the driver does not answer identity calls: {error}") from error
    finally:
        for run in begun:
            if old is not None:
                is_selected = runner.name_filter(settings.focus, settings.skip)
                run.comparison = comparison.compare(
                    old, run.results, complete=run.complete, is_selected=is_selected
                )
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


def _read_deployment(
    manifests: Sequence[str], images: Sequence[str], chart: str | None, values: Sequence[str], runtime: str
) -> ExternalDriver:
    """The driver in deployment manifests and a chart. Raises CannotStart."""
    lines = dict(map(parse_image_option, images))
    check_own_images(lines, runtime)
    programs = {image: line.command for image, line in lines.items()}
    objects = [obj for path in manifests for obj in read_manifests(path)]
    objects += helm_chart.render(chart, values) if chart else []
    return external_driver.from_manifests(objects, programs)


def _check_given_volumes(given: GivenVolumes) -> None:
    if given.ids and given.inline:
        raise click.UsageError("--volume-id and --inline exclude each other: test them in two runs")
    if "" in given.ids or len(set(given.ids)) < len(given.ids):
        raise click.UsageError("--volume-id: an id is empty, or there twice")
    if given.context and not given.ids:
        raise click.UsageError("--volume-context needs --volume-id")
    if given.read_only and not given:
        raise click.UsageError("--read-only needs --volume-id or --inline")


def _read_known_failures(file: str | None) -> known_failures.KnownFailures:
    try:
        names = [case.name for case in ALL_CASES]
        return known_failures.read(file, names) if file else known_failures.KnownFailures()
    except known_failures.BadKnownFailures as error:
        raise click.UsageError(f"--known-failures: {error}") from error


def _read_old_report(file: str | None) -> comparison.OldReport | None:
    try:
        return comparison.read(file) if file else None
    except comparison.BadReport as error:
        raise click.UsageError(f"--compare: {error}") from error


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
            values = yaml.load(opened, Loader=yaml.BaseLoader)  # values as they are written
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(
            f"--secret-file {file}: {getattr(error, 'strerror', None) or error}"
        ) from error
    except yaml.YAMLError as error:
        raise click.UsageError(f"--secret-file {file} is not YAML: {error}") from error
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise click.UsageError(f"--secret-file {file} is not a list of KEY: VALUE lines")
    return values


def _list(cases: Sequence[Case], output: str) -> None:
    if output == "json":
        click.echo(json.dumps([{"name": case.name, "section": case.section} for case in cases], indent=2))
        return
    for case in cases:
        click.echo(f"{case.name:<44} {case.section}")
