"""Injected faults: which requests fail, when, and how.

    [{"action": "AttachVolume", "code": "InternalError", "times": 2},
     {"action": "Create*", "after": true, "skip": 3},
     {"action": "DescribeVolumes", "delay": 40.0, "code": ""}]

The first fault that matches a request applies. With `after` the action is carried out and its answer is lost,
the case that clients often handle wrongly.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from volplane.cloud.errors import Ec2ErrorResponse


class RequestFault(Struct, frozen=True, forbid_unknown_fields=True):
    action: str = "*"
    resource: str = "*"  # pattern for the id of the volume, snapshot or instance
    skip: int = 0  # number of matching requests that pass first
    times: int = 1  # number of requests that fail then; 0: all
    code: str = "InternalError"  # empty: delay only
    message: str = "An injected fault"
    status: int = 500
    delay: float = 0.0  # seconds before anything else
    after: bool = False

    def to_error(self) -> Ec2ErrorResponse:
        return Ec2ErrorResponse(self.code, self.message, self.status)


class FaultScript:
    def __init__(self, script: tuple[RequestFault, ...] = ()) -> None:
        self.script = script
        self._seen = [0] * len(script)

    @classmethod
    def read(cls, text: bytes) -> FaultScript:
        try:
            return cls(msgspec.json.decode(text, type=tuple[RequestFault, ...]))
        except msgspec.DecodeError as error:
            raise Ec2ErrorResponse(
                "InvalidParameterValue", f"cannot read the fault script: {error}"
            ) from None

    def next_fault(self, action: str, resources: tuple[str, ...]) -> RequestFault | None:
        for number, fault in enumerate(self.script):
            hit = any(fnmatchcase(resource, fault.resource) for resource in resources or ("",))
            if not hit or not fnmatchcase(action, fault.action):
                continue
            turn = self._seen[number] = self._seen[number] + 1
            if turn > fault.skip and (not fault.times or turn <= fault.skip + fault.times):
                return fault
        return None
