"""Images of containers: pull them by their policy, with the kubelet's events, back-off and messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from msgspec import Struct

from volplane.api.core import Container, Pod
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.base.tasks import KeyedTasks, ignore_error
from volplane.client.client import Client
from volplane.loops.events import EventRecorder
from volplane.node.containers.base import CreationFailed
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.client import CHECK_TIMEOUT, CriClient, CriError
from volplane.node.containers.cri.image_names import InvalidImageName, with_default_tag
from volplane.node.containers.cri.image_volumes import ImageVolume, find_image_volumes, find_lack
from volplane.node.containers.cri.pull_secrets import find_credentials, read_secrets
from volplane.node.containers.cri.pulled_images import PulledImages
from volplane.node.containers.cri.runtime_info import RuntimeInfo

log = logging.getLogger(__name__)

PULL_BACKOFF = Backoff(10.0, 300.0)
PULL_TIMEOUT = 3600.0  # seconds: an image may be large; a stopped pod cancels its pull
ALWAYS, NEVER = "Always", "Never"


class ImageError(Exception):
    """A container's image is not available; `reason` is that of the waiting container."""

    def __init__(self, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.message, self.retry_after = reason, message, retry_after


class LocalImage(Struct, frozen=True):
    """An image that the runtime has."""

    id: str
    size: int = 0
    user: int | None = None  # the image's user, if it is a number
    user_name: str = ""  # if it is a name


class _PullFailure(Struct, frozen=True):
    count: int
    next_try: float
    message: str


class Images:
    """The images of one node. `serial`: one pull at a time; otherwise at most `parallel`, 0 for no limit."""

    def __init__(
        self,
        cri: CriClient,
        info: RuntimeInfo,
        client: Client,
        events: EventRecorder,
        pulled: PulledImages,
        *,
        serial: bool = True,
        parallel: int = 0,
    ) -> None:
        self._cri, self._info, self._client = cri, info, client
        self._events, self._pulled = events, pulled
        limit = 1 if serial else parallel
        self._limit: AbstractAsyncContextManager[object] = (
            asyncio.Semaphore(limit) if limit else nullcontext()
        )
        self._failures: dict[tuple[str, str], _PullFailure] = {}  # by pod and image
        self._pulling: KeyedTasks[tuple[str, bytes], None] = KeyedTasks(ignore_error)

    async def ensure(self, pod: Pod, container: Container) -> LocalImage:
        """The container's image, pulled if its policy says so. Raises ImageError."""
        return await self._ensure(pod, container.image, container.image_pull_policy)

    async def ensure_volumes(self, pod: Pod, container: Container) -> dict[str, LocalImage]:
        """The images of the image volumes that the container mounts, by the volume's name.

        Raises ImageError; CreationFailed, CriError if the runtime cannot mount them.
        """
        volumes = find_image_volumes(pod, container)
        if volumes:
            await self._check_runtime(volumes)
        return {v.name: await self._ensure(pod, v.source.reference, v.source.pull_policy) for v in volumes}

    async def _check_runtime(self, volumes: Sequence[ImageVolume]) -> None:
        if find_lack(volumes, self._info.name, self._info.version):
            await self._info.read(self._cri)  # a newer version may have taken its place
            if why := find_lack(volumes, self._info.name, self._info.version):
                raise CreationFailed(why)

    async def _ensure(self, pod: Pod, name: str, policy: str) -> LocalImage:
        try:
            image = with_default_tag(name)
        except InvalidImageName as error:
            self._events.warning(pod, "InspectFailed", str(error))
            raise ImageError("InvalidImageName", str(error)) from None
        present = await self._inspect(pod, name, image)
        if present is not None and policy != ALWAYS:
            self._events.normal(pod, "Pulled", f'Container image "{name}" already present on machine')
            return present
        if policy == NEVER:
            text = f'Container image "{name}" is not present with pull policy of Never'
            self._events.warning(pod, "ErrImageNeverPull", text)
            raise ImageError("ErrImageNeverPull", text)
        return await self._pull(pod, name, image)

    async def find(self, image: str) -> LocalImage | None:
        """The image if the runtime has it. Raises CriError."""
        request = v1.ImageStatusRequest(image=v1.ImageSpec(image=image))
        reply: v1.ImageStatusResponse = await self._cri.call("ImageStatus", request, CHECK_TIMEOUT)
        found = reply.image
        if not found.id:
            return None
        user = found.uid.value if found.HasField("uid") else None
        return LocalImage(found.id, found.size, user, found.username)

    async def _inspect(self, pod: Pod, name: str, image: str) -> LocalImage | None:
        try:
            return await self.find(image)
        except CriError as error:
            text = f'Failed to inspect image "{name}": {error}'
            self._events.warning(pod, "InspectFailed", text)
            raise ImageError("ImageInspectError", text) from error

    # --- pulling

    async def _pull(self, pod: Pod, name: str, image: str) -> LocalImage:
        key = pod.uid, image
        failure = self._failures.get(key)
        if failure is not None and failure.next_try > clock.now():
            self._events.normal(pod, "BackOff", f'Back-off pulling image "{name}"')
            raise ImageError(
                "ImagePullBackOff",
                f'Back-off pulling image "{name}": ErrImagePull: {failure.message}',
                failure.next_try - clock.now(),
            )
        self._events.normal(pod, "Pulling", f'Pulling image "{name}"')
        begun = clock.now()
        try:
            waited = await self._pull_with_credentials(pod, image)
            local = await self.find(image)
        except CriError as error:
            self._note_failure(key, failure, str(error))
            self._events.warning(pod, "Failed", f'Failed to pull image "{name}": {error}')
            raise ImageError("ErrImagePull", str(error)) from error
        self._failures.pop(key, None)
        if local is None:  # removed in the same moment
            raise ImageError("ErrImagePull", f'image "{name}" is not there after its pull')
        took = clock.now() - begun
        self._events.normal(
            pod,
            "Pulled",
            f'Successfully pulled image "{name}" in {format_duration(took - waited)} '
            f"({format_duration(took)} including waiting). Image size: {local.size} bytes.",
        )
        return local

    def _note_failure(self, key: tuple[str, str], before: _PullFailure | None, message: str) -> None:
        count = (before.count if before is not None else 0) + 1
        next_try = clock.now() + PULL_BACKOFF.delay(count)
        self._failures[key] = _PullFailure(count, next_try, message)

    async def _pull_with_credentials(self, pod: Pod, image: str) -> float:
        """Pull with each of the credentials that apply, or without any. Returns the seconds of waiting."""
        secrets, missing = await read_secrets(self._client, pod)
        if missing:
            self._events.warning(
                pod,
                "FailedToRetrieveImagePullSecret",
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); attempting to pull the "
                "image may not succeed.",
            )
        choices: list[v1.AuthConfig | None] = [*find_credentials(image, secrets)] or [None]
        begun, waited = clock.now(), 0.0
        for index, credentials in enumerate(choices):
            async with self._limit:
                waited += clock.now() - begun if not index else 0.0
                try:
                    await self._pull_once(image, credentials)
                    return waited
                except CriError:
                    if credentials is choices[-1]:
                        raise
        raise AssertionError("unreachable")

    async def _pull_once(self, image: str, credentials: v1.AuthConfig | None) -> None:
        """Pull; callers that want the same image with the same credentials share one pull."""
        key = image, credentials.SerializeToString(deterministic=True) if credentials is not None else b""
        pulling = self._pulling.get_or_start(
            key, lambda: self._call_pull(image, credentials), f"pull of {image}"
        )
        await asyncio.shield(pulling)

    async def _call_pull(self, image: str, credentials: v1.AuthConfig | None) -> None:
        request = v1.PullImageRequest(
            image=v1.ImageSpec(image=image, user_specified_image=image), auth=credentials
        )
        reply: v1.PullImageResponse = await self._cri.call("PullImage", request, PULL_TIMEOUT)
        await self._pulled.add(reply.image_ref)

    def forget_pod(self, uid: str) -> None:
        """Forget the failures of a pod's pulls."""
        for key in [key for key in self._failures if key[0] == uid]:
            del self._failures[key]

    async def close(self) -> None:
        await self._pulling.close()


def format_duration(seconds: float) -> str:
    """As Go prints a duration that was rounded to milliseconds."""
    milliseconds = max(0, int(seconds * 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else "") + f"{text}s"
