"""Built-in images: the image `volplane/csi-attacher` in a manifest is a coroutine of the node.

A coroutine gets its container's arguments and environment like a process, and accesses files through the
container's mounts. Every pod may use the sidecars: they act as the pod's service account and see only its
volumes. The drivers and the fencer have the keys of the cloud, so only some service accounts may use them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeVar

from msgspec import Struct, field, structs

from volplane.base.settings import BadFlag, parse
from volplane.base.tasks import run_until
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.cluster.data_directory import free_port
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import CsiChannel, SocketOpener, socket_path
from volplane.drivers import ebs, efs
from volplane.host import Host
from volplane.loops.controller import Unsupported
from volplane.loops.wait_reports import WaitRegistry
from volplane.node.containers.base import ContainerSpec
from volplane.node.containers.task import RestrictedImage, TaskContext, TaskImage
from volplane.node.image_overrides import ImageOverrides, image_repository
from volplane.sidecars import fencer, liveness, provisioner, registrar
from volplane.sidecars.attacher import service as attacher
from volplane.sidecars.resizer import service as resizer
from volplane.sidecars.snapshotter import service as snapshotter
from volplane.web import PortInUse

T = TypeVar("T", bound=Struct)
log = logging.getLogger(__name__)

# Names of upstream's sidecar images, in any registry.
UPSTREAM = frozenset(
    {
        "csi-provisioner",
        "csi-attacher",
        "csi-resizer",
        "csi-snapshotter",
        "csi-node-driver-registrar",
        "livenessprobe",
        "snapshot-controller",
    }
)

# Flags in manifests that are ignored: the API server is known here, the others are obsolete.
UNUSED = frozenset(
    {
        "kubeconfig",
        "master",
        "connection-timeout",
        "leader-election-type",
        "provisioner",
        "snapshotter",
        "mode",
    }
)

C = TypeVar(
    "C",
    provisioner.ProvisionerOptions,
    attacher.AttacherOptions,
    resizer.ResizerOptions,
    snapshotter.SnapshotterOptions,
)

H = TypeVar(
    "H",
    provisioner.ProvisionerOptions,
    attacher.AttacherOptions,
    resizer.ResizerOptions,
    snapshotter.SnapshotterOptions,
    registrar.RegistrarOptions,
    liveness.LivenessOptions,
)


class ImageDeps(Struct, frozen=True):
    """What the built-in images need from their process."""

    client: Callable[[str, TaskContext], AbstractAsyncContextManager[Client]]  # for a component in a pod
    host: Host
    account: ebs.AwsAccount
    places: Mapping[str, ebs.EbsNodeConfig]  # by node
    shared: str  # the directory of shared file systems
    wait_registry: WaitRegistry = field(default_factory=WaitRegistry)
    interceptor: CallInterceptor | None = None  # of all calls to drivers

    def channel(self, address: str, component: str, open_socket: SocketOpener) -> CsiChannel:
        """A connection of a sidecar to its driver."""
        return CsiChannel(address, component=component, open_socket=open_socket, interceptor=self.interceptor)


class PluginOptions(Struct, frozen=True, kw_only=True):
    endpoint: str
    extra_tags: str = ""


class BuiltinImages(Mapping[str, TaskImage]):
    """The built-in images by all names that manifests use for them.

    Upstream publishes the sidecars in several registries, and vendors copy them into their own; the last part
    of the name is the same everywhere. An image that is replaced by a program is not built in, not even one
    of ours.
    """

    def __init__(self, own: Mapping[str, TaskImage], programs: ImageOverrides | None = None) -> None:
        self._own, self._programs = own, programs or ImageOverrides()

    def _name(self, image: str) -> str:
        if self._programs.get(image) is not None:
            return ""
        if image in self._own:
            return image
        last = image_repository(image).rpartition("/")[2]
        return f"volplane/{last}" if last in UPSTREAM else ""

    def __getitem__(self, image: str) -> TaskImage:
        return self._own[self._name(image)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def builtin_images(deps: ImageDeps, programs: ImageOverrides | None = None) -> BuiltinImages:
    """The images by the names that manifests use."""

    async def ebs_plugin(context: TaskContext) -> None:
        mode, *rest = context.args or ("",)
        settings = _settings(PluginOptions, rest)
        socket = context.path("/" + settings.endpoint.removeprefix("unix:").lstrip("/"))
        if mode == "controller":
            await _until_stopped(context, ebs.run_controller(deps.account, deps.host, socket))
        elif mode == "node":
            place = deps.places[context.env["CSI_NODE_NAME"]]
            serving = ebs.run_node(place, deps.host, context.node, socket, account=deps.account)
            await _until_stopped(context, serving)
        else:
            raise SystemExit(f'the first argument says what to run, "controller" or "node", not "{mode}"')

    async def efs_plugin(context: TaskContext) -> None:
        mode, *rest = context.args or ("",)
        settings = _settings(PluginOptions, rest)
        socket = context.path("/" + settings.endpoint.removeprefix("unix:").lstrip("/"))
        if mode == "controller":
            await _until_stopped(context, efs.run_controller(deps.shared, deps.host, socket))
        elif mode == "node":
            name = context.env["CSI_NODE_NAME"]
            place = deps.places[name]
            serving = efs.run_node(
                deps.shared, place.instance, deps.host, context.node, socket, latency=place.latency
            )
            await _until_stopped(context, serving)
        else:
            raise SystemExit(f'the first argument says what to run, "controller" or "node", not "{mode}"')

    def sidecar(
        component: str, kind: type[C], run: Callable[..., Awaitable[None]], *, placed: bool = False
    ) -> TaskImage:
        async def image(context: TaskContext) -> None:
            settings, open_socket = _resolve_socket(context, _settings(kind, context.args))
            identity, namespace = _as_sidecar(context)
            where = {"node": context.env.get("NODE_NAME", "")} if placed else {}
            registry = deps.wait_registry
            channel = deps.channel(settings.csi_address, component, open_socket)
            async with deps.client(component, context) as client, channel:

                def running(options: C) -> Awaitable[None]:
                    return run(
                        client,
                        options,
                        caller=channel,
                        identity=identity,
                        namespace=namespace,
                        wait_registry=registry,
                        interceptor=deps.interceptor,
                        **where,
                    )

                endpoint = settings.http_endpoint or settings.metrics_address
                await _until_stopped(context, _run_with_own_port(context, running, settings, endpoint))

        return image

    async def node_driver_registrar(context: TaskContext) -> None:
        settings, open_socket = _resolve_socket(context, _settings(registrar.RegistrarOptions, context.args))
        # A socket in the kubelet's registration directory registers its driver with the node.
        with context.open_directory(settings.plugin_registration_path) as directory:
            settings = structs.replace(settings, plugin_registration_path=directory)
            async with deps.channel(settings.csi_address, registrar.COMPONENT, open_socket) as channel:
                run = partial(registrar.run, caller=channel)
                await _until_stopped(context, _run_with_own_port(context, run, settings, settings.endpoint))

    async def livenessprobe(context: TaskContext) -> None:
        settings, open_socket = _resolve_socket(context, _settings(liveness.LivenessOptions, context.args))
        connect = partial(deps.channel, settings.csi_address, liveness.COMPONENT, open_socket)
        run = partial(liveness.run, connect=connect)
        await _until_stopped(context, _run_with_own_port(context, run, settings, settings.endpoint))

    async def node_fencer(context: TaskContext) -> None:
        ec2 = await ebs.connect_ec2(deps.account, deps.host)
        try:
            async with deps.client("node-fencer", context) as client:
                work = fencer.run(
                    client, driver=ebs.NAME, is_off=ec2.is_off, wait_registry=deps.wait_registry
                )
                await _until_stopped(context, work)
        finally:
            await ec2.close()

    async def snapshot_controller(context: TaskContext) -> None:
        log.info("the controller manager already runs the snapshot controller: nothing to do")
        await context.stop.wait()

    own: dict[str, TaskImage] = {
        "volplane/ebs-plugin": RestrictedImage("ebs-plugin", ebs_plugin, _is_node_service),
        "volplane/efs-plugin": RestrictedImage("efs-plugin", efs_plugin, _is_node_service),
        "volplane/csi-provisioner": sidecar(
            "csi-provisioner", provisioner.ProvisionerOptions, provisioner.run, placed=True
        ),
        "volplane/csi-attacher": sidecar("csi-attacher", attacher.AttacherOptions, attacher.run),
        "volplane/csi-resizer": sidecar("csi-resizer", resizer.ResizerOptions, resizer.run),
        "volplane/csi-snapshotter": sidecar(
            "csi-snapshotter", snapshotter.SnapshotterOptions, snapshotter.run, placed=True
        ),
        "volplane/csi-node-driver-registrar": node_driver_registrar,
        "volplane/livenessprobe": livenessprobe,
        "volplane/node-fencer": RestrictedImage("node-fencer", node_fencer, _never),
        "volplane/snapshot-controller": snapshot_controller,
    }
    return BuiltinImages(own, programs)


def _is_node_service(spec: ContainerSpec) -> bool:
    return spec.args[:1] == ("node",)


def _never(spec: ContainerSpec) -> bool:
    return False


async def _run_with_own_port(
    context: TaskContext, run: Callable[[H], Awaitable[None]], settings: H, endpoint: str
) -> None:
    """Run with health checks and metrics at the endpoint, or on another port, and tell the node which one.

    Nodes of one machine share its ports, which manifests do not expect, and a pod without hostNetwork opens
    none that others can reach. If one instance answered for all, a driver that hangs would restart the
    others, or go unnoticed.
    """
    if not endpoint:
        return await run(settings)
    if context.spec.host_network:
        try:
            return await run(settings)
        except PortInUse as error:
            log.warning("%s: this node probes another port", error.strerror)
    asked = endpoint.rpartition(":")[2]
    while True:
        port = free_port()
        if asked.isascii() and asked.isdecimal():  # else the endpoint is refused below
            context.ports[int(asked)] = port
            settings = _listen_at(settings, f"127.0.0.1:{port}")
        try:
            return await run(settings)
        except PortInUse:  # taken a moment ago
            continue


def _listen_at(settings: H, endpoint: str) -> H:
    fields = {"http_endpoint": endpoint, "metrics_address": "", "health_port": 0}
    return structs.replace(settings, **{k: v for k, v in fields.items() if k in settings.__struct_fields__})


def _settings(kind: type[T], arguments: tuple[str, ...] | list[str]) -> T:
    try:
        return parse(kind, arguments, unused=UNUSED)
    except BadFlag as error:
        raise SystemExit(str(error)) from error


def _resolve_socket(context: TaskContext, settings: H) -> tuple[H, SocketOpener]:
    """The options with the path of the driver's socket on the machine, and how to open it.

    The pod can replace the socket by a link at any time, so each connection opens it anew inside the volume.
    """
    address = socket_path(settings.csi_address) or settings.csi_address
    opened = structs.replace(settings, csi_address=context.path(address))
    return opened, partial(context.open_socket, address)


def _as_sidecar(context: TaskContext) -> tuple[str, str]:
    # The pod name survives restarts of the process, so a lease is renewed at once.
    identity = context.env.get("POD_NAME", context.spec.pod_name)
    return identity, context.env.get("NAMESPACE", context.spec.namespace)


@asynccontextmanager
async def service_account_client(component: str, context: TaskContext) -> AsyncIterator[Client]:
    """The client of a pod, with the service account that it mounts."""
    directory = str(kubeconfig.SERVICE_ACCOUNT)
    try:
        token, authority = context.read(f"{directory}/token"), context.read(f"{directory}/ca.crt")
        transport = kubeconfig.from_service_account(token, authority, agent=component, env=context.env)
    except (kubeconfig.BadKubeconfig, OSError) as error:
        raise SystemExit(f"cannot connect to an API server: {error}") from error
    client = Client(transport, component=component)
    try:
        yield client
    finally:
        await client.close()
        await transport.close()


async def _until_stopped(context: TaskContext, work: Awaitable[None]) -> None:
    """Run until the work ends or the container is stopped."""
    try:
        await run_until(context.stop, work)
    except Unsupported as error:
        raise SystemExit(str(error)) from error
