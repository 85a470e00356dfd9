"""A small EC2 client: signs requests, and parses what the driver needs of the responses.

Every call is one line in the driver's log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit
from xml.etree import ElementTree

import msgspec
from msgspec import Struct

from volplane.base import clock, trace
from volplane.base.trace_context import HEADER
from volplane.drivers.ebs.batch import RequestBatcher
from volplane.web import ClientResponse, HttpClient
from volplane.web.client import ServerDisconnected
from volplane.web.forms import encode_form
from volplane.web.sigv4 import AwsKeys, Signer

log = logging.getLogger(__name__)

VERSION = "2016-11-15"
TIMEOUT = 30.0
COPY_TIMEOUT = 60.0  # our disk service answers within this, even if a copy is not ready
THROTTLED_TRIES, FIRST_PAUSE = 5, 0.2
LONGEST_TEXT = 4096  # characters of an answer in a span
_THROTTLED = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException"})
_COPYING = frozenset({"CreateVolume", "CopyVolumes", "CreateSnapshot", "CreateSnapshots"})
_NOT_FAST = frozenset({"disabling", "disabled"})  # states of fast restores
_CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"


class Ec2Error(Exception):
    """EC2 returned an error."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


class Ec2Unreachable(Exception):
    """No answer: whether the call was carried out is unknown."""


class Ec2Attachment(Struct, frozen=True):
    instance: str
    device: str
    state: str


class Ec2Volume(Struct, frozen=True):
    id: str
    zone: str
    size: int  # GiB
    state: str
    type: str = ""
    iops: int = 0
    throughput: int = 0
    snapshot: str = ""  # that it was created from
    source: str = ""
    attachments: tuple[Ec2Attachment, ...] = ()
    tags: Mapping[str, str] = {}


class Ec2Snapshot(Struct, frozen=True):
    id: str
    volume: str
    size: int  # GiB
    state: str
    started: str
    why: str = ""
    tags: Mapping[str, str] = {}


