"""A small EC2 client: botocore signs, our own HTTP sends, and only what the driver needs is read.

Every call is one line in the plugin's log, because that is where operators look when a disk does not come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from urllib.parse import urlencode
from xml.etree import ElementTree

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec import Struct

from volplane.base import trace
from volplane.web import Answer, Http
from volplane.web.client import Disconnected

log = logging.getLogger(__name__)

VERSION = "2016-11-15"
TIMEOUT = 30.0
_CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"


class Refused(Exception):
    """EC2 said no."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


class Unreachable(Exception):
    """No answer: whether the call was carried out is not known."""


class Attachment(Struct, frozen=True):
    instance: str
    device: str
    state: str


class Volume(Struct, frozen=True):
    id: str
    zone: str
    size: int  # GiB
    state: str
    type: str = ""
    iops: int = 0
    attachments: tuple[Attachment, ...] = ()
    tags: Mapping[str, str] = {}


class Ec2:
    def __init__(
        self, endpoint: str, *, region: str, credentials: Credentials, timeout: float = TIMEOUT
    ) -> None:
        self._endpoint = endpoint.rstrip("/") + "/"
        self._http = Http(endpoint)
        self._signer = SigV4Auth(credentials, "ec2", region)
        self._timeout = timeout

    async def close(self) -> None:
        await self._http.close()

    async def create_volume(self, given: Mapping[str, str], tags: Mapping[str, str]) -> Volume:
        tagged = {"TagSpecification.1.ResourceType": "volume"}
        for number, (key, value) in enumerate(sorted(tags.items()), start=1):
            tagged[f"TagSpecification.1.Tag.{number}.Key"] = key
            tagged[f"TagSpecification.1.Tag.{number}.Value"] = value
        return _volume(await self.call("CreateVolume", {**given, **tagged}))

    async def delete_volume(self, volume: str) -> None:
        await self.call("DeleteVolume", {"VolumeId": volume})

    async def attach_volume(self, volume: str, instance: str, device: str) -> Attachment:
        given = {"VolumeId": volume, "InstanceId": instance, "Device": device}
        return _attachment(await self.call("AttachVolume", given))

    async def detach_volume(self, volume: str, instance: str = "") -> Attachment:
        given = {"VolumeId": volume} | ({"InstanceId": instance} if instance else {})
        return _attachment(await self.call("DetachVolume", given))

    async def volume(self, volume: str) -> Volume:
        answer = await self.call("DescribeVolumes", {"VolumeId.1": volume})
        (found,) = (_volume(item) for item in answer.iterfind("volumeSet/item"))
        return found

    async def volumes(self, filters: Mapping[str, str] | None = None) -> list[Volume]:
        """All of them, page by page."""
        found: list[Volume] = []
        given = {"MaxResults": "500"}
        for number, (name, value) in enumerate((filters or {}).items(), start=1):
            given |= {f"Filter.{number}.Name": name, f"Filter.{number}.Value.1": value}
        while True:
            answer = await self.call("DescribeVolumes", given)
            found += [_volume(item) for item in answer.iterfind("volumeSet/item")]
            token = answer.findtext("nextToken")
            if not token:
                return found
            given["NextToken"] = token

    async def modify_volume(self, volume: str, size: int) -> str:
        """The modification's state."""
        answer = await self.call("ModifyVolume", {"VolumeId": volume, "Size": str(size)})
        return answer.findtext("volumeModification/modificationState", "")

    async def modification(self, volume: str) -> str:
        answer = await self.call("DescribeVolumesModifications", {"VolumeId.1": volume})
        return answer.findtext("volumeModificationSet/item/modificationState", "")

    async def devices(self, instance: str) -> list[str]:
        """Names that are taken on an instance."""
        answer = await self.call("DescribeInstances", {"InstanceId.1": instance})
        path = "reservationSet/item/instancesSet/item/blockDeviceMapping/item/deviceName"
        return [found.text or "" for found in answer.iterfind(path)]

    async def zones(self) -> list[str]:
        answer = await self.call("DescribeAvailabilityZones", {})
        return sorted(zone.text or "" for zone in answer.iterfind("availabilityZoneInfo/item/zoneName"))

    async def capacity(self) -> int | None:
        """Bytes that our own disk service has left; AWS does not tell: None."""
        try:
            answer = await self.call("DescribeDiskCapacity", {})
        except Refused as error:
            if error.code == "InvalidAction":
                return None
            raise
        return int(answer.findtext("availableBytes", "0"))

    async def register_instance(self, instance: str, *, zone: str, directory: str, name: str = "") -> None:
        """Our own disk service only: where this instance's /dev is."""
        given = {"InstanceId": instance, "AvailabilityZone": zone, "DeviceDirectory": directory}
        await self.call("RegisterInstance", given | {"PrivateDnsName": name})

    async def power(self, instance: str, *, running: bool) -> None:
        await self.call("StartInstances" if running else "StopInstances", {"InstanceId.1": instance})

    async def call(self, action: str, given: Mapping[str, str]) -> ElementTree.Element:
        started = time.perf_counter()
        outcome = "no answer"
        with trace.span("ebs-plugin", action, f"volume/{given.get('VolumeId', '')}"):
            try:
                answer = await self._send(action, given)
                outcome = "200"
                return answer
            except Refused as error:
                outcome = f"{error.status} {error}"
                raise
            finally:
                spent = (time.perf_counter() - started) * 1000
                log.info("AWS API %s(%s): %s in %.1f ms", action, _spelled(given), outcome, spent)

    async def _send(self, action: str, given: Mapping[str, str]) -> ElementTree.Element:
        body = urlencode({"Action": action, "Version": VERSION, **given})
        request = AWSRequest("POST", self._endpoint, {"Content-Type": _CONTENT_TYPE}, body)
        self._signer.add_auth(request)
        try:
            answer = await self._post(list(request.headers.items()), body.encode())
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{action}: {self._endpoint} does not answer: {error}") from error
        return _parsed(answer.status, answer.body)

    async def _post(self, headers: list[tuple[str, str]], body: bytes) -> Answer:
        try:
            return await self._http.request("POST", "/", headers=headers, body=body, timeout=self._timeout)
        except Disconnected as gone:
            # The kept connection was just being closed. Every call of ours may run twice: send it again.
            if gone.answered:
                raise
        return await self._http.request("POST", "/", headers=headers, body=body, timeout=self._timeout)


def _parsed(status: int, body: bytes) -> ElementTree.Element:
    try:
        tree = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Unreachable(f"the answer is not XML: {error}") from error
    for element in tree.iter():
        element.tag = element.tag.rpartition("}")[2]
    if status != 200:
        code = tree.findtext("Errors/Error/Code", "Unknown")
        raise Refused(code, tree.findtext("Errors/Error/Message", ""), status)
    return tree


def _volume(item: ElementTree.Element) -> Volume:
    return Volume(
        id=item.findtext("volumeId", ""),
        zone=item.findtext("availabilityZone", ""),
        size=int(item.findtext("size", "0")),
        state=item.findtext("status", ""),
        type=item.findtext("volumeType", ""),
        iops=int(item.findtext("iops") or 0),
        attachments=tuple(_attachment(a) for a in item.iterfind("attachmentSet/item")),
        tags={t.findtext("key", ""): t.findtext("value", "") for t in item.iterfind("tagSet/item")},
    )


def _attachment(item: ElementTree.Element) -> Attachment:
    return Attachment(
        item.findtext("instanceId", ""), item.findtext("device", ""), item.findtext("status", "")
    )


def _spelled(given: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name}={value}" for name, value in given.items() if not name.startswith("TagSpecification")
    )
