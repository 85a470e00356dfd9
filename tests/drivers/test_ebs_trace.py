"""Calls to the EC2 API are recorded with request and answer, without keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.ebs import ebs_environment
from volplane.base import trace
from volplane.base.trace import Span, decode_span
from volplane.drivers.ebs import connect_ec2
from volplane.drivers.ebs.ec2 import LONGEST_TEXT, Ec2Error

A = "a" * 32
UNKNOWN = "vol-00000000000000000"


@pytest.mark.root
async def test_a_call_to_the_cloud_is_recorded_with_its_request_and_answer(tmp_path: Path) -> None:
    lines: list[bytes] = []
    async with ebs_environment(tmp_path) as w:
        ec2 = await connect_ec2(w.account, w.host)
        volumes = [await w.create(f"v{number}") for number in range(2)]
        recorded = trace.start()
        recorded.sinks.append(lines.append)
        recorded.index.learn("pvc/default/data", (A,))
        await ec2.call("DescribeVolumes", {"VolumeId.1": volumes[0]})  # for no claim
        with recorded.span("csi-provisioner", "CreateVolume", "pvc/default/data"):
            await ec2.call("DescribeVolumes", {"VolumeId.1": volumes[0]})
            with pytest.raises(Ec2Error):
                await ec2.call("DescribeVolumes", {"VolumeId.1": UNKNOWN})
            await ec2.call("DescribeVolumes", {f"VolumeId.{n}": v for n, v in enumerate(volumes * 20, 1)})
        recorded.sinks.clear()
        await ec2.close()
        for volume in volumes:
            await w.delete(volume)
    assert w.account.secret_key.encode() not in b"".join(lines)
    found: list[Span] = [span for span in map(decode_span, lines) if span.component == "ebs-plugin"]
    assert [span.step for span in found] == ["DescribeVolumes"] * 3
    good, refused, _ = found
    assert json.loads(str(good.attrs["request"])) == {"VolumeId.1": volumes[0]}
    assert f"<volumeId>{volumes[0]}</volumeId>" in str(good.attrs["reply"])
    assert "<Code>InvalidVolume.NotFound</Code>" in str(refused.attrs["reply"])
    assert refused.error.startswith("Ec2Error: InvalidVolume.NotFound")
    assert all(len(str(span.attrs["reply"])) <= LONGEST_TEXT + 1 for span in found)