class Ec2:
    def __init__(
        self, endpoint: str, *, region: str, keys: Callable[[], AwsKeys], timeout: float = TIMEOUT
    ) -> None:
        """`keys` is called for each request, because keys may be temporary."""
        self._endpoint = endpoint.rstrip("/") + "/"
        self._http = HttpClient(endpoint)
        self._keys = keys
        url = urlsplit(self._endpoint)
        self._signer = Signer(url.netloc.rpartition("@")[2], url.path, region=region, service="ec2")
        self._timeout = timeout
        self._described = RequestBatcher(self._describe)

    async def close(self) -> None:
        await self._described.close()
        await self._http.close()

    async def create_volume(self, parameters: Mapping[str, str], tags: Mapping[str, str]) -> Ec2Volume:
        return _volume(await self.call("CreateVolume", {**parameters, **_tag_specification("volume", tags)}))

    async def copy_volume(
        self, source: str, parameters: Mapping[str, str], tags: Mapping[str, str]
    ) -> Ec2Volume:
        wanted = {"SourceVolumeId": source, **parameters, **_tag_specification("volume", tags)}
        answer = await self.call("CopyVolumes", wanted)
        (made,) = (_volume(item) for item in answer.iterfind("volumeSet/item"))
        return made

    async def delete_volume(self, volume: str) -> None:
        await self.call("DeleteVolume", {"VolumeId": volume})

    async def attach_volume(self, volume: str, instance: str, device: str) -> Ec2Attachment:
        parameters = {"VolumeId": volume, "InstanceId": instance, "Device": device}
        return _attachment(await self.call("AttachVolume", parameters))

    async def detach_volume(self, volume: str, instance: str = "") -> Ec2Attachment:
        parameters = {"VolumeId": volume} | ({"InstanceId": instance} if instance else {})
        return _attachment(await self.call("DetachVolume", parameters))

    async def volume(self, volume: str) -> Ec2Volume:
        found = await self._described.get(volume)
        if found is None:
            raise Ec2Error("InvalidVolume.NotFound", f"The volume '{volume}' does not exist.", 400)
        return found

    async def _describe(self, volumes: list[str]) -> dict[str, Ec2Volume]:
        # With a filter: for a list of ids EC2 returns an error if one does not exist.
        values = {f"Filter.1.Value.{number}": volume for number, volume in enumerate(volumes, start=1)}
        items = await self._call_all_pages(
            "DescribeVolumes", {"Filter.1.Name": "volume-id", **values}, "volumeSet/item"
        )
        return {volume.id: volume for volume in map(_volume, items)}

    async def volumes(self, filters: Mapping[str, str] | None = None) -> list[Ec2Volume]:
        """All matching volumes, from all pages."""
        items = await self._call_all_pages(
            "DescribeVolumes", _filter_parameters(filters or {}), "volumeSet/item"
        )
        return [_volume(item) for item in items]

    async def create_snapshot(self, volume: str, description: str, tags: Mapping[str, str]) -> Ec2Snapshot:
        parameters = {"VolumeId": volume, "Description": description, **_tag_specification("snapshot", tags)}
        return _snapshot(await self.call("CreateSnapshot", parameters))

    async def create_snapshots(
        self, instance: str, without: Iterable[str], description: str, tags: Mapping[str, str]
    ) -> list[Ec2Snapshot]:
        """Take snapshots of all data volumes of an instance but `without`, at one moment."""
        parameters = {"InstanceSpecification.InstanceId": instance, "Description": description}
        parameters["InstanceSpecification.ExcludeBootVolume"] = "true"
        for number, volume in enumerate(without, start=1):
            parameters[f"InstanceSpecification.ExcludeDataVolumeId.{number}"] = volume
        answer = await self.call("CreateSnapshots", {**parameters, **_tag_specification("snapshot", tags)})
        return [_snapshot(item) for item in answer.iterfind("snapshotSet/item")]

    async def create_tags(self, resources: Iterable[str], tags: Mapping[str, str]) -> None:
        parameters = {f"ResourceId.{number}": name for number, name in enumerate(resources, start=1)}
        for number, (key, value) in enumerate(tags.items(), start=1):
            parameters |= {f"Tag.{number}.Key": key, f"Tag.{number}.Value": value}
        await self.call("CreateTags", parameters)

    async def delete_tags(self, resources: Iterable[str], keys: Iterable[str]) -> None:
        parameters = {f"ResourceId.{number}": name for number, name in enumerate(resources, start=1)}
        parameters |= {f"Tag.{number}.Key": key for number, key in enumerate(keys, start=1)}
        await self.call("DeleteTags", parameters)

    async def enable_fast_restores(self, snapshot: str, zones: Iterable[str]) -> str:
        """Returns why it failed for a zone; "" if it did not."""
        parameters = {"SourceSnapshotId.1": snapshot}
        parameters |= {f"AvailabilityZone.{number}": zone for number, zone in enumerate(zones, start=1)}
        answer = await self.call("EnableFastSnapshotRestores", parameters)
        path = "unsuccessful/item/fastSnapshotRestoreStateErrors/item/error/message"
        return answer.findtext(path, "")

    async def fast_restore_zones(self, snapshot: str) -> set[str]:
        """The zones in which fast restores of a snapshot are enabled, or are being enabled."""
        answer = await self.call(
            "DescribeFastSnapshotRestores", _filter_parameters({"snapshot-id": snapshot})
        )
        items = list(answer.iterfind("fastSnapshotRestoreSet/item"))
        return {i.findtext("availabilityZone", "") for i in items if i.findtext("state") not in _NOT_FAST}

    async def lock_snapshot(self, snapshot: str, lock: Mapping[str, str]) -> None:
        await self.call("LockSnapshot", {"SnapshotId": snapshot, **lock})

    async def is_locked(self, snapshot: str) -> bool:
        answer = await self.call("DescribeLockedSnapshots", {"SnapshotId.1": snapshot})
        return answer.find("snapshotSet/item") is not None

    async def initialization(self, volume: str) -> str:
        """The state of a volume's initialization: initializing, completed or not-applicable."""
        answer = await self.call("DescribeVolumeStatus", {"VolumeId.1": volume})
        for detail in answer.iterfind("volumeStatusSet/item/volumeStatus/details/item"):
            if detail.findtext("name") == "initialization-state":
                return detail.findtext("status", "")
        return ""

    async def delete_snapshot(self, snapshot: str) -> None:
        await self.call("DeleteSnapshot", {"SnapshotId": snapshot})

    async def snapshot(self, snapshot: str) -> Ec2Snapshot:
        answer = await self.call("DescribeSnapshots", {"SnapshotId.1": snapshot})
        (found,) = (_snapshot(item) for item in answer.iterfind("snapshotSet/item"))
        return found

    async def snapshots(self, filters: Mapping[str, str] | None = None) -> list[Ec2Snapshot]:
        """All matching snapshots of this account, from all pages."""
        parameters = {"Owner.1": "self", **_filter_parameters(filters or {})}
        return [
            _snapshot(item)
            for item in await self._call_all_pages("DescribeSnapshots", parameters, "snapshotSet/item")
        ]

    async def _call_all_pages(
        self, action: str, parameters: dict[str, str], path: str
    ) -> list[ElementTree.Element]:
        found: list[ElementTree.Element] = []
        parameters["MaxResults"] = "500"
        while True:
            answer = await self.call(action, parameters)
            found += answer.iterfind(path)
            token = answer.findtext("nextToken")
            if not token:
                return found
            parameters["NextToken"] = token

    async def modify_volume(self, volume: str, wanted: Mapping[str, str]) -> str:
        """Modify a volume; returns the state of the modification."""
        answer = await self.call("ModifyVolume", {"VolumeId": volume, **wanted})
        return answer.findtext("volumeModification/modificationState", "")

    async def modification(self, volume: str) -> str:
        answer = await self.call("DescribeVolumesModifications", {"VolumeId.1": volume})
        return answer.findtext("volumeModificationSet/item/modificationState", "")

    async def devices(self, instance: str) -> list[str]:
        """Device names that are taken on an instance."""
        answer = await self.call("DescribeInstances", {"InstanceId.1": instance})
        path = "reservationSet/item/instancesSet/item/blockDeviceMapping/item/deviceName"
        return [found.text or "" for found in answer.iterfind(path)]

    async def data_volumes(self, instance: str) -> list[str]:
        """The volumes attached to an instance, without its boot volume."""
        answer = await self.call("DescribeInstances", {"InstanceId.1": instance})
        found = answer.find("reservationSet/item/instancesSet/item")
        if found is None:
            return []
        boot, disks = found.findtext("rootDeviceName", ""), found.iterfind("blockDeviceMapping/item")
        return [d.findtext("ebs/volumeId", "") for d in disks if d.findtext("deviceName") != boot]

    async def zones(self) -> list[str]:
        answer = await self.call("DescribeAvailabilityZones", {})
        return sorted(zone.text or "" for zone in answer.iterfind("availabilityZoneInfo/item/zoneName"))

    async def capacity(self) -> int | None:
        """Free bytes of our own disk service; None on AWS."""
        try:
            answer = await self.call("DescribeDiskCapacity", {})
        except Ec2Error as error:
            if error.code == "InvalidAction":
                return None
            raise
        return int(answer.findtext("availableBytes", "0"))

    async def register_instance(self, instance: str, *, zone: str, directory: str, name: str = "") -> None:
        """Register an instance and its /dev directory, with our own disk service."""
        parameters = {"InstanceId": instance, "AvailabilityZone": zone, "DeviceDirectory": directory}
        await self.call("RegisterInstance", parameters | {"PrivateDnsName": name})

    async def is_off(self, instance: str) -> bool:
        """The instance is stopped or terminated; one that is stopping, or unknown, is not off."""
        try:
            answer = await self.call("DescribeInstances", {"InstanceId.1": instance})
        except Ec2Error as error:
            if error.code.startswith("InvalidInstanceID"):
                return False
            raise
        state = answer.findtext("reservationSet/item/instancesSet/item/instanceState/name", "")
        return state in ("stopped", "terminated")

    async def power(self, instance: str, *, running: bool) -> None:
        await self.call("StartInstances" if running else "StopInstances", {"InstanceId.1": instance})

    async def call(self, action: str, parameters: Mapping[str, str]) -> ElementTree.Element:
        for number in range(THROTTLED_TRIES):
            try:
                return await self._call(action, parameters)
            except Ec2Error as error:
                if error.code not in _THROTTLED:
                    raise
                # With jitter, so that throttled callers do not retry at the same time.
                await asyncio.sleep(FIRST_PAUSE * 2**number * random.uniform(0.5, 1.5))
        return await self._call(action, parameters)

    async def _call(self, action: str, parameters: Mapping[str, str]) -> ElementTree.Element:
        started = time.perf_counter()
        outcome = "no answer"
        with trace.span("ebs-plugin", action, f"volume/{parameters.get('VolumeId', '')}") as span:
            is_recorded = span.is_open and bool(span.traces)
            if is_recorded:  # keys are in headers only; what has no volume is frequent and is not recorded
                span.attrs["request"] = msgspec.json.encode(parameters).decode()
            try:
                status, body = await self._send(action, parameters)
                if is_recorded:
                    span.attrs["reply"] = _shorten(body.decode(errors="replace"))
                answer = _parse_answer(status, body)
                outcome = "200"
                return answer
            except Ec2Error as error:
                outcome = f"{error.status} {error}"
                raise
            finally:
                spent = (time.perf_counter() - started) * 1000
                log.info(
                    "AWS API %s(%s): %s in %.1f ms", action, _format_parameters(parameters), outcome, spent
                )

    async def _send(self, action: str, parameters: Mapping[str, str]) -> tuple[int, bytes]:
        """The status and body of the answer."""
        body = encode_form({"Action": action, "Version": VERSION, **parameters}).encode()
        headers = self._signer.headers(body, _CONTENT_TYPE, self._keys(), clock.wall())
        if parent := trace.traceparent():
            headers.append((HEADER, parent))
        patience = max(self._timeout, COPY_TIMEOUT) if action in _COPYING else self._timeout
        try:
            answer = await self._post(headers, body, patience)
        except TimeoutError as error:
            raise Ec2Unreachable(
                f"{action}: {self._endpoint} did not answer within {patience:g} s"
            ) from error
        except OSError as error:
            raise Ec2Unreachable(f"{action}: {self._endpoint} does not answer: {error}") from error
        return answer.status, answer.body

    async def _post(self, headers: list[tuple[str, str]], body: bytes, timeout: float) -> ClientResponse:
        try:
            return await self._http.request("POST", "/", headers=headers, body=body, timeout=timeout)
        except ServerDisconnected as gone:
            # The server has closed the idle connection. All our calls may run twice: send it again.
            if gone.answered:
                raise
        return await self._http.request("POST", "/", headers=headers, body=body, timeout=timeout)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _parse_answer(status: int, body: bytes) -> ElementTree.Element:
    try:
        tree = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Ec2Unreachable(f"the answer is not XML: {error}") from error
    for element in tree.iter():
        element.tag = element.tag.rpartition("}")[2]
    if status != 200:
        code = tree.findtext("Errors/Error/Code", "Unknown")
        raise Ec2Error(code, tree.findtext("Errors/Error/Message", ""), status)
    return tree


