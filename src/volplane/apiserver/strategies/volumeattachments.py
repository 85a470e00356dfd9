"""VolumeAttachments: what shall be attached where never changes; only /status says how far it is."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api.errors import Cause, forbidden, invalid, required_value, too_long
from volplane.api.storage import VolumeAttachment, VolumeAttachmentSource, VolumeError
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.persistentvolumes import inline_spec
from volplane.apiserver.strategy import ApiCall, Strategy

METADATA_SIZE = 256 * 1024
MESSAGE_SIZE = 1024
EXACTLY_ONE = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"


class VolumeAttachmentStrategy(Strategy[VolumeAttachment]):
    def validate_create(self, call: ApiCall, obj: VolumeAttachment) -> list[Cause]:
        causes = checks.driver_name("spec.attacher", obj.spec.attacher)
        name = obj.spec.source.persistent_volume_name
        if name:
            causes += checks.subdomain("spec.source.persistentVolumeName", name)
        return causes + _validate_attachment(obj)

    def validate_update(self, call: ApiCall, old: VolumeAttachment, new: VolumeAttachment) -> list[Cause]:
        return _validate_attachment(new) + checks.immutable_field("spec", new.spec, old.spec)

    def validate_status(self, call: ApiCall, old: VolumeAttachment, new: VolumeAttachment) -> list[Cause]:
        return self.validate_update(call, old, new)


def _validate_attachment(obj: VolumeAttachment) -> list[Cause]:
    causes = _source("spec.source", obj.spec.source)
    causes += checks.subdomain("spec.nodeName", obj.spec.node_name)
    causes += checks.present("spec.attacher", obj.spec.attacher)
    causes += _metadata("status.attachmentMetadata", obj.status.attachment_metadata)
    causes += _error("status.attachError", obj.status.attach_error)
    return causes + _error("status.detachError", obj.status.detach_error)


def _source(path: str, source: VolumeAttachmentSource) -> list[Cause]:
    name, inline = source.persistent_volume_name, source.inline_volume_spec
    if name is None and inline is None:
        return [required_value(path, EXACTLY_ONE)]
    if name is not None and inline is not None:
        return [forbidden(path, EXACTLY_ONE)]
    if inline is not None:
        return inline_spec(f"{path}.inlineVolumeSpec", inline)
    message = "must specify non empty persistentVolumeName"
    return [] if name else [required_value(f"{path}.persistentVolumeName", message)]


def _metadata(path: str, given: Mapping[str, str]) -> list[Cause]:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in given.items())
    return [too_long(path, METADATA_SIZE)] if size > METADATA_SIZE else []


def _error(path: str, error: VolumeError | None) -> list[Cause]:
    if error is None:
        return []
    # The number in the sentence is the other limit, as clients know it.
    causes = (
        [too_long(f"{path}.message", METADATA_SIZE)] if len(error.message.encode()) > MESSAGE_SIZE else []
    )
    if error.error_code is not None and error.error_code < 0:
        message = f"must be between 0 and {checks.MAX_INT32}, inclusive"
        causes.append(invalid(f"{path}.errorCode", error.error_code, message))
    return causes
