"""`volplane unshare`: run any command as root of a user namespace."""

from __future__ import annotations

import os
import shutil

import click

from volplane.base.user_namespace import run_as_root
from volplane.cli.error import CommandError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command_line", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def command(command_line: tuple[str, ...]) -> None:
    """Run COMMAND as root of a user namespace, in which an ordinary user may mount volumes.

    For programs that use Volplane, such as tests with the pytest plugin: `volplane unshare pytest tests`. The
    other verbs do this by themselves. Root runs COMMAND as it is.
    """
    program = shutil.which(command_line[0])
    if program is None:
        raise CommandError(f"{command_line[0]}: command not found")
    argv = [os.path.abspath(program), *command_line[1:]]
    if os.geteuid() == 0:
        os.execv(argv[0], argv)
    run_as_root(argv)
