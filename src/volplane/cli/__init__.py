"""The command. One file per verb, loaded when it is asked for, so that every verb starts at once."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

import click

from volplane.cli.failure import Failure

VERBS = {
    "up": "start a cluster and serve until stopped",
    "demo": "a claim and a pod, end to end, with the journey printed",
    "explain": "why is this waiting: which step, on whom, since when, what to do",
    "env": "print the exports for kubectl and aws",
    "test-driver": "put a CSI driver of your own through every lifecycle it promises",
    "crash": "kill a role's process and its containers",
    "apiserver": "the API server",
    "controller-manager": "the controllers",
    "scheduler": "the scheduler",
    "node": "a node: kubelet, volume manager, containers",
    "cloud": "the disk service (EC2 API)",
    "driver": "the EBS driver's controller or node service",
    "provisioner": "sidecar: makes and deletes volumes for claims",
    "attacher": "sidecar: attaches and detaches volumes",
    "resizer": "sidecar: grows and modifies volumes",
    "snapshotter": "sidecar: takes and deletes snapshots",
    "snapshot-controller": "the snapshot controller by itself",
    "fencer": "sidecar: releases nodes whose instances are off",
    "registrar": "sidecar: registers a driver with its node",
    "liveness": "sidecar: answers health checks for a driver",
}


class Verbs(click.Group):
    """Subcommands by name, imported only when one of them runs."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = _loaded(f"volplane.cli.{name.replace('-', '_')}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _loaded(name: str) -> ModuleType:
    """What modules make stays: looking for garbage in it, again and again, takes a tenth of a start."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="volplane")
def volplane() -> None:
    """The Kubernetes volume control plane, without the cluster."""


def main(arguments: Sequence[str] | None = None) -> None:
    try:
        volplane.main(args=arguments, prog_name="volplane", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Failure as error:
        print(f"volplane: {error}", file=sys.stderr)
        sys.exit(1)
