"""`volplane env`: shell exports for kubectl and aws."""

from __future__ import annotations

import shlex

import click

from volplane.cli.error import CommandError
from volplane.cluster.data_directory import REGION, DataDirectory


@click.command()
@click.option("--data-dir", default="~/.volplane", metavar="~/.volplane", help="directory of the cluster")
def command(data_dir: str) -> None:
    """Print exports for the shell: eval "$(volplane env --data-dir D)"."""
    layout = DataDirectory(data_dir)
    memory = layout.load_saved()
    if not memory.access_key:
        raise CommandError(f"no cluster in {layout.directory}: start one with volplane up --data-dir")
    exports = {
        "KUBECONFIG": str(layout.kubeconfig),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{memory.cloud_port}",
        "AWS_ACCESS_KEY_ID": memory.access_key,
        "AWS_SECRET_ACCESS_KEY": memory.secret_key,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_PAGER": "",
    }
    for name, value in exports.items():
        click.echo(f"export {name}={shlex.quote(value)}")
