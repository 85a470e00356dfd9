"""What the verbs that only look at a cluster have in common: which cluster, one reading, readable errors."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import msgspec
from msgspec import Struct

from volplane.api.core import Node
from volplane.api.errors import APIError, Forbidden, NotFound, Unauthorized
from volplane.cli.client_factory import open_transport
from volplane.cli.error import CommandError
from volplane.client import kubeconfig as configs
from volplane.client.https import HttpsTransport
from volplane.client.kubeconfig import CURRENT, ContextChoice
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.explain.cluster_state import ClusterState
from volplane.explain.render import PROBLEM_MARK
from volplane.explain.wait_reports import RoleAnswers, UnknownRole, ask_all
from volplane.loops.wait_reports import Question

A = TypeVar("A")
T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

WAITS = 3  # exit code if something waits
WIDEST = 110
WAIT_TIMEOUT = 60.0  # timeout in seconds


class ClusterChoice(Struct, frozen=True):
    """The cluster to look at."""

    files: tuple[Path, ...] = ()  # kubeconfigs; none for a pod's service account
    context: ContextChoice = CURRENT

    @property
    def sockets(self) -> Path | None:
        """The directory with the sockets of running roles, beside the kubeconfig of `volplane up`."""
        return self.files[0].parent / "run" if self.files else None

    @property
    def spans(self) -> Path | None:
        """The directory with the recorded steps, beside the kubeconfig of `volplane up`."""
        return self.files[0].parent / "spans" if self.files else None

    @property
    def title(self) -> str:
        """What people call the cluster: its directory, or its context."""
        if self.context.context or not self.files:
            return self.context.context or "this cluster"
        return (
            self.files[0].stem
            if self.files[0].name != "kubeconfig"
            else self.files[0].parent.name.lstrip(".")
        )

    @property
    def namespace(self) -> str:
        """The namespace of the context. Raises CommandError."""
        try:
            return configs.namespace(self.files, self.context) if self.files else ""
        except configs.BadKubeconfig as error:
            raise CommandError(str(error)) from error


def cluster_options(command: Command) -> Command:
    """Add the cluster's flags and -o, for a verb that asks roles. It gets them as `cluster` and `output`."""
    output = click.option(
        "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="output format"
    )
    return _add_flags(output(command), "cluster of `volplane up`; also asks its roles")


def cluster_flags(command: Command) -> Command:
    """Add kubectl's flags for a cluster and --data-dir. The verb gets them as `cluster`."""
    return _add_flags(command, "cluster of `volplane up`")


