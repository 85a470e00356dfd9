"""Ask a running cluster to crash or start a role."""

from __future__ import annotations

import asyncio

import click

from volplane.cli.error import CommandError
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.role_control import RoleRequest, request_role_change


def change_role(layout: DataDirectory, action: str, role: str) -> None:
    """Print the answer of the cluster. Raises CommandError if it refuses, or if there is none."""
    try:
        answer = asyncio.run(request_role_change(str(layout.role_control), RoleRequest(action, role)))
    except TimeoutError:
        raise CommandError(f"the cluster in {layout.directory} does not answer") from None
    except OSError as error:
        raise CommandError(
            f"no cluster runs in {layout.directory} ({error.strerror or error}); start one with volplane up"
        ) from error
    if answer.failed:
        raise CommandError(answer.message)
    click.echo(answer.message)
