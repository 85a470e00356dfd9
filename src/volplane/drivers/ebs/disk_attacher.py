"""Attaches disks to instances and detaches them, through the EC2 API.

Attaching calls EC2 first and reads the state only if that fails. Only AWS needs polling: our own service
answers when it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from volplane.drivers.ebs import error_codes
from volplane.drivers.ebs.device_names import DeviceNames
from volplane.drivers.ebs.ec2 import Ec2, Ec2Attachment, Ec2Error
from volplane.sdk.errors import Aborted, FailedPrecondition

# Seconds between two polls of a volume, and until polling ends.
POLL_INTERVAL, POLL_TIMEOUT = 1.0, 300.0

_TRIES = 4  # to find a free device name


class DiskAttacher:
    def __init__(self, ec2: Ec2) -> None:
        self._ec2, self._names = ec2, DeviceNames()

    async def attach(self, volume: str, instance: str) -> str:
        """Attach a volume; returns the name of its device on the instance."""
        for _ in range(_TRIES):
            device = self._names.reserve(instance)
            if device:
                try:
                    return await self._attach_as(device, volume, instance)
                except Ec2Error as error:
                    if error.code == error_codes.IN_USE:
                        return await self._find_existing_attachment(volume, instance, error)
                    if "already in use" not in error.message:
                        raise
            # The name is taken, or all seem to be: read the taken names from EC2.
            self._names.refresh(instance, await self._ec2.devices(instance))
        raise Aborted(f"no free device name on {instance} after {_TRIES} tries")

    async def _attach_as(self, device: str, volume: str, instance: str) -> str:
        attached = False
        try:
            done = await self._ec2.attach_volume(volume, instance, device)
            attached = True
        finally:
            self._names.finish_attach(instance, device, attached=attached)
        await self._wait_until_attached(volume, instance, done.state)
        return device

    async def _find_existing_attachment(self, volume: str, instance: str, error: Ec2Error) -> str:
        held = (await self._ec2.volume(volume)).attachments
        for attachment in held:
            if attachment.instance == instance and attachment.state in ("attaching", "attached"):
                await self._wait_until_attached(volume, instance, attachment.state)
                return attachment.device
        for attachment in held:
            raise FailedPrecondition(f"Volume {volume} is already attached to node {attachment.instance}")
        raise error  # in use without an attachment

    async def detach(self, volume: str, instance: str) -> None:
        """Detach a volume from the instance, or from any if `instance` is "", if it is attached."""
        try:
            done = await self._ec2.detach_volume(volume, instance)
        except Ec2Error as error:
            gone = (
                error.code in (error_codes.VOLUME_NOT_FOUND, error_codes.NOT_ATTACHED)
                or error.code in error_codes.INSTANCE_NOT_FOUND
            )
            if not gone and error.code != error_codes.WRONG_STATE:
                raise
            if error.code == error_codes.WRONG_STATE:  # not attached, or being detached
                await self._wait_until_detached(volume, instance)
            return
        self._names.free(done.instance, done.device)
        if done.state != "detached":
            await self._wait_until_detached(volume, instance)

    async def _wait_until_attached(self, volume: str, instance: str, state: str) -> None:
        async def again() -> str:
            return _state((await self._ec2.volume(volume)).attachments, instance)

        if state == "attaching":
            state = await poll_while(f"{volume} on {instance}", again, "attaching")
        if state != "attached":
            raise Aborted(f"{volume} is {state} on {instance}")

    async def _wait_until_detached(self, volume: str, instance: str) -> None:
        async def state() -> str:
            try:
                return _state((await self._ec2.volume(volume)).attachments, instance)
            except Ec2Error as error:
                if error.code == error_codes.VOLUME_NOT_FOUND:
                    return "detached"
                raise

        found = await poll_while(f"{volume} on {instance}", state, "detaching")
        if found != "detached":  # AWS reports a mounted disk as "busy"
            raise FailedPrecondition(f"{volume} is {found} on {instance}")


async def wait_until_created(ec2: Ec2, volume: str, state: str) -> None:
    """Wait until a new volume is available."""

    async def again() -> str:
        return (await ec2.volume(volume)).state

    if state == "creating":
        state = await poll_while(volume, again, "creating")
    if state not in ("available", "in-use"):
        raise Aborted(f"{volume} is {state}")


async def poll_while(what: str, state: Callable[[], Awaitable[str]], passing: str) -> str:
    """Wait until the state is no longer `passing`. Raises Aborted: the outcome is still open."""
    try:
        async with asyncio.timeout(POLL_TIMEOUT):
            while (now := await state()) == passing:  # noqa: ASYNC110  AWS sends no events
                await asyncio.sleep(POLL_INTERVAL)
    except TimeoutError:
        raise Aborted(f"EC2: {what} is still {passing} after {POLL_TIMEOUT:g} s") from None
    return now


def _state(attachments: tuple[Ec2Attachment, ...], instance: str) -> str:
    return next((a.state for a in attachments if not instance or a.instance == instance), "detached")
