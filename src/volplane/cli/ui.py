"""`volplane ui`: the live page in the browser, of a running cluster of this machine or of any other."""

from __future__ import annotations

import asyncio

import click

from volplane.base import log
from volplane.base.tasks import run_until
from volplane.cli.client_factory import open_transport
from volplane.cli.cluster_reader import WAIT_TIMEOUT, ClusterChoice, cluster_flags, readable_errors
from volplane.cli.error import CommandError
from volplane.cli.options import LEVELS
from volplane.cli.stop_signals import StopSignals
from volplane.cluster.role_control import PAGE, RoleRequest, request_role_change
from volplane.dashboard.entrance import LivePage
from volplane.dashboard.source import ClusterSource
from volplane.web import PortInUse


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="port; 0 picks a free one"
)
@click.option("--log-level", type=LEVELS, default="WARNING", metavar="warning", help="as for up")
@cluster_flags
def command(port: int, log_level: str, cluster: ClusterChoice) -> None:
    """Show a cluster in the browser: its volumes, as they move, and what they wait for.

    Prints an address of 127.0.0.1 that opens the page once. The page only reads, with the rights of the
    kubeconfig's user. A cluster of `volplane up` serves its page itself: then only a new address is printed.
    Of any other, the page is served until Ctrl-C.
    """
    if not port and (link := _ask_running_cluster(cluster)):
        click.echo(link)
        return
    log.setup(log_level)
    asyncio.run(_serve(cluster, port))


def _ask_running_cluster(cluster: ClusterChoice) -> str:
    """A new address of the page that `volplane up` serves; "" if there is none."""
    if cluster.sockets is None:
        return ""
    path = cluster.sockets / "control.sock"
    try:
        answer = asyncio.run(request_role_change(str(path), RoleRequest(PAGE)))
    except (OSError, TimeoutError):
        return ""
    return "" if answer.failed else answer.message


async def _serve(cluster: ClusterChoice, port: int) -> None:
    stop = asyncio.Event()
    StopSignals(asyncio.get_running_loop(), stop).listen()
    transport = open_transport(cluster.files, "volplane-ui", cluster.context)
    try:
        await transport.log_in()
        with readable_errors():
            async with asyncio.timeout(WAIT_TIMEOUT):
                await transport.raw("GET", "/version")
        source = ClusterSource(
            transport=transport,
            name=cluster.title,
            namespace=cluster.namespace,
            sockets=cluster.sockets if cluster.sockets is not None and cluster.sockets.is_dir() else None,
            spans=cluster.spans if cluster.spans is not None and cluster.spans.is_dir() else None,
        )
        await _serve_page(source, port, stop)
    finally:
        await transport.close()


async def _serve_page(source: ClusterSource, port: int, stop: asyncio.Event) -> None:
    try:
        page = await LivePage.start(source, port=port)
    except PortInUse as error:
        raise CommandError(f"{error.strerror}; choose another with --port") from error
    try:
        click.echo(page.issue_link())
        await run_until(stop, asyncio.get_running_loop().create_future())
    finally:
        await page.close()
