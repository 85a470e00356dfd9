"""The CreateVolume request, and the check of its reply.

A volume that is not as requested is deleted at the driver again, and the provision request stays.
"""

from __future__ import annotations

import logging

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.client.client import Client
from volplane.csi import convert, v1
from volplane.csi.outcome import CallError
from volplane.rules.csi_translation import UntranslatableObject
from volplane.sidecars.base import DriverClient, read_secrets
from volplane.sidecars.provisioner.provision_request import (
    CreatedVolume,
    ProvisionRequest,
    build_volume,
)

log = logging.getLogger(__name__)

UNDO_TRIES = 5


class UnexpectedVolume(Exception):
    """The driver created a volume that is not as requested."""


async def build_create_request(
    client: Client, driver: DriverClient, provision_request: ProvisionRequest
) -> v1.CreateVolumeRequest:
    multi_writer = "SINGLE_NODE_MULTI_WRITER" in driver.controller
    capabilities = [
        convert.capability(
            convert.access_mode(mode, multi_writer=multi_writer),
            block=provision_request.block,
            fs_type=provision_request.fs_type,
            mount_flags=provision_request.mount_options,
        )
        for mode in provision_request.modes
    ]
    request = v1.CreateVolumeRequest(
        name=provision_request.name,
        capacity_range=v1.CapacityRange(required_bytes=provision_request.size),
        volume_capabilities=capabilities,
        parameters=provision_request.parameters,
        secrets=await read_secrets(client, provision_request.secrets.provisioner),
        mutable_parameters=provision_request.mutable_parameters,
    )
    if provision_request.topology is not None:
        request.accessibility_requirements.CopyFrom(
            v1.TopologyRequirement(
                requisite=[convert.topology(dict(t)) for t in provision_request.topology.requisite],
                preferred=[convert.topology(dict(t)) for t in provision_request.topology.preferred],
            )
        )
    if provision_request.content is not None and provision_request.content.snapshot:
        request.volume_content_source.snapshot.snapshot_id = provision_request.content.snapshot
    elif provision_request.content is not None:
        request.volume_content_source.volume.volume_id = provision_request.content.volume
    return request


async def accept_reply(
    client: Client,
    driver: DriverClient,
    claim: PersistentVolumeClaim,
    provision_request: ProvisionRequest,
    reply: v1.CreateVolumeResponse,
    *,
    identity: str,
    timeout: float,
) -> PersistentVolume:
    """The PersistentVolume to save. Raises UnexpectedVolume, after the volume was deleted."""
    volume = reply.volume
    wrong = _find_difference(provision_request, volume)
    if not wrong:
        topologies = tuple(dict(t.segments) for t in volume.accessible_topology)
        context = dict(volume.volume_context)
        created = CreatedVolume(volume.volume_id, volume.capacity_bytes, context, topologies)
        try:
            return build_volume(claim, provision_request, created, identity)
        except UntranslatableObject as error:
            wrong = f"failed to translate the volume to its in-tree form: {error}"
    await _delete_unexpected(client, driver, provision_request, volume.volume_id, timeout)
    raise UnexpectedVolume(wrong)


def _find_difference(provision_request: ProvisionRequest, volume: v1.Volume) -> str:
    size = provision_request.size
    if volume.capacity_bytes and volume.capacity_bytes < size:
        return f"created volume capacity {volume.capacity_bytes} less than requested capacity {size}"
    if provision_request.content is not None and not volume.HasField("content_source"):
        return "volume content source missing"
    return ""


async def _delete_unexpected(
    client: Client, driver: DriverClient, provision_request: ProvisionRequest, handle: str, timeout: float
) -> None:
    request = v1.DeleteVolumeRequest(
        volume_id=handle, secrets=await read_secrets(client, provision_request.secrets.provisioner)
    )
    for _ in range(UNDO_TRIES):
        try:
            await driver.call("DeleteVolume", request, timeout=timeout)
        except CallError as error:
            log.warning("failed to clean up volume %s: %s", handle, error)
        else:
            return
