"""`volplane env`: shell exports for kubectl and aws."""

from __future__ import annotations

import json
import shlex

import click

from volplane.cli.cluster_directory import OUTPUT, describe_up, directory_options
from volplane.cli.error import CommandError
from volplane.cluster.aws_objects import disk_service_url
from volplane.cluster.data_directory import REGION, DataDirectory


@click.command()
@OUTPUT
@directory_options
def command(output: str, layout: DataDirectory) -> None:
    """Print exports for the shell: eval "$(volplane env --data-dir D)"."""
    memory = layout.load_saved()
    if not memory.access_key:
        raise CommandError(f"no cluster in {layout.directory}: start one with {describe_up(layout)}")
    exports = {
        "KUBECONFIG": str(layout.kubeconfig),
        "AWS_ENDPOINT_URL": disk_service_url(memory),
        "AWS_ACCESS_KEY_ID": memory.access_key,
        "AWS_SECRET_ACCESS_KEY": memory.secret_key,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_PAGER": "",
    }
    if output == "json":
        click.echo(json.dumps(exports, indent=2))
        return
    for name, value in exports.items():
        click.echo(f"export {name}={shlex.quote(value)}")
