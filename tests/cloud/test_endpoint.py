"""The real `aws` command and botocore against the endpoint, on real loop devices."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from volplane.cloud import CloudInstance, CloudOptions, serve_endpoint
from volplane.host import Host
from volplane.store.memory import MemoryStore

pytestmark = [pytest.mark.root, pytest.mark.peer("aws"), pytest.mark.slow]

AWS = Path(sys.executable).with_name("aws")
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAVOLPLANE", "AWS_SECRET_ACCESS_KEY": "secret/key+1"}


class Failed(Exception):
    pass


class Cli:
    def __init__(self, address: str, home: Path) -> None:
        settings = {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1", "HOME": str(home)}
        self.env = {"PATH": os.environ["PATH"], "AWS_PAGER": "", **settings, **KEYS}

    async def __call__(self, *arguments: str, **env: str) -> Any:
        process = await asyncio.create_subprocess_exec(
            AWS,
            "ec2",
            *arguments,
            "--output=json",
            env=self.env | env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            raise Failed(err.decode())
        return json.loads(out) if out.strip() else None


@asynccontextmanager
async def cloud(directory: Path) -> AsyncIterator[Cli]:
    host = Host()
    nodes = tuple(
        CloudInstance(f"i-0node{n}", "us-east-1a", str(directory / f"n{n}"), f"worker-{n}") for n in (1, 2)
    )
    settings = CloudOptions(
        data_dir=str(directory),
        access_key=KEYS["AWS_ACCESS_KEY_ID"],
        secret_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        zones=("us-east-1a", "us-east-1b"),
        instances=nodes,
    )
    try:
        async with serve_endpoint(settings, host, MemoryStore()) as address:
            yield Cli(address, directory)
    finally:
        await host.close()


async def test_the_life_of_a_volume(tmp_path: Path) -> None:
    async with cloud(tmp_path) as aws:
        tags = "ResourceType=volume,Tags=[{Key=Name,Value=my disk}]"
        made = await aws(
            "create-volume",
            "--availability-zone=us-east-1a",
            "--size=1",
            "--volume-type=gp3",
            f"--tag-specifications={tags}",
        )
        volume = made["VolumeId"]
        assert (made["State"], made["Iops"], made["Throughput"]) == ("available", 3000, 125)
        held = await aws(
            "attach-volume", f"--volume-id={volume}", "--instance-id=i-0node1", "--device=/dev/xvdba"
        )
        assert (held["State"], held["Device"]) == ("attached", "/dev/xvdba")
        shown = await aws(
            "describe-volumes",
            f"--volume-ids={volume}",
            "--query=Volumes[0].{State:State,Attachments:Attachments[*].{Instance:InstanceId,State:State}}",
        )
        assert shown == {"State": "in-use", "Attachments": [{"Instance": "i-0node1", "State": "attached"}]}
        found = await aws(
            "describe-volumes", "--filters=Name=tag:Name,Values=my*", "--query=Volumes[].VolumeId"
        )
        assert found == [volume]
        await aws("modify-volume", f"--volume-id={volume}", "--size=2")
        changes = await aws("describe-volumes-modifications", f"--volume-ids={volume}")
        assert changes["VolumesModifications"][0]["ModificationState"] == "completed"
        done = await aws("detach-volume", f"--volume-id={volume}", "--instance-id=i-0node1", "--force")
        assert done["State"] == "detached"
        await aws("create-tags", f"--resources={volume}", "--tags=Key=a,Value=1")
        await aws("delete-tags", f"--resources={volume}", "--tags=Key=Name")
        tags = await aws("describe-tags", "--filters=Name=resource-type,Values=volume")
        assert tags["Tags"] == [{"Key": "a", "ResourceId": volume, "ResourceType": "volume", "Value": "1"}]
        await aws("delete-volume", f"--volume-id={volume}")
        with pytest.raises(Failed, match=r"InvalidVolume\.NotFound"):
            await aws("describe-volumes", f"--volume-ids={volume}")


async def test_the_life_of_a_snapshot(tmp_path: Path) -> None:
    async with cloud(tmp_path) as aws:
        create = ("create-volume", "--availability-zone=us-east-1a", "--volume-type=gp3")
        volume = (await aws(*create, "--size=1"))["VolumeId"]
        tags = "ResourceType=snapshot,Tags=[{Key=Name,Value=nightly}]"
        taken = await aws(
            "create-snapshot",
            f"--volume-id={volume}",
            "--description=nightly",
            f"--tag-specifications={tags}",
        )
        snapshot = taken["SnapshotId"]
        await aws("wait", "snapshot-completed", f"--snapshot-ids={snapshot}")
        find = ("describe-snapshots", "--owner-ids=self", "--filters=Name=tag:Name,Values=night*")
        assert await aws(*find, "--query=Snapshots[].[SnapshotId,State,Progress,VolumeSize]") == [
            [snapshot, "completed", "100%", 1]
        ]
        restored, copied = await asyncio.gather(
            aws(*create, f"--snapshot-id={snapshot}", "--size=2"),
            aws("copy-volumes", f"--source-volume-id={volume}"),
        )
        assert (restored["SnapshotId"], restored["Size"]) == (snapshot, 2)
        assert copied["Volumes"][0]["SourceVolumeId"] == volume
        await aws("delete-snapshot", f"--snapshot-id={snapshot}")
        with pytest.raises(Failed, match=r"InvalidSnapshot\.NotFound"):
            await aws("describe-snapshots", f"--snapshot-ids={snapshot}")


async def test_instances_zones_pages_and_refusals(tmp_path: Path) -> None:
    async with cloud(tmp_path) as aws:
        zones = await aws("describe-availability-zones", "--query=AvailabilityZones[].[ZoneName,State]")
        assert zones == [["us-east-1a", "available"], ["us-east-1b", "available"]]
        names = await aws("describe-instances", "--query=Reservations[].Instances[].PrivateDnsName")
        assert names == ["worker-1", "worker-2"]
        assert await aws("describe-snapshots", "--owner-ids=self") == {"Snapshots": []}
        create = ("create-volume", "--availability-zone=us-east-1a", "--size=1")
        await asyncio.gather(*(aws(*create) for _ in range(3)))
        await asyncio.gather(*(aws(*create) for _ in range(3)))
        every = await aws("describe-volumes", "--page-size=5", "--query=Volumes[].VolumeId")
        assert len(set(every)) == 6
        stopped = await aws(
            "stop-instances", "--instance-ids=i-0node2", "--query=StoppingInstances[0].CurrentState"
        )
        assert stopped == {"Code": 80, "Name": "stopped"}
        for arguments, code in [
            ((*create, "--dry-run"), "DryRunOperation"),
            ((*create, "--snapshot-id=snap-1"), r"InvalidSnapshot\.NotFound"),
            (("describe-volumes", "--volume-ids=nonsense"), "InvalidParameterValue"),
            (("describe-vpcs",), "InvalidAction"),
        ]:
            with pytest.raises(Failed, match=code):
                await aws(*arguments)


async def test_strangers_are_refused(tmp_path: Path) -> None:
    async with cloud(tmp_path) as aws:
        with pytest.raises(Failed, match="SignatureDoesNotMatch"):
            await aws("describe-volumes", AWS_SECRET_ACCESS_KEY="guessed")
        with pytest.raises(Failed, match="AuthFailure"):
            await aws("describe-volumes", AWS_ACCESS_KEY_ID="AKIASTRANGER")
