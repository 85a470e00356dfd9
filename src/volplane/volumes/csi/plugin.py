"""The CSI volume plugin: stage once per node, publish once per pod, and the reverse.

vol_data.json is written before each RPC and removed only after the opposite RPC has succeeded, so that no
crash leaves a mount that is not recorded. After an uncertain error all files stay; after a final error they
are removed.
"""

from __future__ import annotations

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
from volplane.host import mounts
from volplane.rules import selinux
from volplane.volumes.base import (
    NodeContext,
    NotAttachedError,
    PodVolumeRef,
    PodVolumeSpec,
    StagedVolumeRef,
    TransientOperationError,
    UncertainProgressError,
    VolumeMetrics,
    VolumeOperationError,
    VolumePlugin,
    remove_empty_directories,
)
from volplane.volumes.csi import request, vol_data
from volplane.volumes.csi.drivers import RegisteredDriver, RegisteredDrivers, Rpc
from volplane.volumes.csi.rpc_outcome import expansion_error, node_rpc
from volplane.volumes.mount_references import find_references
from volplane.volumes.ownership import apply_fs_group
from volplane.volumes.projected import DEFAULT_TOKEN_LIFETIME, ServiceAccountTokens

ATTACHMENT_REUSE = 2.0  # seconds for which publish reuses the VolumeAttachment that stage has read


