"""What an attacher writes on a VolumeAttachment: the intent before its call, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane.api.storage import VolumeAttachment
from volplane.base import clock, trace
from volplane.client.client import Client

LONGEST_MESSAGE = 1024  # bytes of an error that the API server accepts


class AttachmentWriter:
    def __init__(self, client: Client, component: str, finalizer: str) -> None:
        self.client, self.component, self.finalizer = client, component, finalizer

    async def write_intent(
        self, attachment: VolumeAttachment, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Write the intent before the call: from now on the attachment is not deleted without a detach."""
        intent: dict[str, Any] = {"finalizers": [self.finalizer]}
        if annotations:
            intent["annotations"] = dict(annotations)
        with trace.span(self.component, "note node", f"va/{attachment.name}"):
            await self.client.patch(
                VolumeAttachment, attachment.name, strategic={"metadata": intent}, uid=attachment.uid
            )

    async def set_attached(self, attachment: VolumeAttachment, metadata: Mapping[str, str]) -> None:
        gone: dict[str, str | None] = {key: None for key in attachment.status.attachment_metadata}
        status = {"attached": True, "attachmentMetadata": {**gone, **metadata} or None, "attachError": None}
        with trace.span(self.component, "attached", f"va/{attachment.name}"):
            await self._patch_status(attachment, status)

    async def set_detached(self, attachment: VolumeAttachment) -> None:
        status = {"attached": False, "attachmentMetadata": None, "detachError": None}
        await self._patch_status(attachment, status)

    async def remove_finalizer(self, attachment: VolumeAttachment) -> None:
        """Remove the finalizer first: after a crash in between, the attachment is gone and not stuck."""
        removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": [self.finalizer]}}
        with trace.span(self.component, "detached", f"va/{attachment.name}"):
            left = await self.client.patch(
                VolumeAttachment, attachment.name, strategic=removal, uid=attachment.uid, missing_ok=True
            )
            if left is not None and left.metadata.finalizers:
                await self.set_detached(attachment)

    async def write_error(self, attachment: VolumeAttachment, message: str, code: int | None = None) -> None:
        """Write attachError, or detachError if the attachment is being deleted."""
        text = message.encode()[:LONGEST_MESSAGE].decode(errors="ignore")
        error: dict[str, Any] = {"time": clock.stamp(), "message": text}
        if code is not None:
            error["errorCode"] = code
        field = "detachError" if attachment.is_deleting else "attachError"
        await self._patch_status(attachment, {field: error})

    async def _patch_status(self, attachment: VolumeAttachment, status: Mapping[str, Any]) -> None:
        await self.client.patch(
            VolumeAttachment, attachment.name, merge={"status": status}, subresource="status", missing_ok=True
        )
