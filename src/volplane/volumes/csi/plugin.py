"""CSI on a node: stage once, publish per pod, and the same backwards.

The metadata is written before each call and removed only after the opposite call has succeeded, so that no
crash leaves a mount that nobody knows of. After an uncertain answer everything stays where it is; after a
final refusal nothing does.
"""

from __future__ import annotations

import asyncio
import os
from typing import NoReturn

from google.protobuf.message import Message

from volplane.api import names
from volplane.api.core import PersistentVolume, Pod, Secret, Volume
from volplane.api.errors import APIError
from volplane.api.storage import CSIDriver, VolumeAttachment
from volplane.base import clock
from volplane.client.cache import Cache
from volplane.csi import v1
from volplane.csi.outcome import CallError
from volplane.host import files, mounts
from volplane.rules import selinux
from volplane.volumes.base import (
    Device,
    Place,
    Plugin,
    Site,
    Spec,
    Transient,
    Uncertain,
    Usage,
    VolumeFailure,
    remove_empty,
)
from volplane.volumes.csi import data, request
from volplane.volumes.csi.calls import judged, refusal
from volplane.volumes.csi.drivers import Driver, Drivers, Rpc
from volplane.volumes.projected import DEFAULT_LIFE, Tokens

FRESH = 2.0  # seconds in which an attachment that was read for staging also serves the publish after it


class NotAttached(Transient):
    """The attachment does not (or no longer) allow the mount; said as WaitForAttach."""


