"""`volplane node`: one node, with any API server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
import msgspec

from volplane.base.tasks import run_until
from volplane.cli.aws_account import aws_account
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.serve import connect, require_root, serve
from volplane.client.kubeconfig import BadKubeconfig
from volplane.cluster.builtin_images import ImageDeps, builtin_images, service_account_client
from volplane.cluster.user_drivers import BadImage, parse_image_program
from volplane.csi.call_recorder import start_recording
from volplane.drivers import ebs
from volplane.host import Host
from volplane.loops.wait_reports import WaitRegistry
from volplane.node import kubelet
from volplane.node.image_overrides import ImageOverride, ImageOverrides
from volplane.node.options import NodeOptions, pki_directory


@click.command()
@options(NodeOptions)
@click.option("--kubeconfig", default="", metavar="FILE", help="API server and credentials")
@click.option(
    "--bootstrap-kubeconfig",
    default="",
    metavar="FILE",
    help="credentials for requesting a node certificate where --kubeconfig does not exist yet",
)
@click.option("--cover", multiple=True, metavar="DIR", help="directory to hide from containers")
@click.option(
    "--latency",
    default="",
    metavar="PROFILE",
    help="simulate the latency of a cloud: aws (by volume type), ebs, io2 or efs",
)
@click.option(
    "--image",
    "mapped",
    multiple=True,
    metavar="IMAGE=COMMAND",
    help="run this command instead of the image",
)
@click.option(
    "--programs-file", default="", metavar="FILE", help="images and the commands to run instead, as JSON"
)
@click.option(
    "--shared-dir",
    default="/var/lib/volplane/efs",
    metavar="/var/lib/volplane/efs",
    help="directory of shared file systems",
)
def command(
    settings: NodeOptions,
    kubeconfig: str,
    bootstrap_kubeconfig: str,
    cover: tuple[str, ...],
    latency: str,
    mapped: tuple[str, ...],
    programs_file: str,
    shared_dir: str,
) -> None:
    """Run pods and mount their volumes until stopped; then stop the pods and unmount the volumes."""
    require_root()

    async def work(stop: asyncio.Event) -> None:
        if bootstrap_kubeconfig:
            await run_until(
                stop, _join(name_of(settings), bootstrap_kubeconfig, kubeconfig, pki_directory(settings))
            )
        # A registered node may have to remove what an earlier run has left, even if it is stopped early.
        if not bootstrap_kubeconfig or _has_joined(kubeconfig):
            programs = _programs(mapped, programs_file)
            await _serve(settings, kubeconfig, cover, latency, programs, shared_dir, registry, stop)

    registry = WaitRegistry()
    serve(work, wait_registry=registry)


def _programs(mapped: tuple[str, ...], file: str) -> ImageOverrides:
    try:
        given = msgspec.json.decode(Path(file).read_bytes(), type=dict[str, ImageOverride]) if file else {}
        return ImageOverrides({**given, **dict(map(parse_image_program, mapped))})
    except (BadImage, OSError, msgspec.MsgspecError) as error:
        raise CommandError(str(error)) from error


def name_of(settings: NodeOptions) -> str:
    return settings.hostname_override or os.uname().nodename.lower()


def _has_joined(kubeconfig: str) -> bool:
    return os.path.exists(kubeconfig)


async def _join(name: str, bootstrap: str, kubeconfig: str, directory: str) -> None:
    from volplane.node import tls_bootstrap  # imported only when needed

    if not kubeconfig:
        raise CommandError("--bootstrap-kubeconfig needs --kubeconfig, to store the node's credentials")
    try:
        await tls_bootstrap.request_client_certificate(
            name=name, bootstrap=bootstrap, config=kubeconfig, directory=directory
        )
    except (tls_bootstrap.BootstrapRefused, BadKubeconfig) as error:
        raise CommandError(f"this machine could not join the cluster: {error}") from error


async def _serve(
    settings: NodeOptions,
    kubeconfig: str,
    cover: tuple[str, ...],
    latency: str,
    programs: ImageOverrides,
    shared_dir: str,
    registry: WaitRegistry,
    stop: asyncio.Event,
) -> None:
    client = connect(kubeconfig, "kubelet")
    host = Host()
    places = {name_of(settings): ebs.EbsNodeConfig(settings.instance_id, settings.zone, latency=latency)}
    recorder = start_recording()
    deps = ImageDeps(service_account_client, host, aws_account(), places, shared_dir, registry, recorder)
    try:
        own = builtin_images(deps, programs)
        await kubelet.run(
            settings,
            client,
            host,
            own,
            stop=stop,
            cover=cover,
            programs=programs,
            wait_registry=registry,
            interceptor=recorder,
        )
    finally:
        await client.close()
        await client.transport.close()
        await host.close()
