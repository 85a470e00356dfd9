"""An order as the driver hears it, and its answer as we take it.

What the driver made must be what was ordered; anything else is given back to it, and the order stands.
"""

from __future__ import annotations

import logging

from volplane.client.client import Client
from volplane.csi import convert, v1
from volplane.csi.outcome import CallError
from volplane.sidecars import DriverClient, read_secrets
from volplane.sidecars.provisioner.provision_request import CreatedVolume, ProvisionRequest

log = logging.getLogger(__name__)

UNDO_TRIES = 5


class UnexpectedVolume(Exception):
    """The driver made something else than was ordered."""


async def build_create_request(
    client: Client, driver: DriverClient, order: ProvisionRequest
) -> v1.CreateVolumeRequest:
    multi_writer = "SINGLE_NODE_MULTI_WRITER" in driver.controller
    capabilities = [
        convert.capability(
            convert.access_mode(mode, multi_writer=multi_writer),
            block=order.block,
            fs_type=order.fs_type,
            mount_flags=order.mount_options,
        )
        for mode in order.modes
    ]
    asked = v1.CreateVolumeRequest(
        name=order.name,
        capacity_range=v1.CapacityRange(required_bytes=order.size),
        volume_capabilities=capabilities,
        parameters=order.parameters,
        secrets=await read_secrets(client, order.secrets.provisioner),
        mutable_parameters=order.mutable_parameters,
    )
    if order.topology is not None:
        asked.accessibility_requirements.CopyFrom(
            v1.TopologyRequirement(
                requisite=[convert.topology(dict(t)) for t in order.topology.requisite],
                preferred=[convert.topology(dict(t)) for t in order.topology.preferred],
            )
        )
    if order.content is not None and order.content.snapshot:
        asked.volume_content_source.snapshot.snapshot_id = order.content.snapshot
    elif order.content is not None:
        asked.volume_content_source.volume.volume_id = order.content.volume
    return asked


async def check_reply(
    client: Client,
    driver: DriverClient,
    order: ProvisionRequest,
    reply: v1.CreateVolumeResponse,
    *,
    timeout: float,
) -> CreatedVolume:
    """Raises Unfit, after the driver was told to delete what it made."""
    volume = reply.volume
    wrong = ""
    if volume.capacity_bytes and volume.capacity_bytes < order.size:
        wrong = f"created volume capacity {volume.capacity_bytes} less than requested capacity {order.size}"
    elif order.content is not None and not volume.HasField("content_source"):
        wrong = "volume content source missing"
    if wrong:
        await _delete_unexpected(client, driver, order, volume.volume_id, timeout)
        raise UnexpectedVolume(wrong)
    topologies = tuple(dict(t.segments) for t in volume.accessible_topology)
    return CreatedVolume(volume.volume_id, volume.capacity_bytes, dict(volume.volume_context), topologies)


async def _delete_unexpected(
    client: Client, driver: DriverClient, order: ProvisionRequest, handle: str, timeout: float
) -> None:
    asked = v1.DeleteVolumeRequest(
        volume_id=handle, secrets=await read_secrets(client, order.secrets.provisioner)
    )
    for _ in range(UNDO_TRIES):
        try:
            await driver.call("DeleteVolume", asked, timeout=timeout)
        except CallError as error:
            log.warning("failed to clean up volume %s: %s", handle, error)
        else:
            return