class CsiPlugin(VolumePlugin):
    name = "kubernetes.io/csi"
    supports_mount_options = True
    calls_driver = True

    def __init__(
        self,
        context: NodeContext,
        drivers: RegisteredDrivers,
        objects: Cache[CSIDriver],
        tokens: ServiceAccountTokens | None = None,
    ) -> None:
        super().__init__(context)
        self.drivers, self.objects = drivers, objects
        self.tokens = tokens or ServiceAccountTokens(context.client, context.token_max_age)
        self._recent_attachments: dict[str, tuple[VolumeAttachment, float]] = {}  # by volume, with its expiry
        self._published: set[str] = set()  # paths of the vol_data.json that this process has written for pods

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        if volume is None:
            return source.csi is not None
        return volume.spec.csi is not None and volume.spec.volume_mode != "Block"

    def unique_name(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        if volume is None or volume.spec.csi is None:
            return super().unique_name(pod, name, volume)
        return names.csi_volume_name(volume.spec.csi.driver, volume.spec.csi.volume_handle)

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        ebs = source.aws_elastic_block_store
        return bool(source.csi and source.csi.read_only) or (ebs is not None and ebs.read_only)

    def needs_attach(self, spec: PodVolumeSpec) -> bool:
        return not request.is_inline(spec) and self.is_attachable(request.driver_of(spec))

    def may_be_attached(self, unique_name: str) -> bool:
        driver, handle = split_unique_name(unique_name)
        return bool(handle) and self.is_attachable(driver)

    def may_use_driver(self, unique_name: str, driver: str) -> bool:
        own, handle = split_unique_name(unique_name)
        return not handle or own == driver

    def is_attachable(self, driver: str) -> bool:
        """Without a CSIDriver object, attach is required."""
        found = self.objects.get(driver)
        return found is None or found.spec.attach_required is not False

    def needs_stage(self, spec: PodVolumeSpec) -> bool:
        return not request.is_inline(spec)

    def requires_remount(self, spec: PodVolumeSpec) -> bool:
        found = self.objects.get(request.driver_of(spec))
        return bool(found and found.spec.requires_republish)

    async def selinux_label(self, spec: PodVolumeSpec) -> str:
        """A label, if the driver supports mounting with one and the pod has not opted out."""
        policy = await self.context.host.selinux()
        if policy is None:
            return ""
        mountable = selinux.is_mountable(
            spec.volume, every_mode=self.context.gates.get(selinux.EVERY_MODE, False)
        )
        if not mountable:
            return ""
        label = selinux.label(spec.pod, spec.source.name, policy)
        csi_driver = self.objects.get(request.driver_of(spec))
        supported = csi_driver is not None and csi_driver.spec.se_linux_mount is True
        return label if supported and not selinux.is_mount_declined(spec.pod) else ""

    def forget_pod(self, pod: str) -> None:
        self.tokens.forget(pod)

    def path(self, spec: PodVolumeSpec) -> str:
        return self.real(self.volume_path(spec))

    def volume_path(self, spec: PodVolumeSpec) -> str:
        """The target path of NodePublishVolume for this pod."""
        return self.context.paths.csi_target(spec.pod.uid, spec.name)

    def staging_path(self, spec: PodVolumeSpec) -> str:
        return self.context.paths.staging(request.driver_of(spec), request.handle_of(spec))

    def real(self, wire: str) -> str:
        return self.context.paths.real(wire)

    # --- stage

    async def stage(self, spec: PodVolumeSpec) -> None:
        name, handle = request.driver_of(spec), request.handle_of(spec)
        staging = self.real(self.staging_path(spec))
        message, driver = await self.stage_request(spec)
        if message is None:
            await self.run_in_thread(os.makedirs, staging, 0o750, exist_ok=True)
            return
        metadata = self.real(self.context.paths.staging_data(name, handle))
        await self.run_in_thread(vol_data.prepare, staging, metadata, request.stage_data(spec))
        with node_rpc() as call:
            await call(driver, "NodeStageVolume", message)
        if call.final_error:
            await self._clean_up_refused(call.final_error, metadata, staging)

    async def _clean_up_refused(self, refused: CallError, metadata: str, target: str) -> NoReturn:
        """Remove all files, unless an earlier call, perhaps before a restart, has mounted the volume."""
        try:
            await self.run_in_thread(_clean_up, metadata, target)
        except UncertainProgressError as mounted:
            raise UncertainProgressError(str(refused)) from mounted
        self._published.discard(metadata)
        raise VolumeOperationError(str(refused))

    async def stage_request(
        self, spec: PodVolumeSpec
    ) -> tuple[v1.NodeStageVolumeRequest | None, RegisteredDriver]:
        """None for a driver that does not stage."""
        name = request.driver_of(spec)
        request.check_lifecycle(spec, self.objects.get(name))
        attachment = await self._attachment(spec)
        if attachment is not None:
            now = clock.now()
            self._recent_attachments = {
                unique: read for unique, read in self._recent_attachments.items() if read[1] > now
            }
            self._recent_attachments[spec.unique_name] = attachment, now + ATTACHMENT_REUSE
        driver = self.drivers[name]
        capabilities = await self._capabilities(driver)
        if not await driver.supports_staging():
            return None, driver
        assert spec.volume is not None
        assert spec.volume.spec.csi is not None
        secret = spec.volume.spec.csi.node_stage_secret_ref
        message = v1.NodeStageVolumeRequest(
            volume_id=request.handle_of(spec),
            publish_context=request.publish_context(attachment),
            staging_target_path=self.staging_path(spec),
            volume_capability=request.capability(
                spec, capabilities, group=spec.fs_group, label=spec.selinux_label
            ),
            secrets=await self._secret(secret.name, secret.namespace) if secret else {},
            volume_context=request.volume_attributes(spec),
        )
        return message, driver

    async def _attachment(self, spec: PodVolumeSpec) -> VolumeAttachment | None:
        if not self.needs_attach(spec):
            return None
        handle, driver = request.handle_of(spec), request.driver_of(spec)
        name = names.attachment_name(handle, driver, self.context.node)
        try:
            found = await self.context.client.get(VolumeAttachment, name)
        except APIError as error:
            raise NotAttachedError(
                f"volume {handle} has GET error for volume attachment {name}: {error}"
            ) from error
        if found.is_deleting:
            raise NotAttachedError("volume attachment is being deleted")
        if not found.status.attached:
            failed = found.status.attach_error
            raise NotAttachedError(
                failed.message if failed else f"volume attachment {name} is not attached yet"
            )
        return found

    # --- publish

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        message, driver = await self.publish_request(spec)
        metadata = self.real(self.context.paths.csi_data(spec.pod.uid, spec.name))
        # The driver creates the target itself, the kubelet its parent.
        await self.run_in_thread(
            vol_data.prepare, os.path.dirname(metadata), metadata, request.pod_data(spec, self.context.node)
        )
        self._published.add(metadata)
        with node_rpc() as call:
            await call(driver, "NodePublishVolume", message)
        if call.final_error and again:
            raise VolumeOperationError(str(call.final_error))
        if call.final_error:
            await self._clean_up_refused(call.final_error, metadata, self.real(message.target_path))
        if request.node_applies_fs_group(spec, self.objects.get(driver.name), await driver.capabilities()):
            await self._apply_fs_group(spec)

    async def publish_request(
        self, spec: PodVolumeSpec
    ) -> tuple[v1.NodePublishVolumeRequest, RegisteredDriver]:
        name = request.driver_of(spec)
        csi_driver = self.objects.get(name)
        request.check_lifecycle(spec, csi_driver)
        driver = self.drivers[name]
        capabilities = await self._capabilities(driver)
        attachment, until = self._recent_attachments.pop(spec.unique_name, (None, 0.0))
        if clock.now() > until:
            attachment = await self._attachment(spec)
        context = request.volume_attributes(spec)
        secrets = await self._publish_secrets(spec)
        if csi_driver is not None and csi_driver.spec.pod_info_on_mount:
            context |= request.pod_attributes(spec.pod, request.lifecycle_of(spec))
        if csi_driver is not None and csi_driver.spec.token_requests and not request.is_block(spec):
            tokens = await self._request_tokens(spec.pod, csi_driver)
            if csi_driver.spec.service_account_token_in_secrets:
                secrets |= tokens
            else:
                context |= tokens
        # The staging path is always sent for block volumes, otherwise only to drivers that stage.
        staged = request.is_block(spec) or (not request.is_inline(spec) and await driver.supports_staging())
        message = v1.NodePublishVolumeRequest(
            volume_id=request.handle_of(spec),
            publish_context=request.publish_context(attachment),
            staging_target_path=self.staging_path(spec) if staged else "",
            target_path=self.volume_path(spec),
            volume_capability=request.capability(
                spec, capabilities, group=spec.fs_group, label=spec.selinux_label
            ),
            readonly=spec.readonly,
            secrets=secrets,
            volume_context=context,
        )
        return message, driver

    async def _publish_secrets(self, spec: PodVolumeSpec) -> dict[str, str]:
        if spec.volume is not None:
            assert spec.volume.spec.csi is not None
            secret = spec.volume.spec.csi.node_publish_secret_ref
            return await self._secret(secret.name, secret.namespace) if secret else {}
        assert spec.source.csi is not None
        inline = spec.source.csi.node_publish_secret_ref
        return await self._secret(inline.name, spec.pod.namespace) if inline else {}

    async def _request_tokens(self, pod: Pod, csi_driver: CSIDriver) -> dict[str, str]:
        tokens = []
        for token_request in csi_driver.spec.token_requests:
            lifetime = token_request.expiration_seconds or DEFAULT_TOKEN_LIFETIME
            try:
                token = await self.tokens.get(pod, token_request.audience, lifetime)
            except APIError as error:
                raise TransientOperationError(f"failed to fetch token: {error}") from error
            tokens.append((token_request.audience, token.text, token.expires))
        return request.token_attributes(tokens)

    async def _apply_fs_group(self, spec: PodVolumeSpec) -> None:
        try:
            await apply_fs_group(self.context, spec, self.path(spec))
        except OSError as error:
            raise UncertainProgressError(
                f"applyFSGroup failed for vol {request.handle_of(spec)}: {error}"
            ) from error

    # --- expand

    async def requires_node_expansion(self, spec: PodVolumeSpec) -> bool:
        driver = self.drivers[request.driver_of(spec)]
        return not request.is_inline(spec) and Rpc.EXPAND_VOLUME in await self._capabilities(driver)

    async def expand(self, spec: PodVolumeSpec, size: int) -> None:
        assert spec.volume is not None
        assert spec.volume.spec.csi is not None
        driver = self.drivers[request.driver_of(spec)]
        secret = spec.volume.spec.csi.node_expand_secret_ref
        staged = request.is_block(spec) or await driver.supports_staging()
        message = v1.NodeExpandVolumeRequest(
            volume_id=request.handle_of(spec),
            volume_path=self.volume_path(spec),
            capacity_range=v1.CapacityRange(required_bytes=size),
            staging_target_path=self.staging_path(spec) if staged else "",
            volume_capability=request.capability(spec, await driver.capabilities(), group=None),
            secrets=await self._secret(secret.name, secret.namespace) if secret else {},
        )
        with node_rpc() as call:
            await call(driver, "NodeExpandVolume", message)
        if call.final_error:
            raise expansion_error(call.final_error)

    async def read_metrics(self, spec: PodVolumeSpec) -> VolumeMetrics | None:
        driver = self.drivers[request.driver_of(spec)]
        capabilities = await self._capabilities(driver)
        if Rpc.GET_VOLUME_STATS not in capabilities:
            return None
        message = v1.NodeGetVolumeStatsRequest(
            volume_id=request.handle_of(spec), volume_path=self.volume_path(spec)
        )
        reply = await driver.call("NodeGetVolumeStats", message)
        return request.volume_metrics(reply, condition=Rpc.VOLUME_CONDITION in capabilities)

    # --- unpublish and unstage

    async def unpublish(self, ref: PodVolumeRef) -> None:
        paths = self.context.paths
        metadata, target = paths.csi_data(ref.pod, ref.name), paths.csi_target(ref.pod, ref.name)
        driver, handle = split_unique_name(ref.unique_name)
        if not handle or self.real(metadata) not in self._published:  # inline, or from before a restart
            known = await self.context.host.call(vol_data.read, self.real(metadata))
            if known is None:
                if await self.context.host.call(os.path.lexists, os.path.dirname(self.real(metadata))):
                    await self._remove_leftovers(ref, self.real(metadata), self.real(target))
                return
            driver, handle = known["driverName"], known["volumeHandle"]
        message = v1.NodeUnpublishVolumeRequest(volume_id=handle, target_path=target)
        await self.call_until_ok(driver, "NodeUnpublishVolume", message)
        await self.run_in_thread(_clean_up, self.real(metadata), self.real(target))
        self._published.discard(self.real(metadata))

    async def _remove_leftovers(self, ref: PodVolumeRef, metadata: str, target: str) -> None:
        """Remove a directory without metadata: a crash came before its write or after its removal."""
        if await self.context.host.is_mount(target):
            raise UncertainProgressError(
                f"volume data of {ref.name} is missing and {target} is still mounted"
            )
        await self.run_in_thread(_clean_up, metadata, target)

    async def unstage(self, device: StagedVolumeRef) -> None:
        driver, handle = split_unique_name(device.unique_name)
        paths = self.context.paths
        staging, metadata = paths.staging(driver, handle), paths.staging_data(driver, handle)
        real = self.real(staging)
        self.forget_attachment(device.unique_name)
        known, others = await self.context.host.call(
            _find_staged_mounts, self.real(metadata), real, paths.root
        )
        if known:
            if others:
                listed = " ".join(others)
                raise UncertainProgressError(
                    f'the device mount path "{staging}" is still mounted by other references [{listed}]'
                )
            message = v1.NodeUnstageVolumeRequest(volume_id=handle, staging_target_path=staging)
            await self.call_until_ok(driver, "NodeUnstageVolume", message)
        await self.run_in_thread(_clean_up, self.real(metadata), real)

    def forget_attachment(self, unique: str) -> None:
        """Read the VolumeAttachment again for the next mount."""
        self._recent_attachments.pop(unique, None)

    async def call_until_ok(self, driver: str, method: str, message: Message) -> None:
        """An RPC for which only OK is success; after any error it is retried."""
        registered = self.drivers[driver]
        try:
            await registered.call(method, message)
        except CallError as error:
            raise UncertainProgressError(str(error)) from error

    # --- after a restart

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        metadata = self.real(self.context.paths.csi_data(pod, name))
        target = self.real(self.context.paths.csi_target(pod, name))
        known = await self.context.host.call(vol_data.read_leftover, metadata, target)
        if known is None or known.get("volumeLifecycleMode") == request.EPHEMERAL:
            return await super().reconstruct(pod, name)
        return PodVolumeRef(
            self.name,
            vol_data.unique_name_from(known, metadata),
            name,
            pod,
            selinux_label=known.get(request.SELINUX_KEY, ""),
        )

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        directory = self.real(f"{self.context.paths.plugins}/{self.name}")
        staged = await self.context.host.call(vol_data.find_staged, directory)
        await self.run_in_thread(vol_data.remove_empty_staging, directory)
        return [
            StagedVolumeRef(
                self.name,
                names.csi_volume_name(d["driverName"], d["volumeHandle"]),
                selinux_label=d.get(request.SELINUX_KEY, ""),
            )
            for d in staged
        ]

    # --- helpers

    async def _capabilities(self, driver: RegisteredDriver) -> frozenset[int]:
        """Read before anything is created, so that a driver that does not answer changes nothing."""
        if not await driver.is_reachable():
            raise TransientOperationError(f"driver {driver.name} does not answer on {driver.endpoint}")
        try:
            return await driver.capabilities()
        except CallError as error:
            raise TransientOperationError(str(error)) from error

    async def _secret(self, name: str, namespace: str) -> dict[str, str]:
        try:
            secret = await self.context.client.get(Secret, name, namespace)
        except APIError as error:
            raise TransientOperationError(f"failed to get secret {namespace}/{name}: {error}") from error
        return {key: value.decode() for key, value in secret.data.items()}


def _find_staged_mounts(metadata: str, path: str, root: str) -> tuple[bool, list[str]]:
    """Whether it was staged by this kubelet, and where else it is mounted."""
    known = vol_data.read(metadata) is not None
    return known, find_references(mounts.read_table(), path, root) if known else []


def _clean_up(metadata: str, target: str) -> None:
    """After the driver has unmounted `target`. Never recursive, never through a mount."""
    if mounts.is_mount(target):
        raise UncertainProgressError(f"{target} is still a mount point")
    # The target first: metadata without a target can be unmounted again, a target without metadata cannot.
    remove_empty_directories(target)
    vol_data.remove(metadata)
    directory = os.path.dirname(metadata)
    remove_empty_directories(directory, os.path.dirname(directory))


def split_unique_name(unique: str) -> tuple[str, str]:
    """Driver and handle from a unique name such as `kubernetes.io/csi/ebs.csi.aws.com^vol-1`."""
    driver, _, handle = unique.removeprefix(f"{CsiPlugin.name}/").partition("^")
    return driver, handle
