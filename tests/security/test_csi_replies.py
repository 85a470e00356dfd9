"""A driver's reply that cannot be decoded or believed is an error of its call, never a success or a crash."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from volplane.csi import registration, v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import (
    BadReply,
    CallError,
    CallOutcome,
    Code,
    ProvisioningOutcome,
    classify,
    classify_provisioning,
)
from volplane.csi.replies import LARGEST_LIST, LARGEST_REPLY, check, decode
from volplane.csi.services import METHODS
from volplane.sidecars.base import discover_driver
from volplane.sidecars.registrar import RegistrarOptions
from volplane.sidecars.registrar import run as run_registrar

UNARY = [name for name, method in METHODS.items() if not method.streams]
CASES = int(os.environ.get("VOLPLANE_FUZZ_REPLIES", "400"))

# Each ends in the middle of something, or holds text that is none.
UNDECODABLE = {
    "a length without its bytes": b"\x0a\x7f",
    "a number that does not end": b"\x08" + b"\xff" * 11,
    "a tag that does not end": b"\xff" * 12,
    "a type that there is not": b"\x0f",
    "the number zero": b"\x00\x00",
    "the end of a group that did not begin": b"\x0c",
    "a group that does not end": b"\x0b\x08\x01",
    "groups within groups": b"\x0b" * 4000,
    "a length beyond everything": b"\x0a\xff\xff\xff\xff\x0f",
}


class Raw(grpc.GenericRpcHandler):
    """A driver that answers every call with the bytes it is given."""

    def __init__(self) -> None:
        self.reply: bytes | Callable[[str], bytes] = b""

    def answer(self, method: str) -> bytes:
        return self.reply if isinstance(self.reply, bytes) else self.reply(method)

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method.rpartition("/")[2]

        async def unary(request: bytes, context: Any) -> bytes:
            return self.answer(method)

        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield self.answer(method)

        if METHODS[method].streams:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


@asynccontextmanager
async def raw_driver(
    directory: Path, compression: grpc.Compression | None = None
) -> AsyncIterator[tuple[Raw, str]]:
    raw, path = Raw(), str(directory / "csi.sock")
    options = [("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options, compression=compression)
    server.add_generic_rpc_handlers((raw,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield raw, path
    finally:
        await server.stop(0)


async def call_method(channel: CsiChannel, method: str) -> None:
    if not METHODS[method].streams:
        await channel.call(method, METHODS[method].request())
        return
    async for _ in channel.stream(method, METHODS[method].request()):
        pass


@pytest.mark.parametrize("name", UNDECODABLE)
async def test_a_reply_that_cannot_be_decoded_is_an_error_of_every_call(tmp_path: Path, name: str) -> None:
    async with raw_driver(tmp_path) as (raw, path), CsiChannel(path) as channel:
        raw.reply = UNDECODABLE[name]
        for method in METHODS:
            with pytest.raises(BadReply, match=f"{method}: the reply") as failed:
                await call_method(channel, method)
            assert failed.value.code is Code.INTERNAL


def test_what_a_driver_did_that_sends_such_a_reply_is_not_known() -> None:
    """The call returned OK, so a volume may exist. INTERNAL from the driver would mean that there is none."""
    assert classify(BadReply("x")) is CallOutcome.UNCERTAIN
    assert classify_provisioning(BadReply("x")) is ProvisioningOutcome.BACKGROUND
    assert classify(CallError(Code.INTERNAL, "x")) is CallOutcome.FINAL


# --- sizes


@pytest.mark.parametrize("method", ["DeleteVolume", "CreateVolume", "NodeStageVolume", "Probe"])
async def test_a_reply_that_is_too_large_is_an_error(tmp_path: Path, method: str) -> None:
    async with raw_driver(tmp_path) as (raw, path), CsiChannel(path) as channel:
        for size in (LARGEST_REPLY + 1, LARGEST_LIST + 1):
            raw.reply = b"\xfa\x07" + _number(size) + bytes(size)  # an unknown field
            with pytest.raises(BadReply) as failed:
                await channel.call(method, METHODS[method].request())
            assert classify_provisioning(failed.value) is ProvisioningOutcome.BACKGROUND
        raw.reply = b""
        if method != "CreateVolume":
            await channel.call(method, METHODS[method].request())


async def test_a_small_reply_does_not_become_a_large_one(tmp_path: Path) -> None:
    """Compressed, a gigabyte of zeros takes a megabyte."""
    size = 64 << 20
    async with raw_driver(tmp_path, grpc.Compression.Gzip) as (raw, path), CsiChannel(path) as channel:
        raw.reply = b"\xfa\x07" + _number(size) + bytes(size)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(BadReply, match="too large"):
            await channel.call("ListVolumes", v1.ListVolumesRequest(), timeout=60)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        assert grown < 4 * size, "more than the server's own copies"


def _number(value: int) -> bytes:
    """A varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


# --- types


