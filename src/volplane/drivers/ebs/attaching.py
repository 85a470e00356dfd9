"""A disk goes to an instance and leaves it, through the EC2 API.

Attaching asks first and looks only if it is refused. Waiting is for AWS alone; our own service answers when
it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from volplane.drivers.ebs import refusals
from volplane.drivers.ebs.ec2 import Attachment, Ec2, Refused
from volplane.drivers.ebs.names import DeviceNames
from volplane.sdk.errors import Aborted, FailedPrecondition

# Seconds between looks at a volume that AWS is moving, and until nobody looks any more.
PATIENCE, PATIENCE_ENDS = 1.0, 300.0

_TRIES = 4  # for a device name


class Attaching:
    def __init__(self, ec2: Ec2) -> None:
        self._ec2, self._names = ec2, DeviceNames()

    async def attach(self, volume: str, instance: str) -> str:
        """The device's name on the instance."""
        for _ in range(_TRIES):
            device = self._names.take(instance)
            if device:
                try:
                    return await self._attach_as(device, volume, instance)
                except Refused as error:
                    if error.code == refusals.IN_USE:
                        return await self._attached_before(volume, instance, error)
                    if "already in use" not in error.message:
                        raise
            # Taken, or all of them believed to be: ask for the truth.
            self._names.renew(instance, await self._ec2.devices(instance))
        raise Aborted(f"no free device name on {instance} after {_TRIES} tries")

    async def _attach_as(self, device: str, volume: str, instance: str) -> str:
        attached = False
        try:
            done = await self._ec2.attach_volume(volume, instance, device)
            attached = True
        finally:
            self._names.settle(instance, device, attached=attached)
        await self._until_attached(volume, instance, done.state)
        return device

    async def _attached_before(self, volume: str, instance: str, error: Refused) -> str:
        held = (await self._ec2.volume(volume)).attachments
        for attachment in held:
            if attachment.instance == instance and attachment.state in ("attaching", "attached"):
                await self._until_attached(volume, instance, attachment.state)
                return attachment.device
            raise FailedPrecondition(f"Volume {volume} is already attached to node {attachment.instance}")
        raise error  # attached to nobody, and still in use somewhere

    async def detach(self, volume: str, instance: str) -> None:
        """From there, or from wherever it is; what is attached to nobody is fine."""
        try:
            done = await self._ec2.detach_volume(volume, instance)
        except Refused as error:
            gone = (
                error.code in (refusals.NO_VOLUME, refusals.NOT_ATTACHED)
                or error.code in refusals.NO_INSTANCE
            )
            if not gone and error.code != refusals.WRONG_STATE:
                raise
            if error.code == refusals.WRONG_STATE:  # nothing attached, or on its way already
                await self._until_detached(volume, instance)
            return
        self._names.free(done.instance, done.device)
        if done.state != "detached":
            await self._until_detached(volume, instance)

    async def _until_attached(self, volume: str, instance: str, state: str) -> None:
        async def again() -> str:
            return _state((await self._ec2.volume(volume)).attachments, instance)

        if state == "attaching":
            state = await until(again, "attaching")
        if state != "attached":
            raise Aborted(f"{volume} is {state} on {instance}")

    async def _until_detached(self, volume: str, instance: str) -> None:
        async def state() -> str:
            try:
                return _state((await self._ec2.volume(volume)).attachments, instance)
            except Refused as error:
                if error.code == refusals.NO_VOLUME:
                    return "detached"
                raise

        found = await until(state, "detaching")
        if found != "detached":  # AWS calls a disk that is still mounted "busy"
            raise FailedPrecondition(f"{volume} is {found} on {instance}")


async def until_created(ec2: Ec2, volume: str, state: str) -> None:
    """A volume that a request has just made becomes ready."""

    async def again() -> str:
        return (await ec2.volume(volume)).state

    if state == "creating":
        state = await until(again, "creating")
    if state not in ("available", "in-use"):
        raise Aborted(f"{volume} is {state}")


async def until(state: Callable[[], Awaitable[str]], *passing: str) -> str:
    async with asyncio.timeout(PATIENCE_ENDS):
        while (now := await state()) in passing:  # noqa: ASYNC110  AWS sends no events
            await asyncio.sleep(PATIENCE)
    return now


def _state(attachments: tuple[Attachment, ...], instance: str) -> str:
    return next((a.state for a in attachments if not instance or a.instance == instance), "detached")