class Csi(Plugin):
    name = "kubernetes.io/csi"
    takes_mount_options = True

    def __init__(
        self, site: Site, drivers: Drivers, objects: Cache[CSIDriver], tokens: Tokens | None = None
    ) -> None:
        super().__init__(site)
        self.drivers, self.objects = drivers, objects
        self.tokens = tokens or Tokens(site.client, site.token_max_age)
        self._read: dict[str, tuple[VolumeAttachment, float]] = {}  # by volume; good until

    def owns(self, source: Volume, volume: PersistentVolume | None) -> bool:
        if volume is None:
            return source.csi is not None
        return volume.spec.csi is not None and volume.spec.volume_mode != "Block"

    def unique(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        if volume is None or volume.spec.csi is None:
            return super().unique(pod, name, volume)
        return names.csi_volume(volume.spec.csi.driver, volume.spec.csi.volume_handle)

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return bool(source.csi and source.csi.read_only)

    def needs_attach(self, spec: Spec) -> bool:
        return not request.is_inline(spec) and self.is_attachable(request.driver_of(spec))

    def is_attachable(self, driver: str) -> bool:
        """Without a CSIDriver object, attaching is required."""
        found = self.objects.get(driver)
        return found is None or found.spec.attach_required is not False

    def needs_stage(self, spec: Spec) -> bool:
        return not request.is_inline(spec)

    def is_refreshed(self, spec: Spec) -> bool:
        found = self.objects.get(request.driver_of(spec))
        return bool(found and found.spec.requires_republish)

    async def label(self, spec: Spec) -> str:
        """One for all of the volume, where its driver can mount it so and the pod has not declined."""
        policy = await self.site.host.selinux()
        if policy is None:
            return ""
        mountable = selinux.is_mountable(
            spec.volume, every_mode=self.site.gates.get(selinux.EVERY_MODE, False)
        )
        if not mountable:
            return ""
        wanted = selinux.label(spec.pod, spec.source.name, policy)
        about = self.objects.get(request.driver_of(spec))
        can = about is not None and about.spec.se_linux_mount is True
        return wanted if can and not selinux.is_declined(spec.pod) else ""

    def forget(self, pod: str) -> None:
        self.tokens.forget(pod)

    def path(self, spec: Spec) -> str:
        return self.real(self.volume_path(spec))

    def volume_path(self, spec: Spec) -> str:
        """Where the driver publishes it for this pod."""
        return self.site.paths.csi_target(spec.pod.uid, spec.name)

    def staging_path(self, spec: Spec) -> str:
        return self.site.paths.staging(request.driver_of(spec), request.handle_of(spec))

    def real(self, wire: str) -> str:
        return self.site.paths.real(wire)

    # --- stage

    async def stage(self, spec: Spec) -> None:
        name, handle = request.driver_of(spec), request.handle_of(spec)
        staging = self.real(self.staging_path(spec))
        message, driver = await self.stage_request(spec)
        if message is None:
            await self.run(os.makedirs, staging, 0o750, exist_ok=True)
            return
        metadata = self.real(self.site.paths.staging_data(name, handle))
        await self.run(data.prepare, staging, metadata, request.stage_data(spec))
        with judged() as call:
            await call(driver, "NodeStageVolume", message, spec.pod)
        if call.refused:
            await self._give_up(call.refused, metadata, staging)

    async def _give_up(self, refused: CallError, metadata: str, target: str) -> NoReturn:
        """Nothing of it stays, unless an earlier call, perhaps in an earlier life, has mounted it."""
        try:
            await self.run(_clean_up, metadata, target)
        except Uncertain as mounted:
            raise Uncertain(str(refused)) from mounted
        raise VolumeFailure(str(refused))

    async def stage_request(self, spec: Spec) -> tuple[v1.NodeStageVolumeRequest | None, Driver]:
        """None for a driver that does not stage."""
        name = request.driver_of(spec)
        request.check_lifecycle(spec, self.objects.get(name))
        attachment = await self._attachment(spec)
        if attachment is not None:
            now = clock.now()
            self._read = {unique: read for unique, read in self._read.items() if read[1] > now}
            self._read[spec.unique] = attachment, now + FRESH
        driver = self.drivers[name]
        capabilities = await self._capabilities(driver)
        if not await driver.stages():
            return None, driver
        assert spec.volume is not None
        assert spec.volume.spec.csi is not None
        secret = spec.volume.spec.csi.node_stage_secret_ref
        message = v1.NodeStageVolumeRequest(
            volume_id=request.handle_of(spec),
            publish_context=request.publish_context(attachment),
            staging_target_path=self.staging_path(spec),
            volume_capability=request.capability(spec, capabilities, group=spec.group, label=spec.label),
            secrets=await self._secret(secret.name, secret.namespace) if secret else {},
            volume_context=request.attributes(spec),
        )
        return message, driver

    async def _attachment(self, spec: Spec) -> VolumeAttachment | None:
        if not self.needs_attach(spec):
            return None
        handle, driver = request.handle_of(spec), request.driver_of(spec)
        name = names.attachment(handle, driver, self.site.node)
        try:
            found = await self.site.client.get(VolumeAttachment, name)
        except APIError as error:
            raise NotAttached(
                f"volume {handle} has GET error for volume attachment {name}: {error}"
            ) from error
        if found.is_deleting:
            raise NotAttached("volume attachment is being deleted")
        if not found.status.attached:
            failed = found.status.attach_error
            raise NotAttached(failed.message if failed else f"volume attachment {name} is not attached yet")
        return found

    # --- publish

    async def publish(self, spec: Spec, *, again: bool = False) -> None:
        message, driver = await self.publish_request(spec)
        metadata = self.real(self.site.paths.csi_data(spec.pod.uid, spec.name))
        # The driver makes the target itself; its parent is ours.
        await self.run(
            data.prepare, os.path.dirname(metadata), metadata, request.pod_data(spec, self.site.node)
        )
        with judged() as call:
            await call(driver, "NodePublishVolume", message, spec.pod)
        if call.refused and again:
            raise VolumeFailure(str(call.refused))
        if call.refused:
            await self._give_up(call.refused, metadata, self.real(message.target_path))
        if request.wants_group(spec, self.objects.get(driver.name), await driver.capabilities()):
            await self._give_to_group(spec)

    async def publish_request(self, spec: Spec) -> tuple[v1.NodePublishVolumeRequest, Driver]:
        name = request.driver_of(spec)
        about = self.objects.get(name)
        request.check_lifecycle(spec, about)
        driver = self.drivers[name]
        capabilities = await self._capabilities(driver)
        attachment, until = self._read.pop(spec.unique, (None, 0.0))
        if clock.now() > until:
            attachment = await self._attachment(spec)
        context = request.attributes(spec)
        secrets = await self._publish_secrets(spec)
        if about is not None and about.spec.pod_info_on_mount:
            context |= request.pod_attributes(spec.pod, request.lifecycle_of(spec))
        if about is not None and about.spec.token_requests and not request.is_block(spec):
            held = await self._tokens(spec.pod, about)
            if about.spec.service_account_token_in_secrets:
                secrets |= held
            else:
                context |= held
        # A block volume's staging path is always sent, a file system's only to drivers that stage.
        staged = request.is_block(spec) or (not request.is_inline(spec) and await driver.stages())
        message = v1.NodePublishVolumeRequest(
            volume_id=request.handle_of(spec),
            publish_context=request.publish_context(attachment),
            staging_target_path=self.staging_path(spec) if staged else "",
            target_path=self.volume_path(spec),
            volume_capability=request.capability(spec, capabilities, group=spec.group, label=spec.label),
            readonly=spec.readonly,
            secrets=secrets,
            volume_context=context,
        )
        return message, driver

    async def _publish_secrets(self, spec: Spec) -> dict[str, str]:
        if spec.volume is not None:
            assert spec.volume.spec.csi is not None
            secret = spec.volume.spec.csi.node_publish_secret_ref
            return await self._secret(secret.name, secret.namespace) if secret else {}
        assert spec.source.csi is not None
        inline = spec.source.csi.node_publish_secret_ref
        return await self._secret(inline.name, spec.pod.namespace) if inline else {}

    async def _tokens(self, pod: Pod, about: CSIDriver) -> dict[str, str]:
        held = []
        for wanted in about.spec.token_requests:
            life = wanted.expiration_seconds or DEFAULT_LIFE
            try:
                token = await self.tokens.get(pod, wanted.audience, life)
            except APIError as error:
                raise Transient(f"failed to fetch token: {error}") from error
            held.append((wanted.audience, token.text, token.expires))
        return request.tokens(held)

    async def _give_to_group(self, spec: Spec) -> None:
        context = spec.pod.spec.security_context
        gentle = context is not None and context.fs_group_change_policy == "OnRootMismatch"
        assert spec.group is not None
        touched = [0]
        telling = asyncio.create_task(self._tell_of_slowness(spec, touched))
        try:
            await self.site.host.call(
                files.give_to_group,
                self.path(spec),
                spec.group,
                only_if_root_differs=gentle,
                progress=lambda count: touched.__setitem__(0, count),
            )
        except OSError as error:
            raise Uncertain(f"applyFSGroup failed for vol {request.handle_of(spec)}: {error}") from error
        finally:
            telling.cancel()

    async def _tell_of_slowness(self, spec: Spec, touched: list[int]) -> None:
        """A pod whose volume has a million files waits long; its user hears why."""
        pause = self.site.ownership_notice
        while True:
            await asyncio.sleep(pause)
            pause = 2 * self.site.ownership_notice
            text = (
                f"Setting the group of all files in volume {spec.source.name} takes long: {touched[0]} files "
                "so far. With fsGroupChangePolicy OnRootMismatch it is done only once"
            )
            self.site.warn(spec.pod, "VolumePermissionChangeInProgress", text)

    # --- growing

    async def expands(self, spec: Spec) -> bool:
        driver = self.drivers[request.driver_of(spec)]
        return not request.is_inline(spec) and Rpc.EXPAND_VOLUME in await self._capabilities(driver)

    async def expand(self, spec: Spec, size: int) -> None:
        assert spec.volume is not None
        assert spec.volume.spec.csi is not None
        driver = self.drivers[request.driver_of(spec)]
        secret = spec.volume.spec.csi.node_expand_secret_ref
        staged = request.is_block(spec) or await driver.stages()
        message = v1.NodeExpandVolumeRequest(
            volume_id=request.handle_of(spec),
            volume_path=self.volume_path(spec),
            capacity_range=v1.CapacityRange(required_bytes=size),
            staging_target_path=self.staging_path(spec) if staged else "",
            volume_capability=request.capability(spec, await driver.capabilities(), group=None),
            secrets=await self._secret(secret.name, secret.namespace) if secret else {},
        )
        with judged() as call:
            await call(driver, "NodeExpandVolume", message, spec.pod)
        if call.refused:
            raise refusal(call.refused)

    async def usage(self, spec: Spec) -> Usage | None:
        driver = self.drivers[request.driver_of(spec)]
        capabilities = await self._capabilities(driver)
        if Rpc.GET_VOLUME_STATS not in capabilities:
            return None
        message = v1.NodeGetVolumeStatsRequest(
            volume_id=request.handle_of(spec), volume_path=self.volume_path(spec)
        )
        reply = await driver.call("NodeGetVolumeStats", message)
        return request.usage(reply, condition=Rpc.VOLUME_CONDITION in capabilities)

    # --- and back

    async def unpublish(self, place: Place) -> None:
        paths = self.site.paths
        metadata, target = paths.csi_data(place.pod, place.name), paths.csi_target(place.pod, place.name)
        known = await self.site.host.call(data.read, self.real(metadata))
        if known is None:
            if await self.site.host.call(os.path.lexists, os.path.dirname(self.real(metadata))):
                await self._leftovers(place, self.real(metadata), self.real(target))
            return
        message = v1.NodeUnpublishVolumeRequest(volume_id=known["volumeHandle"], target_path=target)
        await self.undo(known["driverName"], "NodeUnpublishVolume", message, place.owner)
        await self.run(_clean_up, self.real(metadata), self.real(target))

    async def _leftovers(self, place: Place, metadata: str, target: str) -> None:
        """A directory without metadata: a crash came before the first write was whole, or after the last."""
        if await self.site.host.is_mount(target):
            raise Uncertain(f"volume data of {place.name} is missing and {target} is still mounted")
        await self.run(_clean_up, metadata, target)

    async def unstage(self, device: Device) -> None:
        driver, handle = split(device.unique)
        staging, metadata = (
            self.site.paths.staging(driver, handle),
            self.site.paths.staging_data(driver, handle),
        )
        real = self.real(staging)
        self.unread(device.unique)
        known, others = await self.site.host.call(_staged, self.real(metadata), real)
        if known:
            if others:
                listed = " ".join(others)
                raise Uncertain(
                    f'the device mount path "{staging}" is still mounted by other references [{listed}]'
                )
            message = v1.NodeUnstageVolumeRequest(volume_id=handle, staging_target_path=staging)
            await self.undo(driver, "NodeUnstageVolume", message)
        await self.run(_clean_up, self.real(metadata), real)

    def unread(self, unique: str) -> None:
        """The next one to mount it asks for the attachment again."""
        self._read.pop(unique, None)

    async def undo(self, driver: str, method: str, message: Message, subject: str = "") -> None:
        """Only OK is success; whatever else comes back, it is tried again."""
        registered = self.drivers[driver]
        try:
            await registered.call(method, message, subject)
        except CallError as error:
            raise Uncertain(str(error)) from error

    # --- after a restart

    async def found(self, pod: str, name: str) -> Place:
        metadata = self.real(self.site.paths.csi_data(pod, name))
        target = self.real(self.site.paths.csi_target(pod, name))
        known = await self.site.host.call(data.read_left, metadata, target)
        if known is None or known.get("volumeLifecycleMode") == request.EPHEMERAL:
            return await super().found(pod, name)
        return Place(
            self.name, data.unique_of(known, metadata), name, pod, label=known.get(request.LABEL, "")
        )

    async def devices(self) -> list[Device]:
        directory = self.real(f"{self.site.paths.plugins}/{self.name}")
        staged = await self.site.host.call(data.scan_staged, directory)
        await self.run(data.remove_strays, directory)
        return [
            Device(
                self.name,
                names.csi_volume(d["driverName"], d["volumeHandle"]),
                label=d.get(request.LABEL, ""),
            )
            for d in staged
        ]

    # --- conveniences

    async def _capabilities(self, driver: Driver) -> frozenset[int]:
        """Asked before anything is made, so that a driver that is not there changes nothing."""
        if not await driver.is_there():
            raise Transient(f"driver {driver.name} does not answer on {driver.endpoint}")
        try:
            return await driver.capabilities()
        except CallError as error:
            raise Transient(str(error)) from error

    async def _secret(self, name: str, namespace: str) -> dict[str, str]:
        try:
            secret = await self.site.client.get(Secret, name, namespace)
        except APIError as error:
            raise Transient(f"failed to get secret {namespace}/{name}: {error}") from error
        return {key: value.decode() for key, value in secret.data.items()}


def _staged(metadata: str, path: str) -> tuple[bool, list[str]]:
    """Whether it was staged by us, and where else it is mounted."""
    known = data.read(metadata) is not None
    return known, mounts.read_table().siblings(path) if known else []


def _clean_up(metadata: str, target: str) -> None:
    """After the driver has let go of `target`. Never recursive, never through a mount."""
    if mounts.is_mount(target):
        raise Uncertain(f"{target} is still a mount point")
    # The target goes first: metadata without a target can be taken down again, the reverse cannot.
    remove_empty(target)
    data.remove(metadata)
    directory = os.path.dirname(metadata)
    remove_empty(directory, os.path.dirname(directory))


def split(unique: str) -> tuple[str, str]:
    """Driver and handle from a unique name such as `kubernetes.io/csi/ebs.csi.aws.com^vol-1`."""
    driver, _, handle = unique.removeprefix(f"{Csi.name}/").partition("^")
    return driver, handle