def _list_mistyped(message: type[Message]) -> Iterator[tuple[str, bytes]]:
    for field in message.DESCRIPTOR.fields:
        is_number = field.type in (field.TYPE_INT32, field.TYPE_INT64, field.TYPE_BOOL, field.TYPE_ENUM)
        wrong = 1 if is_number else 5  # eight bytes, four bytes: no field of these messages is that
        yield field.name, _number(field.number << 3 | wrong) + bytes(8 if wrong == 1 else 4)


MISTYPED = [(name, *case) for name in UNARY for case in _list_mistyped(METHODS[name].reply)]


@pytest.mark.parametrize(("method", "field", "data"), MISTYPED, ids=lambda value: str(value)[:40])
def test_a_field_with_a_wrong_type_is_not_an_absent_one(method: str, field: str, data: bytes) -> None:
    with pytest.raises(BadReply, match=f"{method}: the reply is not valid: {field} has a wrong type"):
        decode(METHODS[method], data)


def test_a_wrong_type_is_found_inside_of_messages_and_lists() -> None:
    volume = v1.CreateVolumeResponse(volume=v1.Volume(volume_id="v")).SerializeToString()
    bent = volume[:1] + bytes((volume[1] + 5,)) + volume[2:] + b"\x0d\0\0\0\0"  # capacity_bytes, four bytes
    with pytest.raises(BadReply, match=r"volume\.capacity_bytes has a wrong type"):
        decode(METHODS["CreateVolume"], bent)
    usage = b"\x0a\x05\x15\0\0\0\0"
    with pytest.raises(BadReply, match=r"usage\[0\]\.total has a wrong type"):
        decode(METHODS["NodeGetVolumeStats"], usage)


def test_a_field_that_is_newer_than_we_are_is_fine() -> None:
    decode(METHODS["DeleteVolume"], b"\xfa\x07\x03abc")
    decode(METHODS["NodeGetInfo"], b"\x0a\x01n\xfa\x07\x03abc")


# --- content

WHEN = Timestamp(seconds=1)
GOOD: dict[str, Message] = {
    "GetPluginInfo": v1.GetPluginInfoResponse(name="good.example.com"),
    "CreateVolume": v1.CreateVolumeResponse(volume=v1.Volume(volume_id="v", capacity_bytes=1)),
    "NodeGetInfo": v1.NodeGetInfoResponse(node_id="n"),
    "CreateSnapshot": v1.CreateSnapshotResponse(
        snapshot=v1.Snapshot(snapshot_id="s", source_volume_id="v", creation_time=WHEN)
    ),
    "ListVolumes": v1.ListVolumesResponse(
        entries=[v1.ListVolumesResponse.Entry(volume=v1.Volume(volume_id="v"))]
    ),
    "ControllerExpandVolume": v1.ControllerExpandVolumeResponse(capacity_bytes=1),
}
_Entry = v1.ListVolumesResponse.Entry
_Snapped = v1.ListSnapshotsResponse.Entry
BAD: list[tuple[str, Message, str]] = [
    ("GetPluginInfo", v1.GetPluginInfoResponse(), "name is empty"),
    ("GetPluginInfo", v1.GetPluginInfoResponse(name="../../etc"), "name '../../etc' is not a domain name"),
    ("GetPluginInfo", v1.GetPluginInfoResponse(name="x" * 64), "is not a domain name"),
    ("GetPluginInfo", v1.GetPluginInfoResponse(name="-x"), "is not a domain name"),
    ("GetPluginInfo", v1.GetPluginInfoResponse(name="a b"), "is not a domain name"),
    ("GetPluginInfo", v1.GetPluginInfoResponse(name="a\n"), "is not a domain name"),
    ("CreateVolume", v1.CreateVolumeResponse(), "volume is missing"),
    ("CreateVolume", v1.CreateVolumeResponse(volume=v1.Volume()), "volume.volume_id is empty"),
    (
        "CreateVolume",
        v1.CreateVolumeResponse(volume=v1.Volume(volume_id="v", capacity_bytes=-1)),
        "volume.capacity_bytes is negative",
    ),
    ("ControllerGetVolume", v1.ControllerGetVolumeResponse(), "volume is missing"),
    ("NodeGetInfo", v1.NodeGetInfoResponse(), "node ID is empty"),
    ("NodeGetInfo", v1.NodeGetInfoResponse(node_id="n", max_volumes_per_node=-1), "max_volumes_per_node"),
    ("CreateSnapshot", v1.CreateSnapshotResponse(), "snapshot is missing"),
    ("CreateSnapshot", v1.CreateSnapshotResponse(snapshot=v1.Snapshot()), "snapshot.snapshot_id is empty"),
    (
        "CreateSnapshot",
        v1.CreateSnapshotResponse(snapshot=v1.Snapshot(snapshot_id="s", size_bytes=-5)),
        "snapshot.size_bytes is negative",
    ),
    ("ListVolumes", v1.ListVolumesResponse(entries=[_Entry()]), "entries[0].volume.volume_id is empty"),
    (
        "ListSnapshots",
        v1.ListSnapshotsResponse(entries=[_Snapped()]),
        "entries[0].snapshot.snapshot_id is empty",
    ),
    ("GetCapacity", v1.GetCapacityResponse(available_capacity=-1), "available_capacity is negative"),
    (
        "ControllerExpandVolume",
        v1.ControllerExpandVolumeResponse(capacity_bytes=-1),
        "capacity_bytes is negative",
    ),
    ("NodeExpandVolume", v1.NodeExpandVolumeResponse(capacity_bytes=-1), "capacity_bytes is negative"),
    (
        "NodeGetVolumeStats",
        v1.NodeGetVolumeStatsResponse(usage=[v1.VolumeUsage(used=-1)]),
        "usage[0].used is negative",
    ),
    ("CreateVolumeGroupSnapshot", v1.CreateVolumeGroupSnapshotResponse(), "group_snapshot is missing"),
]


