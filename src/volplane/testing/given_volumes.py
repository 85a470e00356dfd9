"""Volumes of drivers that do not create any: given by id, or inline in a pod.

A given volume exists before the run and after it (`--volume-id`); an inline volume exists as long as its pod,
as the kubelet makes it from `csi:` in a pod's volumes. Cases use both like volumes that the driver creates:
creating one takes it from those given, deleting it gives it back, and neither is a call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from volplane.csi import v1
from volplane.host.mounts import is_mount
from volplane.testing.case import NotSupported, require
from volplane.testing.volume import DATA_FILE, VolumeUnderTest

if TYPE_CHECKING:
    from volplane.testing.socket_env import DriverSocket, SocketEnv

POD_INFO = "csi.storage.k8s.io/"
_MULTI_NODE = [mode for name, mode in v1.VolumeCapability.AccessMode.Mode.items() if "MULTI_NODE" in name]


class GivenVolumes(Struct, frozen=True, kw_only=True):
    """What the command line says about volumes that the driver does not create."""

    ids: tuple[str, ...] = ()
    context: Mapping[str, str] = {}
    inline: bool = False
    attributes: Mapping[str, str] = {}  # of inline volumes
    read_only: bool = False  # published with readonly, and never written

    def __bool__(self) -> bool:
        return bool(self.ids) or self.inline

    def inline_source(self, driver: str) -> dict[str, object]:
        """The `csi` of a pod's volume."""
        made: dict[str, object] = {"driver": driver}
        if self.attributes:
            made["volumeAttributes"] = dict(self.attributes)
        return {**made, "readOnly": True} if self.read_only else made

    def take_id(self, used: set[str]) -> str:
        """An id that is not in use. Raises NotSupported."""
        if free := next((one for one in self.ids if one not in used), ""):
            return free
        raise NotSupported(f"it needs more than the given volumes (--volume-id): {', '.join(self.ids)}")


def take_volume(
    env: SocketEnv, request: v1.CreateVolumeRequest, capability: v1.VolumeCapability
) -> VolumeUnderTest:
    """A given volume in place of one that is created. Raises NotSupported."""
    if capability.HasField("block"):
        raise NotSupported("the given volumes are used as file systems, not as raw devices")
    if capability.access_mode.mode in _MULTI_NODE:
        raise NotSupported("the given volumes are used on one node at a time")
    if capability.mount.fs_type:
        raise NotSupported("given volumes have their file system already")
    if env.given.inline and capability.mount.mount_flags:
        raise NotSupported("inline volumes have no mount options")
    if request.HasField("volume_content_source"):
        raise NotSupported("given volumes have no source")
    if env.given.inline:
        return InlineVolume(env, request, capability)
    used = {volume.id for volume in env.volumes}
    return GivenVolume(env, request, capability, env.given.take_id(used))


class GivenVolume(VolumeUnderTest):
    """A volume that exists before and after the run."""

    def __init__(
        self, env: SocketEnv, request: v1.CreateVolumeRequest, capability: v1.VolumeCapability, id: str
    ) -> None:
        super().__init__(env, request, capability)
        self.made = v1.Volume(volume_id=id, volume_context=env.given.context)

    async def create(self) -> v1.Volume:
        return self.made

    async def delete(self) -> None:
        self.made, self.deleted = v1.Volume(), True

    async def _delete_by_force(self) -> list[str]:
        return []

    def mount_request(
        self, node: DriverSocket, target: str, *, readonly: bool = False
    ) -> v1.NodePublishVolumeRequest:
        return super().mount_request(node, target, readonly=readonly or self.env.given.read_only)

    async def write(self, path: str, data: bytes, name: str = DATA_FILE) -> None:
        """Write; the case's data is not written to a read-only volume.

        Some drivers leave it to the kubelet to mount a volume read-only for a container: `publish/read-only`,
        which writes another file, reports that once.
        """
        if not self.env.given.read_only or name != DATA_FILE:
            await super().write(path, data, name)

    async def read(self, path: str, size: int = 1 << 20, name: str = DATA_FILE) -> bytes:
        if self.env.given.read_only:
            raise NotSupported("the given volume is read-only, and has no data of the case")
        return await super().read(path, size, name)

    async def expect_data(self, path: str, data: bytes, when: str, *, section: str = "") -> None:
        if self.env.given.read_only:
            await self.expect_mounted(path, when)
        else:
            await super().expect_data(path, data, when, section=section)

    async def expect_mounted(self, path: str, when: str) -> None:
        """Raise CaseFailure unless a volume is mounted at the path, and can be read."""
        mounted = await self.env.host.call(is_mount, path)
        require(mounted, f"{path} is not a mount, {when}", section="NodePublishVolume")
        await self.env.host.call(os.listdir, path)


class InlineVolume(GivenVolume):
    """A volume of one pod: the next pod has another one, with another id and without the data."""

    def __init__(
        self, env: SocketEnv, request: v1.CreateVolumeRequest, capability: v1.VolumeCapability
    ) -> None:
        super().__init__(env, request, capability, "")
        self._written: set[str] = set()  # targets
        self._renew()

    def _renew(self) -> None:
        # As the kubelet names them.
        self.made = v1.Volume(
            volume_id=f"csi-{self.env.random.getrandbits(256):064x}", volume_context=self.env.given.attributes
        )

    def mount_request(
        self, node: DriverSocket, target: str, *, readonly: bool = False
    ) -> v1.NodePublishVolumeRequest:
        request = super().mount_request(node, target, readonly=readonly)
        uid = os.path.relpath(target, node.root).split("/")[1]  # pods/UID/…
        for key, value in (
            ("pod.name", f"pod-{uid}"),
            ("pod.namespace", "default"),
            ("pod.uid", uid),
            ("serviceAccount.name", "default"),
            ("ephemeral", "true"),
        ):
            request.volume_context[POD_INFO + key] = value
        return request

    async def publish(self, node: DriverSocket, pod: str = "a", *, readonly: bool = False) -> str:
        if any(target != self.target(node, pod) for target in self.targets):
            raise NotSupported("an inline volume has one pod")
        return await super().publish(node, pod, readonly=readonly)

    async def _unpublish(self, node: DriverSocket, target: str) -> None:
        await super()._unpublish(node, target)
        self._written.discard(target)
        self._renew()

    async def write(self, path: str, data: bytes, name: str = DATA_FILE) -> None:
        await super().write(path, data, name)
        self._written.add(path)

    async def expect_data(self, path: str, data: bytes, when: str, *, section: str = "") -> None:
        if path in self._written:
            await super().expect_data(path, data, when, section=section)
        else:
            await self.expect_mounted(path, when)
