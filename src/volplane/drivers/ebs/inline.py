"""CSI inline volumes: created when the pod is published, deleted when it is unpublished.

The node does what the controller and sidecars do for other volumes, so it needs the EC2 API. The node stores
nothing: the disk is created with a client token and tagged with the kubelet's handle, by which it is found
after a crash, and deleted when the kubelet unpublishes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from volplane.api import quantity
from volplane.csi import v1
from volplane.drivers.ebs import error_codes, parameters
from volplane.drivers.ebs.constants import CLUSTER_TAG, INLINE_TAG
from volplane.drivers.ebs.disk_attacher import DiskAttacher, wait_until_created
from volplane.drivers.ebs.ec2 import Ec2, Ec2Error, Ec2Volume
from volplane.drivers.ebs.error_codes import translate_errors
from volplane.drivers.ebs.parameters import DiskParameters
from volplane.sdk.errors import FailedPrecondition, InvalidArgument

DEFAULT_SIZE = 1  # GiB

_POD = "csi.storage.k8s.io/"
_FOR = {
    f"{_POD}pod.name": "kubernetes.io/created-for/pod/name",
    f"{_POD}pod.namespace": "kubernetes.io/created-for/pod/namespace",
}


ConnectEc2: TypeAlias = Callable[[], Awaitable[Ec2]]


class InlineVolumes:
    def __init__(self, connect: ConnectEc2 | None, *, instance: str, zone: str) -> None:
        self._connect, self._instance, self._zone = connect, instance, zone
        self._ec2: Ec2 | None = None
        self._attaching: DiskAttacher | None = None

    async def close(self) -> None:
        if self._ec2 is not None:
            await self._ec2.close()

    async def _connect_once(self) -> tuple[Ec2, DiskAttacher]:
        """Connect on first use: most nodes never have inline volumes, and some have no keys."""
        if self._connect is None:
            raise FailedPrecondition("inline volumes need the EC2 API: this node has no AWS account")
        if self._ec2 is None or self._attaching is None:
            self._ec2 = await self._connect()
            self._attaching = DiskAttacher(self._ec2)
        return self._ec2, self._attaching

    async def attach(self, handle: str, attributes: Mapping[str, str]) -> tuple[str, str]:
        """Attach the disk of a handle, and create it if needed; returns its id and its device."""
        disk, size = parse_attributes(attributes)
        tags = {**disk.tags, INLINE_TAG: handle, CLUSTER_TAG: "true"}
        tags |= {tag: attributes[key] for key, tag in _FOR.items() if attributes.get(key)}
        with translate_errors():
            ec2, attaching = await self._connect_once()
            volume = await self._find_volume(ec2, handle)
            if volume is None:
                token = hashlib.sha256(f"inline {handle}".encode()).hexdigest()
                volume = await ec2.create_volume(
                    disk.request(size, self._zone) | {"ClientToken": token}, tags
                )
            await wait_until_created(ec2, volume.id, volume.state)
            return volume.id, await attaching.attach(volume.id, self._instance)

    async def read_type(self, volume: str) -> str:
        """The type of a disk; "" if the EC2 API is not available."""
        if not self.is_available:
            return ""
        with translate_errors():
            ec2, _ = await self._connect_once()
            return (await ec2.volume(volume)).type

    async def remove(self, handle: str) -> None:
        """Detach and delete the disk of a handle, if it exists."""
        with translate_errors():
            ec2, attaching = await self._connect_once()
            volume = await self._find_volume(ec2, handle)
            if volume is None:
                return
            await attaching.detach(volume.id, self._instance)
            try:
                await ec2.delete_volume(volume.id)
            except Ec2Error as error:
                if error.code != error_codes.VOLUME_NOT_FOUND:
                    raise

    @property
    def is_available(self) -> bool:
        return self._connect is not None

    async def _find_volume(self, ec2: Ec2, handle: str) -> Ec2Volume | None:
        found = await ec2.volumes({f"tag:{INLINE_TAG}": handle})
        return next((v for v in found if v.state in ("creating", "available", "in-use")), None)


def parse_attributes(attributes: Mapping[str, str]) -> tuple[DiskParameters, int]:
    """The parameters of the disk in a pod's volumeAttributes, and its size in GiB."""
    given = {k: v for k, v in attributes.items() if not k.startswith(_POD)}
    text = given.pop("size", f"{DEFAULT_SIZE}Gi")
    try:
        size = quantity.value(text)
    except ValueError as error:
        raise InvalidArgument(f"invalid size {text!r}: {error}") from error
    if size <= 0:
        raise InvalidArgument(f"invalid size {text!r}: must be greater than zero")
    disk = parameters.parse(given)
    return disk, disk.size(v1.CapacityRange(required_bytes=size))
