"""What a shell completes after a verb: kinds, names of objects, contexts, roles, clusters and files.

Names are those of the cluster that the words before choose. A shell shows nothing if the cluster does not
answer within a few seconds: a completion prints no errors and asks no questions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import click
from click.shell_completion import CompletionItem

from volplane.api import kinds
from volplane.api.core import Namespace, Node
from volplane.api.errors import APIError
from volplane.api.meta import Resource
from volplane.cli.client_factory import open_transport
from volplane.cli.cluster_reader import ClusterChoice, choose_cluster
from volplane.cli.error import CommandError
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.client.kubeconfig import BadKubeconfig, ContextChoice
from volplane.client.kubeconfig.files import merge_files
from volplane.explain.resolve import UnsupportedKind, parse_kind

EXPLAINED = ("node", "pod", "pv", "pvc", "volumeattachment", "volumesnapshot")
WITH_JOURNEY = ("pod", "pv", "pvc")
FILES = ("FILE", "PATH", "OLD.json")  # placeholders of options
DIRECTORIES = ("DIR", "~/.volplane")
TIMEOUT = 3.0  # seconds

ROLES = ("apiserver", "cloud", "controller-manager", "scheduler")

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def add_completions(verb: str, command: click.Command) -> None:
    """Complete the values of a verb's arguments and options, and those of its own verbs."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_completions(verb, each)
    for parameter in command.params:
        complete = _find_completion(verb, parameter)
        if complete is not None:
            parameter.shell_complete = partial(_complete, complete, parameter)  # type: ignore[method-assign]
        elif isinstance(parameter, click.Option) and parameter.metavar in (*FILES, *DIRECTORIES):
            parameter.shell_complete = partial(_complete_path, parameter.metavar)  # type: ignore[method-assign]


def _find_completion(verb: str, parameter: click.Parameter) -> Complete | None:
    match verb, parameter.name:
        case "explain", "what":
            return partial(_complete_object, EXPLAINED)
        case (("journey" | "states"), "what"):
            return partial(_complete_object, WITH_JOURNEY)
        case "world", "what":
            return partial(_complete_role, ("attachdetach",))
        case "plugins", "what":
            return partial(_complete_role, ("controller-manager",))
        case (("crash" | "logs"), "role"):
            return partial(_complete_role, ROLES)
        case "start", "role":
            return partial(_complete_role, ())
        case (("explain" | "journey" | "states"), "namespace"):
            return _complete_namespace
        case _, ("context" | "cluster" | "user") if isinstance(parameter, click.Option):
            return None if parameter.is_flag else _complete_kubeconfig_entry
        case _, "name":
            return _complete_cluster_name
    return None


def _complete(
    complete: Complete, parameter: click.Parameter, context: click.Context, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(value) for value in complete(context, parameter, incomplete)]


def _complete_path(metavar: str, context: click.Context, incomplete: str) -> list[CompletionItem]:
    """A file or a directory: the shell knows them."""
    return [CompletionItem(incomplete, type="dir" if metavar in DIRECTORIES else "file")]


def _complete_role(
    words: Sequence[str], context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """One of these words, or node/NAME."""
    nodes = [f"node/{name}" for name in _list_names(context, Node)] if incomplete[:1] in ("", "n") else []
    return _select((*words, *nodes), incomplete)


def _complete_namespace(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _select(_list_names(context, Namespace), incomplete)


def _complete_kubeconfig_entry(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """The contexts, clusters or users of the kubeconfig: of the section that the option is named after."""
    with suppress(BadKubeconfig):
        given = context.params.get("kubeconfig") or ""
        merged = merge_files([given] if given else kubeconfig.list_files())
        section = f"{parameter.name}s"
        return _select(sorted(name for kind, name in merged.entries if kind == section), incomplete)
    return []


def _complete_cluster_name(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The clusters of `volplane up --name`."""
    from volplane.cluster.lifecycle import list_directories  # needs Linux

    return _select([name for name, _ in list_directories() if name], incomplete)


def _complete_object(
    shown: Sequence[str], context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    kind, slash, _ = incomplete.partition("/")
    matching = [kind] if slash else _select(shown, kind)
    if len(matching) == 1:  # the shell adds a space after the only candidate, so it must be a whole one
        with suppress(UnsupportedKind):
            names = _list_names(context, parse_kind(matching[0].lower()))
            whole = _select([f"{matching[0]}/{name}" for name in names], incomplete)
            if whole or slash:
                return whole
    return [f"{each}/" for each in matching]


def _select(candidates: Iterable[str], incomplete: str) -> list[str]:
    return [each for each in candidates if each.startswith(incomplete)]


def _list_names(context: click.Context, type: type[Resource]) -> list[str]:
    given = {name: context.params.get(name) or "" for name in ("kubeconfig", "data_dir", "name")}
    given |= {name: context.params.get(name) or "" for name in ("context", "cluster", "user", "namespace")}
    directory = given["data_dir"] or (given["name"] and f"~/.volplane-{given['name']}")
    try:
        choice = ContextChoice(given["context"], given["cluster"], given["user"])
        cluster = choose_cluster(given["kubeconfig"], directory, choice)
        namespace = given["namespace"] or cluster.namespace or "default"
        _close_input()
        return asyncio.run(_read_names(cluster, type, namespace))
    except (CommandError, click.UsageError, APIError, TimeoutError, OSError):
        return []


async def _read_names(cluster: ClusterChoice, type: type[Resource], namespace: str) -> list[str]:
    transport = open_transport(cluster.files, "volplane-completion", cluster.context)
    client = Client(transport)
    try:
        async with asyncio.timeout(TIMEOUT):
            await transport.log_in()
            found = await client.list(type, namespace if kinds.of(type).namespaced else "")
            return sorted(each.name for each in found)
    finally:
        await client.close()
        await transport.close()


def _close_input() -> None:
    """So that no credential plugin asks for a password while the user types."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
