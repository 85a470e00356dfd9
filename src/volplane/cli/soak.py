"""`volplane test-driver --soak`: random lives of volumes, and the replay of one that has failed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

import click

from volplane.base.tasks import run_until
from volplane.base.units import format_duration
from volplane.cli.error import CommandError
from volplane.cli.serve import serve
from volplane.cluster.errors import CannotStart
from volplane.cluster.external_driver import ExternalDriver
from volplane.csi.outcome import CallError
from volplane.testing.driver_process import DriverStartError
from volplane.testing.soak import report
from volplane.testing.soak.run import SoakProgress, SoakRun, SoakSettings, soak
from volplane.testing.soak.steps import Life


def read_options(seconds: float | None, replay: str | None, others: Mapping[str, object]) -> Life | None:
    """Check the options; the life to replay. Raises click.UsageError."""
    option = "--soak" if seconds is not None else "--replay"
    if seconds is not None and replay:
        raise click.UsageError("--soak runs random lives and --replay one life: give one of them")
    if seconds is not None and seconds <= 0:
        raise click.UsageError(f"--soak must be longer than 0s, not {format_duration(seconds)}")
    if given := [name for name, value in others.items() if value]:
        raise click.UsageError(f"{option} cannot be used with {given[0]}")
    try:
        return report.read_life(replay) if replay else None
    except OSError as error:
        raise click.UsageError(f"--replay {replay}: {error.strerror or error}") from error
    except (report.BadReplay, UnicodeDecodeError) as error:
        raise click.UsageError(f"--replay: {error}") from error


def run_soak(
    driver: ExternalDriver,
    settings: SoakSettings,
    life: Life | None,
    *,
    command: Sequence[str],
    secrets: Mapping[str, str],
    parameters: Mapping[str, str],
    json_file: str | None,
    api_server: bool = False,
) -> None:
    """Run, print and write the results, and exit."""
    begun: list[SoakRun] = []
    display = report.SoakDisplay(sys.stdout, seconds=settings.seconds)

    def note_start(run: SoakRun) -> None:
        begun.append(run)
        display.start(run)

    progress = SoakProgress(note_start, display.life_ended, display.violation_found)

    async def run_driver() -> None:
        try:
            await soak(
                driver,
                settings,
                progress,
                replay=life,
                command=command,
                secrets=secrets,
                parameters=parameters,
                api_server=api_server,
            )
        except (DriverStartError, CannotStart) as error:
            raise CommandError(str(error)) from error
        except CallError as error:
            raise CommandError(f"the driver does not answer the first calls: {error}") from error
        finally:
            for run in begun:
                display.end(run)

    async def work(stop: asyncio.Event) -> None:
        await run_until(stop, run_driver())

    try:
        serve(work, level="ERROR")
    finally:
        for run in begun:
            _write(run, json_file)
    if begun and begun[0].failure is not None:
        sys.exit(1)
    if not (begun and begun[0].complete):
        raise click.exceptions.Abort


def _write(run: SoakRun, path: str | None) -> None:
    try:
        if path:
            report.write_json(run, path)
    except OSError as error:
        raise CommandError(f"--json {path}: {error.strerror or error}") from error
