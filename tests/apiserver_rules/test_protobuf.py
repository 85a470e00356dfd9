"""Protobuf bodies, as Go clients write them, give the objects that their JSON gives.

The samples were written by the real serializer; `json` is the same object as its JSON encoder writes it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volplane.api import kinds
from volplane.api.apiextensions import CustomResourceDefinition
from volplane.api.core import PersistentVolumeClaim, Pod, ServiceAccount
from volplane.api.errors import BadRequest, UnsupportedMediaType
from volplane.api.meta import DeleteOptions
from volplane.api.object import schema
from volplane.api.published_schema import list_message_fields, message_name
from volplane.apiserver import decode
from volplane.apiserver.decode import protobuf

SAMPLES = json.loads(Path(__file__).with_name("protobuf.samples.json").read_text())
BYTES = [(s["json"]["apiVersion"], s["json"]["kind"], bytes.fromhex(s["protobuf"])) for s in SAMPLES]
MAGIC = b"k8s\x00"


def sample(name: str) -> bytes:
    return next(bytes.fromhex(s["protobuf"]) for s in SAMPLES if s["name"] == name)


def read(api_version: str, kind: str, body: bytes, content_type: str = decode.PROTOBUF) -> Any:
    if kind == "DeleteOptions":
        return decode.decode_options(DeleteOptions, body, content_type)
    found = kinds.by_kind(api_version, kind)
    assert found is not None
    return decode.decode_body(found, body, content_type)[0]


def field(number: int, value: bytes | int) -> bytes:
    """One field by hand."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def envelope(raw: bytes, api_version: str = "", kind: str = "") -> bytes:
    meta = field(1, api_version.encode()) + field(2, kind.encode())
    return MAGIC + field(1, meta) + field(2, raw) + field(3, b"") + field(4, b"")


@pytest.mark.parametrize("given", SAMPLES, ids=lambda s: s["name"])
def test_a_sample_is_what_its_json_is(given: dict[str, Any]) -> None:
    version, kind = given["json"]["apiVersion"], given["json"]["kind"]
    by_number = read(version, kind, bytes.fromhex(given["protobuf"]))
    by_name = read(version, kind, json.dumps(given["json"]).encode(), decode.JSON)
    assert by_number == by_name


def test_every_field_of_every_kind_has_a_number() -> None:
    seen: set[Any] = set()

    def names(row: str) -> set[str]:
        fields = list_message_fields(row)
        lifted = [names(f.inlined_message) for f in fields if f.inlined_message]
        return {f.name for f in fields if f.name}.union(*lifted)

    def visit(of: Any) -> None:
        if of in seen:
            return
        seen.add(of)
        assert names(message_name(of)) == set(schema(of)), of
        for info in schema(of).values():
            inner = info.item or info
            if inner.type is not None:
                visit(inner.type)

    for kind in kinds.ALL + kinds.SUBRESOURCE_KINDS:
        visit(kind.type)
    visit(DeleteOptions)
    assert len(seen) > 300


def test_an_empty_class_is_not_an_absent_one() -> None:
    none = read("v1", "PersistentVolumeClaim", sample("a claim without a class"))
    empty = read("v1", "PersistentVolumeClaim", sample("a claim with the empty class"))
    assert none.spec.storage_class_name is None
    assert empty.spec.storage_class_name == ""
    assert empty.spec.resources.requests == {"storage": "1Gi"}
    assert empty.metadata.labels == {"a": "b", "empty": ""}


def test_an_empty_selector_is_all_nodes() -> None:
    capacity = read("storage.k8s.io/v1", "CSIStorageCapacity", sample("capacity on all nodes"))
    assert capacity.node_topology is not None
    assert capacity.capacity == "0"


def test_times_have_the_digits_of_their_kind() -> None:
    lease = read("coordination.k8s.io/v1", "Lease", sample("a lease"))
    assert lease.spec.acquire_time == "2026-01-02T03:04:05.678901Z"
    assert lease.spec.renew_time == "2026-01-02T03:04:05.000000Z"
    assert lease.spec.lease_transitions == 0
    event = read("v1", "Event", sample("an event"))
    assert event.first_timestamp == "2026-01-02T03:04:05Z"
    assert not event.event_time


def test_delete_options_may_be_of_any_group() -> None:
    options = read("", "DeleteOptions", sample("delete options"))
    assert (options.grace_period_seconds, options.preconditions.uid) == (0, "u")
    assert options.propagation_policy == "Foreground"
    assert read("", "DeleteOptions", sample("empty delete options")) == DeleteOptions()
    with pytest.raises(BadRequest, match="cannot be converted to DeleteOptions"):
        read("", "DeleteOptions", sample("a lease"))


def test_an_envelope_may_leave_its_kind_to_the_url() -> None:
    raw = field(1, field(1, b"x"))
    account = read("v1", "ServiceAccount", envelope(raw))
    assert account.metadata.name == "x"
    assert read("v1", "ServiceAccount", MAGIC + field(2, raw)) == account


def test_a_body_of_another_kind_is_refused() -> None:
    claim = kinds.of(PersistentVolumeClaim)
    with pytest.raises(BadRequest, match="the API version in the data"):
        decode.decode_body(claim, sample("a lease"), decode.PROTOBUF)
    with pytest.raises(BadRequest, match="cannot be handled as a PersistentVolumeClaim"):
        decode.decode_body(claim, sample("a volume"), decode.PROTOBUF)


