"""`volplane logs`: the log of a cluster, or of one of its roles."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click

from volplane.cli.cluster_directory import directory_options, require_cluster
from volplane.cli.error import CommandError
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.lifecycle import UP, ClusterPhase, find_processes, wait_until
from volplane.cluster.role_files import RoleFiles
from volplane.host import inotify

COALESCE = 0.03  # seconds: changes that come together, of any log, are looked at together


@click.command()
@click.argument("role", required=False, default=UP)
@click.option("-f", "--follow", is_flag=True, help="print new lines until the cluster stops")
@click.option("--tail", type=click.IntRange(min=0), default=None, metavar="N", help="only the last N lines")
@directory_options
def command(role: str, follow: bool, tail: int | None, layout: DataDirectory) -> None:
    """Print the log of a cluster in the background.

    ROLE is a role of a cluster started with `volplane up --separate`, such as node/worker-1 or apiserver.
    Logs are rotated at 10 MB; this prints the newest file.
    """
    require_cluster(layout)
    files = RoleFiles(layout.run)
    path = files.log(role)
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in layout.run.glob("*.log")))
        hint = f"; there are logs of: {known}" if known else ": the cluster has not run in the background"
        raise CommandError(f"no log of {role} in {layout.run}{hint}")
    _print(path, tail, layout if follow else None)


def _print(path: Path, tail: int | None, running: DataDirectory | None) -> None:
    """Print a log; with a cluster, also new lines while it runs."""
    file = path.open(errors="replace")
    try:
        _echo(file if tail is None else deque(file, tail))
        if running is None:
            return
        found = find_processes(running)

        def print_new_lines() -> bool:
            """Returns whether the cluster has stopped."""
            nonlocal file
            has_stopped = find_processes(running).phase is ClusterPhase.STOPPED  # before its last lines
            _echo(file)
            with suppress(FileNotFoundError):  # rotated: the new file comes at once
                if path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                    _echo(file)
                    old, file = file, path.open(errors="replace")
                    old.close()
                    _echo(file)
            if not has_stopped:
                time.sleep(COALESCE)
            return has_stopped

        wait_until(
            print_new_lines,
            directory=path.parent,
            changes=inotify.CREATE | inotify.MODIFY,
            pids=[pid for pid in (found.supervisor, found.pid) if pid],
        )
    finally:
        file.close()


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line, nl=False)