def _volume(item: ElementTree.Element) -> Ec2Volume:
    return Ec2Volume(
        id=item.findtext("volumeId", ""),
        zone=item.findtext("availabilityZone", ""),
        size=int(item.findtext("size", "0")),
        state=item.findtext("status", ""),
        type=item.findtext("volumeType", ""),
        iops=int(item.findtext("iops") or 0),
        throughput=int(item.findtext("throughput") or 0),
        snapshot=item.findtext("snapshotId", ""),
        source=item.findtext("sourceVolumeId", ""),
        attachments=tuple(_attachment(a) for a in item.iterfind("attachmentSet/item")),
        tags=_tags(item),
    )


def _snapshot(item: ElementTree.Element) -> Ec2Snapshot:
    return Ec2Snapshot(
        id=item.findtext("snapshotId", ""),
        volume=item.findtext("volumeId", ""),
        size=int(item.findtext("volumeSize", "0")),
        state=item.findtext("status", "") or item.findtext("state", ""),
        started=item.findtext("startTime", ""),
        why=item.findtext("statusMessage", ""),
        tags=_tags(item),
    )


def _tags(item: ElementTree.Element) -> dict[str, str]:
    return {t.findtext("key", ""): t.findtext("value", "") for t in item.iterfind("tagSet/item")}


def _tag_specification(kind: str, tags: Mapping[str, str]) -> dict[str, str]:
    found = {"TagSpecification.1.ResourceType": kind}
    for number, (key, value) in enumerate(sorted(tags.items()), start=1):
        found[f"TagSpecification.1.Tag.{number}.Key"] = key
        found[f"TagSpecification.1.Tag.{number}.Value"] = value
    return found


def _filter_parameters(filters: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, (name, value) in enumerate(filters.items(), start=1):
        found |= {f"Filter.{number}.Name": name, f"Filter.{number}.Value.1": value}
    return found


def _attachment(item: ElementTree.Element) -> Ec2Attachment:
    return Ec2Attachment(
        item.findtext("instanceId", ""), item.findtext("device", ""), item.findtext("status", "")
    )


def _format_parameters(parameters: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name}={value}" for name, value in parameters.items() if not name.startswith("TagSpecification")
    )