@pytest.mark.parametrize(("method", "reply", "why"), BAD, ids=[f"{m}: {w}" for m, _, w in BAD])
async def test_a_reply_without_what_the_protocol_requires_is_an_error(
    tmp_path: Path, method: str, reply: Message, why: str
) -> None:
    async with raw_driver(tmp_path) as (raw, path), CsiChannel(path) as channel:
        raw.reply = reply.SerializeToString()
        with pytest.raises(BadReply) as failed:
            await channel.call(method, METHODS[method].request())
    assert f"{method}: the reply is not valid" in failed.value.message
    assert why in failed.value.message


def test_a_good_reply_is_one() -> None:
    for method, reply in GOOD.items():
        check(METHODS[method], reply)


# --- roles


async def test_a_driver_that_calls_itself_a_path_registers_nothing(tmp_path: Path) -> None:
    registry, outside = tmp_path / "registry", tmp_path / "outside"
    registry.mkdir()
    outside.mkdir()
    settings = RegistrarOptions(
        csi_address=str(tmp_path / "csi.sock"),
        kubelet_registration_path="/csi/csi.sock",
        plugin_registration_path=str(registry),
    )
    asked = asyncio.Event()
    async with raw_driver(tmp_path) as (raw, _):

        def reply(method: str) -> bytes:
            asked.set()
            return v1.GetPluginInfoResponse(name="../outside/evil").SerializeToString()

        raw.reply = reply
        running = asyncio.ensure_future(run_registrar(settings))
        try:
            for _ in range(2):
                async with asyncio.timeout(30):
                    await asked.wait()
                asked.clear()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert not list(registry.iterdir())
    assert not list(outside.iterdir())


async def test_the_node_registers_no_driver_whose_name_is_a_path(tmp_path: Path) -> None:
    async with registration.RegistrationServer(str(tmp_path), "good", "/csi/csi.sock") as registrar:
        registrar._info.name = "../../evil"
        with pytest.raises(BadReply, match="GetInfo: the reply is not valid: name"):
            await registration.get_registration_info(registrar.path)


async def test_a_capability_that_is_newer_than_we_are_does_not_stop_a_sidecar(tmp_path: Path) -> None:
    replies: dict[str, Message] = {
        "Probe": v1.ProbeResponse(),
        "GetPluginInfo": GOOD["GetPluginInfo"],
        "GetPluginCapabilities": v1.GetPluginCapabilitiesResponse(
            capabilities=[{"service": {"type": t}} for t in (1, 99)]
        ),
        "ControllerGetCapabilities": v1.ControllerGetCapabilitiesResponse(
            capabilities=[{"rpc": {"type": t}} for t in (1, 12345)]
        ),
    }
    async with raw_driver(tmp_path) as (raw, path), CsiChannel(path) as channel:
        raw.reply = lambda method: replies[method].SerializeToString()
        driver = await discover_driver(channel)
    assert driver.plugin == {"CONTROLLER_SERVICE"}
    assert driver.controller == {"CREATE_DELETE_VOLUME"}


# --- anything


def _bend(random: Random, data: bytes) -> bytes:
    out = bytearray(data or b"\x0a\x00")
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(out) + 1)
        match random.randrange(5):
            case 0:
                out[at:at] = random.randbytes(random.randint(1, 12))
            case 1:
                del out[at : at + random.randint(1, 4)]
            case 2 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
            case 3:
                out[at:at] = out[: random.randint(0, 64)]
            case _:
                out = out[:at] or bytearray(b"\x0a")
    return bytes(out)


async def test_whatever_bytes_a_driver_sends_they_are_a_valid_reply_or_an_error(tmp_path: Path) -> None:
    """What comes through is what protobuf itself understands, and has all that is required."""
    random = Random("replies")
    outcomes = {"bad": 0, "valid": 0}
    async with raw_driver(tmp_path) as (raw, path), CsiChannel(path) as channel:
        for _ in range(CASES):
            method = METHODS[random.choice(UNARY)]
            seed = GOOD.get(method.name, method.reply()).SerializeToString()
            raw.reply = random.choice((random.randbytes(random.randint(0, 64)), _bend(random, seed)))
            try:
                reply = await channel.call(method.name, method.request())
            except BadReply:
                outcomes["bad"] += 1
                continue
            outcomes["valid"] += 1
            try:
                assert method.reply.FromString(raw.reply) == reply
            except DecodeError:
                pytest.fail(f"{method.name} took {raw.reply!r}")
            check(method, reply)
    assert min(outcomes.values()) > CASES // 20, outcomes