def _add_flags(command: Command, data_dir_help: str) -> Command:

    def run(
        *, kubeconfig: str, name: str, data_dir: str, context: str, cluster: str, user: str, **values: Any
    ) -> Any:
        chosen = choose_cluster(kubeconfig, data_dir, ContextChoice(context, cluster, user), name)
        return command(cluster=chosen, **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return choice_options(cast("Command", run), data_dir_help)


def choice_options(command: Command, data_dir_help: str) -> Command:
    """Add the options alone, for a verb that chooses the cluster itself."""
    for option in (
        click.option("--data-dir", default="", metavar="DIR", help=data_dir_help),
        click.option("--name", default="", metavar="NAME", help="cluster of `volplane up --name NAME`"),
        click.option("--user", default="", metavar="NAME", help="user of the kubeconfig"),
        click.option("--cluster", default="", metavar="NAME", help="cluster of the kubeconfig"),
        click.option("--context", default="", metavar="NAME", help="context of the kubeconfig"),
        click.option(
            "--kubeconfig", default="", metavar="FILE", help="any Kubernetes cluster; default: as kubectl"
        ),
    ):
        command = option(command)
    return command


def choose_cluster(kubeconfig: str, data_dir: str, context: ContextChoice, name: str = "") -> ClusterChoice:
    """The cluster of the flags, or the one that kubectl uses, or that of `volplane up`."""
    if name:
        data_dir = resolve_name(name, data_dir)
    if data_dir and (kubeconfig or context != CURRENT):
        raise click.UsageError(
            "--data-dir and --name exclude --kubeconfig, --context, --cluster and --user: a data directory"
            " has its own kubeconfig"
        )
    if data_dir:
        directory = Path(data_dir).expanduser().absolute()
        if not (directory / "kubeconfig").exists():
            raise CommandError(f"no cluster in {directory}: start one with volplane up --data-dir {data_dir}")
        return ClusterChoice((directory / "kubeconfig",))
    if kubeconfig:
        return ClusterChoice((Path(kubeconfig),), context)
    try:
        files = configs.list_files()
    except configs.BadKubeconfig as error:
        raise CommandError(str(error)) from error
    own = Path("~/.volplane/kubeconfig").expanduser()
    if not files and not configs.is_in_cluster():
        if not own.exists():
            raise CommandError(
                "no cluster: there is no ~/.kube/config, $KUBECONFIG is not set, and this is not a pod; give"
                " a file with --kubeconfig, or start a cluster with volplane up"
            )
        files = (own,)
    return ClusterChoice(files, context)


def resolve_name(name: str, data_dir: str) -> str:
    """The data directory of a named cluster. Raises CommandError."""
    if sys.platform != "linux":
        raise CommandError(f"--name needs Linux, where such clusters run, and this is {sys.platform}")
    from volplane.cli.cluster_directory import choose_directory

    return choose_directory(name, data_dir)


def run_with(cluster: ClusterChoice, component: str, work: Callable[[HttpsTransport], Awaitable[T]]) -> T:
    """Connect, do the work and disconnect. Raises CommandError."""

    async def run() -> T:
        transport = open_transport(cluster.files, component, cluster.context)
        try:
            await transport.log_in()
            return await work(transport)
        finally:
            await transport.close()

    with readable_errors():
        return asyncio.run(run())


def read_cluster(
    cluster: ClusterChoice,
    read: Callable[[SnapshotCaches], Awaitable[T]],
    *,
    component: str,
    namespace: str = "",
) -> T:
    """Connect, read once and disconnect. Raises CommandError."""
    with readable_errors():
        return asyncio.run(_read(cluster, read, component, namespace))


@contextmanager
def readable_errors() -> Iterator[None]:
    """Raise CommandError for what a cluster refuses, and if it does not answer."""
    try:
        yield
    except (NotFound, Forbidden, Unauthorized, UnknownRole) as error:
        raise CommandError(str(error)) from error
    except APIError as error:
        raise CommandError(f"the API server does not answer: {error}") from error
    except TimeoutError:
        raise CommandError(f"no answer within {WAIT_TIMEOUT:g} seconds") from None


def read_roles(
    cluster: ClusterChoice,
    question: Question,
    type: type[A],
    read: Callable[[ClusterState, RoleAnswers[A]], Awaitable[T]],
) -> T:
    """Read the cluster and ask its running roles, if their sockets are here. Raises CommandError."""

    async def read_all(caches: SnapshotCaches) -> T:
        state, sockets = ClusterState(caches), cluster.sockets
        await state.client.list(Node)  # fails if there is no API server
        answers = await ask_all(sockets, question, type) if sockets is not None else RoleAnswers[A]()
        return await read(state, answers)

    return read_cluster(cluster, read_all, component=f"volplane-{question}")


def print_report(report: T, render: Callable[[T, int], Iterable[str]], output: str) -> None:
    """As JSON, or as text: headlines bold and problems yellow on a terminal."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
        return
    for line in render(report, min(shutil.get_terminal_size().columns, WIDEST)):
        if line.startswith(PROBLEM_MARK):
            line = click.style(line, fg="yellow")
        elif line and not line.startswith(" "):
            line = click.style(line, bold=True)
        click.echo(line)


async def _read(
    cluster: ClusterChoice, read: Callable[[SnapshotCaches], Awaitable[T]], component: str, namespace: str
) -> T:
    transport = open_transport(cluster.files, component, cluster.context)
    caches = SnapshotCaches(transport, namespace=namespace)
    try:
        await transport.log_in()  # without a timeout: a plugin may ask the user for a password
        async with asyncio.timeout(WAIT_TIMEOUT):
            return await read(caches)
    finally:
        await caches.close()
        await transport.close()
