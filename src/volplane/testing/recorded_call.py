"""A call to the driver as tests see it: request and response are messages, without secrets."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from volplane.csi.call_interceptor import CsiCall
from volplane.csi.redact import STRIPPED
from volplane.csi.services import METHODS


class RecordedCall:
    """One call. It may still be in progress: then `code` is empty and `response` is None."""

    def __init__(self, call: CsiCall) -> None:
        self._call = call

    @property
    def method(self) -> str:
        """Such as CreateVolume."""
        return self._call.method

    @property
    def caller(self) -> str:
        """The component that called."""
        return self._call.caller

    @property
    def code(self) -> str:
        """The name of the gRPC code that the caller got."""
        return self._call.code

    @property
    def message(self) -> str:
        """The text of the error."""
        return self._call.message

    @property
    def note(self) -> str:
        """What the test has done to the call."""
        return self._call.note

    @property
    def seconds(self) -> float:
        return self._call.seconds

    @property
    def request(self) -> Any:
        """The request, such as a `v1.CreateVolumeRequest`; its secrets are left out."""
        return _parse(self._call.request, METHODS[self.method].request)

    @property
    def response(self) -> Any:
        """The response, such as a `v1.CreateVolumeResponse`; None without an answer."""
        return _parse(self._call.response, METHODS[self.method].reply) if self._call.response else None

    def __repr__(self) -> str:
        text = self._call.response or self.message
        return f"<{self.method} {self._call.request} → {self.code or 'in progress'} {text}>"


def _parse(text: str, kind: type[Message]) -> Message:
    return ParseDict(_without_secrets(json.loads(text), kind.DESCRIPTOR), kind())


def _without_secrets(fields: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The fields without those whose value was replaced, at any depth."""
    found = {}
    for name, value in fields.items():
        inner = kind.fields_by_name[name].message_type
        if value == STRIPPED:
            continue
        if inner is not None and inner.file.package != "google.protobuf" and not inner.GetOptions().map_entry:
            if isinstance(value, list):
                value = [_without_secrets(item, inner) for item in value]
            else:
                value = _without_secrets(value, inner)
        found[name] = value
    return found