def test_unknown_fields_are_skipped() -> None:
    group = varint(900 << 3 | 3) + field(1, b"inside") + varint(1 << 3 | 4)
    unknown = field(901, 1) + field(902, b"x") + group[:-1] + varint(900 << 3 | 4)
    fixed = varint(903 << 3 | 5) + b"1234" + varint(904 << 3 | 1) + b"12345678"
    raw = unknown + field(1, fixed + field(1, b"x") + unknown) + fixed
    account, findings = decode.decode_body(kinds.of(ServiceAccount), envelope(raw), decode.PROTOBUF, "Strict")
    assert (account.metadata.name, findings) == ("x", [])


def test_repeated_fields_are_merged_and_the_last_value_counts() -> None:
    raw = field(1, field(1, b"a") + field(3, b"n")) + field(1, field(1, b"") + field(2, b"g"))
    meta = read("v1", "ServiceAccount", envelope(raw)).metadata
    assert (meta.name, meta.namespace, meta.generate_name) == ("", "n", "g")


def test_numbers_may_be_negative_and_lists_of_them_packed() -> None:
    context = field(4, varint(1) + varint((1 << 64) - 2)) + field(4, 7) + field(5, (1 << 64) - 1)
    pod = read("v1", "Pod", envelope(field(2, field(14, context))))
    assert pod.spec.security_context.supplemental_groups == (1, -2, 7)
    assert pod.spec.security_context.fs_group == -1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "empty data"),
        (b"{}", "does not appear to be a protobuf message, expected prefix [107 56 115 0]"),
        (MAGIC, "empty body"),
        (MAGIC + b"\x12\x05ab", "unexpected EOF"),
        (MAGIC + b"\xff" * 11, "integer overflow"),
        (envelope(b"\x0a"), "unexpected EOF"),
        (envelope(b"\x0f"), "wrong wireType = 7 for field metadata"),
        (envelope(b"\x0d1234"), "wrong wireType = 5 for field metadata"),
        (envelope(b"\x8c\x3e"), "wiretype end group for non-group"),
        (envelope(b"\x02\x00"), "illegal tag 0"),
        (envelope(field(1, field(8, field(1, 1 << 60)))), "year outside of range"),
        (envelope(field(1, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")), "negative length"),
    ],
)
def test_broken_bodies_are_bad_requests(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read("v1", "Pod", body)
    assert message in str(refused.value)


def test_wrong_values_are_reported_as_for_json() -> None:
    bad = field(2, field(2, field(2, field(1, b"storage") + field(2, field(1, b"much")))))
    with pytest.raises(BadRequest, match="quantities must match"):
        read("v1", "PersistentVolumeClaim", envelope(bad))
    wide = field(2, field(25, 1 << 40))
    with pytest.raises(BadRequest, match="int32"):
        read("v1", "Pod", envelope(wide))


def test_the_depth_of_nested_schemas_is_limited() -> None:
    raw = b""
    for _ in range(20_000):
        raw = field(28, raw)
        if len(raw) > 60_000:
            break
    version = field(4, field(1, raw))
    with pytest.raises(BadRequest, match="exceeded max depth"):
        decode.decode_body(
            kinds.of(CustomResourceDefinition), envelope(field(2, field(7, version))), decode.PROTOBUF
        )


def test_custom_resources_have_no_protobuf_form() -> None:
    custom = kinds.Kind(None, "example.com", "v1", "Thing", "things")
    with pytest.raises(UnsupportedMediaType) as refused:
        decode.decode_body(custom, sample("a lease"), decode.PROTOBUF)
    assert "include: application/json, application/yaml" in str(refused.value)


# Whatever arrives: an object or a BadRequest


def check_refusal(api_version: str, kind: str, body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        msgspec.json.encode(read(api_version, kind, body))


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_decoded_or_rejected(raw: bytes) -> None:
    check_refusal("v1", "Pod", envelope(raw))
    check_refusal("v1", "Pod", MAGIC + raw)
    check_refusal("v1", "Pod", raw)


@given(st.sampled_from(BYTES), st.data())
@settings(max_examples=400, deadline=None)
def test_damaged_bodies_are_decoded_or_rejected(given_: tuple[str, str, bytes], data: st.DataObject) -> None:
    version, kind, body = given_
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    check_refusal(version, kind, bytes(damaged))


@pytest.mark.parametrize(("version", "kind", "body"), BYTES, ids=[s["name"] for s in SAMPLES])
def test_truncated_bodies_are_decoded_or_rejected(version: str, kind: str, body: bytes) -> None:
    for end in range(len(body)):
        check_refusal(version, kind, body[:end])
    raw = protobuf.open_body(body).data
    for end in range(len(raw)):
        check_refusal(version, kind, envelope(raw[:end], version, kind))


def test_a_pod_is_decoded_with_few_calls() -> None:
    """No clock here: the number of Python calls stands for the time."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    body = sample("a pod")
    decode.decode_body(kinds.of(Pod), body, decode.PROTOBUF)
    sys.setprofile(count)
    try:
        decode.decode_body(kinds.of(Pod), body, decode.PROTOBUF)
    finally:
        sys.setprofile(None)
    assert calls < 4000
