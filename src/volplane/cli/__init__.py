"""The command line. Each verb is a module that is imported only when it runs, so that verbs start fast."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType

import click

from volplane.cli.error import CommandError

GROUPS = {
    "Cluster": {
        "up": "start a cluster and serve until stopped, or in the background",
        "status": "show whether a cluster runs, and where",
        "logs": "print the log of a cluster in the background, or of a role",
        "stop": "stop a cluster and keep its data",
        "start": "start a stopped cluster or a crashed node again",
        "delete": "stop a cluster and delete its data",
        "list": "list the clusters of this user",
        "demo": "show every step of a volume on this machine: claim, pod, data, move",
        "env": "print the shell exports for kubectl and aws",
        "crash": "kill a role, or a node with its containers, to test recovery",
    },
    "Debug": {
        "explain": "explain why a claim, volume, pod or node waits, and what to do",
        "journey": "show every step of a claim, volume or pod, in the order in which it happened",
        "plugins": "list the volume plugins of nodes and controllers, with version and health",
        "states": "show the state transitions of a claim, volume or pod",
        "world": "show desired and actual state of volumes, and the step between them",
    },
    "Driver authors": {
        "test-driver": "run every lifecycle test that applies to your CSI driver",
    },
    "Shell": {
        "completion": "print the completion script for bash, zsh or fish",
    },
    "Single roles": {
        "apiserver": "API server",
        "controller-manager": "controllers",
        "scheduler": "scheduler",
        "node": "node: kubelet, volume manager, containers",
        "cloud": "disk service (EC2 API)",
        "driver": "controller or node service of the EBS or EFS driver",
        "provisioner": "sidecar that creates and deletes volumes",
        "attacher": "sidecar that attaches and detaches volumes",
        "resizer": "sidecar that expands and modifies volumes",
        "snapshotter": "sidecar that creates and deletes snapshots",
        "snapshot-controller": "snapshot controller",
        "fencer": "sidecar that taints nodes whose instances are stopped",
        "registrar": "sidecar that registers a driver with its kubelet",
        "liveness": "sidecar that answers health checks for a driver",
    },
}
VERBS = {name: text for group in GROUPS.values() for name, text in group.items()}


class Verbs(click.Group):
    """Subcommands by name, imported only when one of them runs."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = _import_verb(f"volplane.cli.{name.replace('-', '_')}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


def _import_verb(name: str) -> ModuleType:
    """Import a verb without garbage collection, which would take a tenth of the start."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="volplane")
@click.option("--no-color", is_flag=True, envvar="NO_COLOR", help="no colours; also with $NO_COLOR")
@click.pass_context
def volplane(context: click.Context, no_color: bool) -> None:
    """The Kubernetes volume control plane, without the cluster."""
    if no_color:
        context.color = False
        os.environ["NO_COLOR"] = "1"  # for libraries


def main(arguments: Sequence[str] | None = None) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale without UTF-8 is no reason to fail
    try:
        volplane.main(args=arguments, prog_name="volplane", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except CommandError as error:
        print(f"volplane: {error}", file=sys.stderr)
        sys.exit(1)
