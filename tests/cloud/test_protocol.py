"""EC2's Query protocol as botocore itself writes, signs and reads it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from volplane.base import clock
from volplane.cloud import sigv4, xml, xml_views
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.model import AttachmentState, CloudAttachment, CloudVolume, VolumeShape, VolumeState
from volplane.cloud.query import QueryParameters, parse_tags
from volplane.drivers.ebs import find_keys
from volplane.web.sigv4 import AwsKeys, SignedRequest, Signer

KEYS = AwsKeys("AKIAVOLPLANE", "a/secret+key")
MODEL = botocore.session.Session().get_service_model("ec2")


def serialize(operation: str, **arguments: Any) -> QueryParameters:
    made = create_serializer("ec2").serialize_to_request(arguments, MODEL.operation_model(operation))
    request = AWSRequest(method="POST", url="http://localhost/", data=made["body"])
    return QueryParameters.parse(request.prepare().body)


def read(operation: str, body: bytes, status: int = 200) -> Any:
    shape = MODEL.operation_model(operation).output_shape
    return create_parser("ec2").parse({"body": body, "headers": {}, "status_code": status}, shape)


def sign(keys: AwsKeys = KEYS, body: str = "Action=DescribeVolumes", region: str = "us-east-1") -> AWSRequest:
    request = AWSRequest(method="POST", url="http://127.0.0.1:4566/?a=1&b=%2F", data=body)
    request.headers["Content-Type"] = "application/x-www-form-urlencoded"
    SigV4Auth(Credentials(keys.access, keys.secret), "ec2", region).add_auth(request)
    return request


def as_signed_request(
    request: AWSRequest, body: str = "Action=DescribeVolumes", method: str = "POST"
) -> SignedRequest:
    headers = {name.lower(): value for name, value in request.headers.items()} | {"host": "127.0.0.1:4566"}
    return SignedRequest(method, "/", "a=1&b=%2F", lambda name: headers.get(name, ""), body.encode())


def test_nested_parameters() -> None:
    given = serialize(
        "CreateVolume",
        AvailabilityZone="us-east-1a",
        Size=3,
        Encrypted=True,
        TagSpecifications=[{"ResourceType": "volume", "Tags": [{"Key": "a", "Value": "1"}, {"Key": "b"}]}],
    )
    assert given.number("Size") == 3
    assert given.flag("Encrypted")
    (specification,) = given.structs("TagSpecification")
    assert parse_tags(specification.structs("Tag")) == {"a": "1", "b": ""}
    given = serialize("DescribeVolumes", VolumeIds=[f"vol-{i}" for i in range(12)])
    assert given.texts("VolumeId") == [f"vol-{i}" for i in range(12)]


@pytest.mark.parametrize(
    ("text", "code"), [("A=1&A.1=2", "MalformedQueryString"), ("Size=two", "InvalidParameterValue")]
)
def test_nonsense_is_refused(text: str, code: str) -> None:
    with pytest.raises(Ec2ErrorResponse) as caught:
        QueryParameters.parse(text).number("Size")
    assert caught.value.code == code


def test_a_volume_is_read_back_by_botocore() -> None:
    held = CloudAttachment("i-1", "/dev/xvdba", AttachmentState.ATTACHED, "2026-11-15T20:00:00.000000Z")
    volume = CloudVolume(
        id="vol-0123",
        zone="us-east-1a",
        shape=VolumeShape(8, "gp3", 3000, 125),
        state=VolumeState.IN_USE,
        created="2026-11-15T19:00:00.000000Z",
        tags={"quote": '<a & "b">'},
        attachments=(held,),
    )
    body = xml.answer(
        "DescribeVolumes", "req-1", {"volumeSet": [xml_views.volume(volume)], "nextToken": None}
    )
    (found,) = read("DescribeVolumes", body)["Volumes"]
    assert (found["VolumeId"], found["Size"], found["State"]) == ("vol-0123", 8, "in-use")
    assert found["Tags"] == [{"Key": "quote", "Value": '<a & "b">'}]
    assert found["Attachments"][0]["Device"] == "/dev/xvdba"
    assert found["Attachments"][0]["AttachTime"].year == 2026
    assert found["Encrypted"] is False


def test_an_error_is_read_back_by_botocore() -> None:
    found = read("DescribeVolumes", xml.error("InvalidVolume.NotFound", "no <such>\x00 volume", "r"), 400)
    assert found["Error"]["Code"] == "InvalidVolume.NotFound"
    assert found["Error"]["Message"] == "no <such> volume"


def test_a_good_signature_passes() -> None:
    sigv4.verify(as_signed_request(sign()), KEYS, clock.wall())
    sigv4.verify(as_signed_request(sign(region="eu-west-3")), KEYS, clock.wall())


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda: as_signed_request(sign(AwsKeys("AKIAOTHER", KEYS.secret))), "AuthFailure"),
        (lambda: as_signed_request(sign(AwsKeys(KEYS.access, "guessed"))), "SignatureDoesNotMatch"),
        (lambda: as_signed_request(sign(), body="Action=DeleteVolume"), "SignatureDoesNotMatch"),
        (lambda: as_signed_request(sign(), method="GET"), "SignatureDoesNotMatch"),
        (lambda: as_signed_request(AWSRequest(method="POST", url="http://x/")), "MissingAuthenticationToken"),
    ],
)
def test_a_bad_signature_is_refused(made: Callable[[], SignedRequest], code: str) -> None:
    """Signed when the test runs, or it would be too old in a long suite."""
    with pytest.raises(Ec2ErrorResponse) as caught:
        sigv4.verify(made(), KEYS, clock.wall())
    assert caught.value.code == code


def test_an_old_request_is_refused() -> None:
    with pytest.raises(Ec2ErrorResponse, match="RequestExpired"):
        sigv4.verify(as_signed_request(sign()), KEYS, clock.wall() + timedelta(minutes=6))


def test_an_unsigned_host_is_refused() -> None:
    request = as_signed_request(sign())
    header = request.header

    def without_header(name: str) -> str:
        return header(name).replace("host;", "") if name == "authorization" else header(name)

    with pytest.raises(Ec2ErrorResponse, match="SignatureDoesNotMatch"):
        sigv4.verify(
            SignedRequest("POST", "/", request.query, without_header, request.body), KEYS, clock.wall()
        )


@pytest.mark.parametrize("token", ["", "lent+for/a=while"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:4566/", "https://ec2.eu-west-3.amazonaws.com/a/path/"])
def test_the_driver_signs_as_botocore_does(url: str, token: str) -> None:
    body, type = "Action=CreateVolume&Tag.1.Value=%C3%BC+x", "application/x-www-form-urlencoded"
    request = AWSRequest("POST", url, {"Content-Type": type}, body)
    SigV4Auth(Credentials(KEYS.access, KEYS.secret, token or None), "ec2", "eu-west-3").add_auth(request)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    host, path = url.split("/", 3)[2:]
    signer = Signer(host, f"/{path}", region="eu-west-3", service="ec2")
    keys, now = AwsKeys(KEYS.access, KEYS.secret, token), datetime.fromisoformat(theirs["x-amz-date"])
    assert dict(signer.headers(body.encode(), type, keys, now)) == theirs


def test_keys_are_found_where_botocore_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert find_keys()() == AwsKeys("id", "secret", "token")
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    assert find_keys()() == AwsKeys("id", "secret")
