"""The command line. Each verb is a module that is imported only when it runs, so that verbs start fast."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import click
from click.shell_completion import CompletionItem

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
        "service": "run a cluster as a service of systemd",
        "demo": "show every step of a volume on this machine: claim, pod, data, move",
        "env": "print the shell exports for kubectl and aws",
        "export": "export the objects or the logs of a cluster",
        "import": "create exported objects in any Kubernetes cluster",
        "backup": "write a cluster to one file, while it runs",
        "restore": "create a cluster's data directory from a backup",
        "rotate-certificates": "replace all keys of a stopped cluster",
        "upgrade-check": "check whether this version can start a cluster of another one",
        "fsck": "check whether objects, disks and mounts agree, and repair them",
        "crash": "kill a role, or a node with its containers, to test recovery",
    },
    "Debug": {
        "doctor": "check this machine, your rights and the cluster, and say what to do",
        "explain": "explain why a claim, volume, pod or node waits, and what to do",
        "journey": "show every step of a claim, volume or pod, in the order in which it happened",
        "plugins": "list the volume plugins of nodes and controllers, with version and health",
        "states": "show the state transitions of a claim, volume or pod",
        "ui": "show a cluster in the browser: its volumes as they move, and what they wait for",
        "world": "show desired and actual state of volumes, and the step between them",
    },
    "Driver authors": {
        "test-driver": "run every lifecycle test that applies to your CSI driver",
    },
    "Shell": {
        "unshare": "run a command as root of a user namespace, for tests without root",
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

# The other verbs need Linux.
ANYWHERE = ("explain", "journey", "doctor", "plugins", "states", "ui", "world", "completion")


class Verbs(click.Group):
    """Subcommands by name, imported only when one of them runs."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for name in VERBS if _runs_here(name)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Raises CommandError if it does not run on this system."""
        if name not in VERBS:
            return None
        if not _runs_here(name):
            raise CommandError(
                f"volplane {name} needs Linux, and this is {sys.platform}: run it in a Linux machine or VM."
                f" Here you can use: {', '.join(ANYWHERE)}"
            )
        command: click.Command = _import_verb(module_of(name)).command
        if not any(parameter.name == "no_color" for parameter in command.params):
            command.params.append(click.Option(["--no-color"], **_NO_COLOR, hidden=True))
        if context is not None and context.resilient_parsing:  # a shell completes
            from volplane.cli.completion_values import add_completions

            add_completions(name, command)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs, without importing them, and the options."""
        verbs = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, context, incomplete)
        return [*(CompletionItem(name, help=VERBS[name]) for name in verbs), *options]

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


def module_of(verb: str) -> str:
    """`import` is a keyword, and cannot be the name of a module."""
    name = "import_objects" if verb == "import" else verb.replace("-", "_")
    return f"volplane.cli.{name}"


def _runs_here(name: str) -> bool:
    return sys.platform.startswith("linux") or name in ANYWHERE


def _import_verb(name: str) -> ModuleType:
    """Import a verb without garbage collection, which would take a tenth of the start."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _switch_off_colors(context: click.Context, _: click.Parameter, given: bool) -> None:
    """Of click, and of libraries, which look into the environment."""
    if given or os.environ.get("NO_COLOR"):
        context.color = False
        os.environ["NO_COLOR"] = "1"


# Before the verb and after it.
_NO_COLOR: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _switch_off_colors}


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="volplane")
@click.option("--no-color", **_NO_COLOR, help="no colours; also with $NO_COLOR")
def volplane() -> None:
    """The Kubernetes volume control plane, without the cluster."""


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
