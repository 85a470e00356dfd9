"""Request bodies: what a client sends → the object, the warnings, or the API's error."""

from typing import Any

import msgspec
import pytest

from volplane.api import codec, kinds
from volplane.api.apps import Deployment
from volplane.api.coordination import Lease
from volplane.api.core import ConfigMap, PersistentVolumeClaim, Pod, Secret
from volplane.api.errors import BadRequest, Invalid, UnsupportedMediaType
from volplane.apiserver.decode import convert_patched, decode_body

POD, CLAIM, SECRET = kinds.of(Pod), kinds.of(PersistentVolumeClaim), kinds.of(Secret)


def read(kind: kinds.Kind, body: Any, validation: str = "Warn") -> tuple[Any, list[str]]:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return decode_body(kind, data, "application/json", validation)


def test_a_body_becomes_a_typed_object() -> None:
    claim, warnings = read(CLAIM, {"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}})
    assert isinstance(claim, PersistentVolumeClaim)
    assert claim.spec.access_modes == ("ReadWriteOnce",)
    assert warnings == []


def test_nulls_count_as_absent() -> None:
    pod, warnings = read(
        POD,
        {
            "metadata": {"creationTimestamp": None, "labels": {"a": None}},
            "spec": {"containers": [None, {"name": "x", "args": ["a", None]}], "volumes": None},
            "status": None,
        },
    )
    assert warnings == []
    assert pod.metadata.labels == {"a": ""}
    assert [c.name for c in pod.spec.containers] == ["", "x"]
    assert pod.spec.containers[1].args == ("a", "")


AMOUNTS = [("1024Mi", "1Gi"), (1073741824, "1073741824"), (1.5, "1500m"), (" 1Gi ", "1Gi"), (None, "0")]


@pytest.mark.parametrize(("given", "stored"), AMOUNTS)
def test_amounts_are_stored_canonically(given: Any, stored: str) -> None:
    claim, _ = read(CLAIM, {"spec": {"resources": {"requests": {"storage": given}}}})
    assert claim.spec.resources.requests == {"storage": stored}


TIMES = [
    ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000Z"),
    ("2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.123456Z"),
    ("2026-01-02T03:04:05.1+02:00", "2026-01-02T01:04:05.100000Z"),
]


@pytest.mark.parametrize(("given", "stored"), TIMES)
def test_lease_times_have_six_digits(given: str, stored: str) -> None:
    lease, _ = read(kinds.of(Lease), {"spec": {"renewTime": given}})
    assert lease.spec.renew_time == stored


def test_other_times_have_none() -> None:
    claim, _ = read(CLAIM, {"metadata": {"creationTimestamp": "2026-01-02T03:04:05.999+01:00"}})
    assert claim.metadata.creation_timestamp == "2026-01-02T02:04:05Z"


UNKNOWN = b'{"spec":{"foo":1,"containers":[{"name":"a","image":"x","bar":{}}]},"metadata":{"x":1}}'
FOUND = ['unknown field "spec.foo"', 'unknown field "spec.containers[0].bar"', 'unknown field "metadata.x"']


def test_unknown_fields_are_warnings() -> None:
    pod, warnings = read(POD, UNKNOWN)
    assert warnings == FOUND
    assert pod.spec.containers[0].image == "x"
    assert read(POD, UNKNOWN, "Ignore")[1] == []


def test_unknown_fields_are_refused_when_strict() -> None:
    with pytest.raises(BadRequest) as caught:
        read(POD, UNKNOWN, "Strict")
    assert caught.value.message == (
        f'Pod in version "v1" cannot be handled as a Pod: strict decoding error: {", ".join(FOUND)}'
    )


def test_duplicate_fields() -> None:
    body = b'{"spec":{"volumeName":"a","volumeName":"b"},"metadata":{"annotations":{"k":"\\":","k":"v"}}}'
    claim, warnings = read(CLAIM, body)
    assert claim.spec.volume_name == "b"
    assert warnings == ['duplicate field "spec.volumeName"', 'duplicate field "metadata.annotations.k"']
    with pytest.raises(BadRequest, match=r'strict decoding error: duplicate field "spec\.volumeName"'):
        read(CLAIM, body, "Strict")


def test_text_that_looks_like_keys_is_no_duplicate() -> None:
    body = rb'{"metadata":{"annotations":{"a":"{\"a\":1,\"a\" : 2}","b\\":"x" , "c" : "\\\":"}}}'
    assert read(CLAIM, body)[1] == []


REFUSALS: dict[str, tuple[kinds.Kind, Any, str]] = {
    "a number for a string": (
        CLAIM,
        {"spec": {"volumeName": 1}},
        "json: cannot unmarshal number into Go struct field "
        "PersistentVolumeClaimSpec.spec.volumeName of type string",
    ),
    "a string for a number": (
        kinds.of(Deployment),
        {"spec": {"replicas": "x"}},
        "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
    ),
    "inside a list": (
        POD,
        {"spec": {"containers": [{"image": True}]}},
        "json: cannot unmarshal bool into Go struct field Container.spec.containers.image of type string",
    ),
    "inside a map": (
        POD,
        {"metadata": {"labels": {"a": 1}}},
        "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
    ),
    "a string for a list": (
        POD,
        {"spec": {"containers": "x"}},
        "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
    ),
    "too large": (
        kinds.of(Deployment),
        {"spec": {"replicas": 1 << 40}},
        "json: cannot unmarshal number 1099511627776 into Go struct field "
        "DeploymentSpec.replicas of type int32",
    ),
    "no amount": (
        CLAIM,
        {"spec": {"resources": {"requests": {"storage": "lots"}}}},
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    ),
    "no time": (
        CLAIM,
        {"metadata": {"creationTimestamp": "now"}},
        'parsing time "now" as "2006-01-02T15:04:05Z07:00": cannot parse "now" as "2006"',
    ),
}


@pytest.mark.parametrize("situation", REFUSALS)
def test_values_of_the_wrong_type_are_rejected(situation: str) -> None:
    kind, body, words = REFUSALS[situation]
    with pytest.raises(BadRequest) as caught:
        read(kind, body)
    assert caught.value.message == f'{kind.kind} in version "v1" cannot be handled as a {kind.kind}: {words}'


def test_kind_and_version_must_fit_the_url() -> None:
    with pytest.raises(BadRequest) as caught:
        read(POD, {"apiVersion": "apps/v1", "kind": "Pod"})
    assert caught.value.message == (
        "the API version in the data (apps/v1) does not match the expected API version (v1)"
    )
    with pytest.raises(BadRequest, match='no kind "Foo" is registered for version "v1"'):
        read(POD, {"kind": "Foo"})
    with pytest.raises(
        BadRequest, match=r"Secret in version .* cannot be handled as a ConfigMap: converting"
    ):
        read(kinds.of(ConfigMap), {"kind": "Secret", "apiVersion": "v1"})


MALFORMED = {
    b"{": "unexpected end of JSON input",
    b'{"a":}': "invalid character '}' looking for beginning of value",
    b'{"a":1,}': "invalid character '}' looking for beginning of object key string",
    b'{"a":1, \n}': "invalid character '}' looking for beginning of object key string",
    b'{"a":[1,]}': "invalid character ']' looking for beginning of value",
    b'{"a" 1}': "invalid character '1' after object key",
    b'{"a":1} x': "invalid character 'x' after top-level value",
    b"[]": "json: cannot unmarshal array into Go value of type v1.TypeMeta",
    b"": "unexpected end of JSON input",
}


@pytest.mark.parametrize("body", MALFORMED)
def test_malformed_bodies(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        read(POD, body)
    assert caught.value.message.startswith(
        "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; "
        f"json parse error: {MALFORMED[body]} ("
    )


def test_too_deep_nesting_is_malformed() -> None:
    for body in (b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(BadRequest):
            read(POD, body)


def test_yaml() -> None:
    body = b"kind: PersistentVolumeClaim\nmetadata:\n  name: c\n  annotations: {d: '2026-01-02', 1: a}\n"
    claim, warnings = decode_body(CLAIM, body, "application/yaml; charset=utf-8", "Strict")
    assert claim.metadata.annotations == {"d": "2026-01-02", "1": "a"}
    assert warnings == []
    twice = b"metadata:\n  name: c\n  name: d\n"
    _, warnings = decode_body(CLAIM, twice, "application/yaml", "Warn")
    assert warnings == ['line 3: key "name" already set in map']
    with pytest.raises(BadRequest, match="error converting YAML to JSON: yaml: line"):
        decode_body(CLAIM, b"a: [1\nb: }", "application/yaml", "Warn")


def test_other_media_types_are_refused() -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        decode_body(CLAIM, b"", "application/xml", "Warn")
    assert caught.value.message == (
        "the body of the request was in an unknown format - "
        "accepted media types include: "
        "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    )


def test_bytes_are_base64() -> None:
    secret, _ = read(SECRET, {"data": {"a": "aGk="}})
    assert secret.data == {"a": b"hi"}


def test_the_result_of_a_patch() -> None:
    data = codec.to_dict(Pod())
    data["spec"] = {"foo": 1}
    pod, warnings = convert_patched(POD, dict(data))
    assert isinstance(pod, Pod)
    assert warnings == ['unknown field "spec.foo"']
    data = codec.to_dict(Pod())
    data["spec"] = {"foo": 1}
    with pytest.raises(Invalid) as caught:
        convert_patched(POD, data, "Strict", findings=['duplicate field "spec.x"'])
    [cause] = caught.value.causes
    assert cause.field == "patch"
    assert cause.message.endswith('strict decoding error: duplicate field "spec.x", unknown field "spec.foo"')
    with pytest.raises(Invalid) as caught:
        convert_patched(POD, {"spec": {"nodeName": 1}})
    assert caught.value.causes[0].field == "patch"
