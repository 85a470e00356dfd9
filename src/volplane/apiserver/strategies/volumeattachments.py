"""VolumeAttachments: the spec is immutable; /status reports the progress."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api.errors import Causes, forbidden, invalid, required_value, too_long
from volplane.api.storage import VolumeAttachment, VolumeAttachmentSource, VolumeError
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.persistentvolumes import inline_spec
from volplane.apiserver.strategy import ApiCall, Strategy

METADATA_SIZE = 256 * 1024
MESSAGE_SIZE = 1024
EXACTLY_ONE = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"


class VolumeAttachmentStrategy(Strategy[VolumeAttachment]):
    def validate_create(self, call: ApiCall, obj: VolumeAttachment) -> Causes:
        yield from checks.driver_name("spec.attacher", obj.spec.attacher)
        name = obj.spec.source.persistent_volume_name
        if name:
            yield from checks.subdomain("spec.source.persistentVolumeName", name)
        yield from _validate_attachment(obj)

    def validate_update(self, call: ApiCall, old: VolumeAttachment, new: VolumeAttachment) -> Causes:
        yield from _validate_attachment(new)
        yield from checks.immutable_field("spec", new.spec, old.spec)

    def validate_status(self, call: ApiCall, old: VolumeAttachment, new: VolumeAttachment) -> Causes:
        return self.validate_update(call, old, new)


def _validate_attachment(obj: VolumeAttachment) -> Causes:
    yield from _source("spec.source", obj.spec.source)
    yield from checks.subdomain("spec.nodeName", obj.spec.node_name)
    yield from checks.present("spec.attacher", obj.spec.attacher)
    yield from _metadata("status.attachmentMetadata", obj.status.attachment_metadata)
    yield from _error("status.attachError", obj.status.attach_error)
    yield from _error("status.detachError", obj.status.detach_error)


def _source(path: str, source: VolumeAttachmentSource) -> Causes:
    name, inline = source.persistent_volume_name, source.inline_volume_spec
    if name is None and inline is None:
        yield required_value(path, EXACTLY_ONE)
        return
    if name is not None and inline is not None:
        yield forbidden(path, EXACTLY_ONE)
        return
    if inline is not None:
        yield from inline_spec(f"{path}.inlineVolumeSpec", inline)
        return
    message = "must specify non empty persistentVolumeName"
    if not name:
        yield required_value(f"{path}.persistentVolumeName", message)


def _metadata(path: str, given: Mapping[str, str]) -> Causes:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in given.items())
    if size > METADATA_SIZE:
        yield too_long(path, METADATA_SIZE)


def _error(path: str, error: VolumeError | None) -> Causes:
    if error is None:
        return
    # As upstream, the message names the other limit.
    if len(error.message.encode()) > MESSAGE_SIZE:
        yield too_long(f"{path}.message", METADATA_SIZE)
    if error.error_code is not None and error.error_code < 0:
        message = f"must be between 0 and {checks.MAX_INT32}, inclusive"
        yield invalid(f"{path}.errorCode", error.error_code, message)
