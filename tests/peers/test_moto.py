"""The same calls to the disk service and to moto: docs/moto.md names every answer, and every difference."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support import peers
from volplane.cloud import CloudInstance, CloudOptions, serve_endpoint
from volplane.host import Host
from volplane.store.memory import MemoryStore

PAGE = Path(__file__).parent.parent.parent / "docs" / "moto.md"
ZONE = "us-east-1a"
MISSING = "vol-00000000"


def table() -> dict[str, tuple[str, str]]:
    """Call → our answer, moto's."""
    rows = [line.split("|")[1:4] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {call.strip(): (ours.strip(), theirs.strip()) for call, ours, theirs in rows[1:]}


def client(address: str) -> Any:
    session = botocore.session.Session()
    session.set_credentials("AKIAVOLPLANE", "secret")
    config = Config(retries={"total_max_attempts": 1}, parameter_validation=False)
    return session.create_client("ec2", region_name="us-east-1", endpoint_url=address, config=config)


def answer(call: Callable[..., Any], *path: str | int, **given: Any) -> str:
    try:
        found = call(**given)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    for name in path:
        found = found[name] if isinstance(name, int) else found.get(name)
    return str(found) if path else "ok"


def answers(ec2: Any, one: str, two: str) -> Iterator[tuple[str, str]]:
    def create(**given: Any) -> Any:
        return ec2.create_volume(**{"AvailabilityZone": ZONE, "Size": 1, "VolumeType": "gp3", **given})

    volume = create(ClientToken="t")["VolumeId"]
    yield "create gp3: throughput", answer(create, "Throughput")
    yield "create gp2 of 100 GiB: iops", answer(create, "Iops", VolumeType="gp2", Size=100)
    yield "create without a type", answer(ec2.create_volume, "VolumeType", AvailabilityZone=ZONE, Size=1)
    again = create(ClientToken="t")["VolumeId"]
    reported = "the same volume" if again == volume else "another volume"
    yield "create with a client token again", reported
    yield "create with that token and another size", answer(create, ClientToken="t", Size=2)
    yield "create, dry run", answer(create, DryRun=True)
    yield "create, dry run of nonsense", answer(create, DryRun=True, VolumeType="floppy")
    yield "create in an unknown zone", answer(create, AvailabilityZone="mars-1a")
    yield "create of an unknown type", answer(create, VolumeType="floppy")
    yield "create gp3 of 70000 GiB", answer(create, Size=70000)
    yield "create st1 of 100 GiB", answer(create, VolumeType="st1", Size=100)
    yield "create io2 without iops", answer(create, VolumeType="io2", Size=4)
    yield "create io2 of 4 GiB with 40000 iops", answer(create, VolumeType="io2", Size=4, Iops=40000)
    yield "create st1 with iops", answer(create, VolumeType="st1", Size=125, Iops=100)
    yield "create gp3 with 1000 MiB/s", answer(create, Size=100, Throughput=1000)
    yield "create from a missing snapshot", answer(create, SnapshotId="snap-00000000")
    yield "create without size and snapshot", answer(ec2.create_volume, AvailabilityZone=ZONE)
    yield from attachments(ec2, create, volume, one, two)
    yield from snapshots(ec2, create, volume)
    yield "delete", answer(ec2.delete_volume, VolumeId=volume)
    yield "delete again", answer(ec2.delete_volume, VolumeId=volume)
    yield "describe a missing volume", answer(ec2.describe_volumes, VolumeIds=[volume])
    yield "describe a malformed id", answer(ec2.describe_volumes, VolumeIds=["nonsense"])
    yield "describe in pages of one", answer(ec2.describe_volumes, MaxResults=1)
    other = create()["VolumeId"]
    yield "describe with pages and ids", answer(ec2.describe_volumes, MaxResults=5, VolumeIds=[other])
    tags = [{"Key": "a", "Value": "b"}]
    yield "tag a missing volume", answer(ec2.create_tags, Resources=[volume], Tags=tags)
    reserved = [{"Key": "aws:a", "Value": "b"}]
    yield "tag with a key of aws", answer(ec2.create_tags, Resources=[other], Tags=reserved)
    yield "describe an unknown zone", answer(ec2.describe_availability_zones, ZoneNames=["mars-1a"])


def attachments(
    ec2: Any, create: Callable[..., Any], volume: str, one: str, two: str
) -> Iterator[tuple[str, str]]:
    place = {"VolumeId": volume, "InstanceId": one, "Device": "/dev/xvdba"}
    nobody = {**place, "InstanceId": "i-00000000000000009"}
    yield "attach to a missing instance", answer(ec2.attach_volume, **nobody)
    yield "attach", answer(ec2.attach_volume, "State", **place)
    yield "attach again", answer(ec2.attach_volume, **place)
    yield "attach to another instance", answer(ec2.attach_volume, **{**place, "InstanceId": two})
    other = {**place, "VolumeId": create()["VolumeId"]}
    yield "attach under a device name that is taken", answer(ec2.attach_volume, **other)
    far = create(AvailabilityZone="us-east-1b")["VolumeId"]
    wrong = {**place, "VolumeId": far, "Device": "/dev/xvdbb"}
    yield "attach in another zone", answer(ec2.attach_volume, **wrong)
    both = {"InstanceId": one, "ExcludeBootVolume": True}
    taken = answer(ec2.create_snapshots, "Snapshots", 0, "State", InstanceSpecification=both)
    yield "snapshots of the volumes of an instance", taken
    yield "delete while attached", answer(ec2.delete_volume, VolumeId=volume)
    yield "detach from another instance", answer(ec2.detach_volume, VolumeId=volume, InstanceId=two)
    path = ("VolumeModification", "ModificationState")
    yield "modify: larger", answer(ec2.modify_volume, *path, VolumeId=volume, Size=2)
    yield "modify: smaller", answer(ec2.modify_volume, VolumeId=volume, Size=1)
    yield "modify a missing volume", answer(ec2.modify_volume, VolumeId=MISSING, Size=5)
    changes = ec2.describe_volumes_modifications
    yield "modifications of a volume without any", answer(changes, VolumeIds=[other["VolumeId"]])
    (left,) = ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
    if left["State"] == "in-use":  # moto has detached it already, from the instance that was named
        ec2.detach_volume(VolumeId=volume)


def snapshots(ec2: Any, create: Callable[..., Any], volume: str) -> Iterator[tuple[str, str]]:
    yield "snapshot of a missing volume", answer(ec2.create_snapshot, VolumeId=MISSING)
    yield "snapshot", answer(ec2.create_snapshot, "State", VolumeId=volume)
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    yield "create from a snapshot, smaller than it", answer(create, SnapshotId=snapshot, Size=1)
    nobody = {"InstanceId": "i-00000000000000009"}
    yield "snapshots of a missing instance", answer(ec2.create_snapshots, InstanceSpecification=nobody)
    yield "delete a snapshot", answer(ec2.delete_snapshot, SnapshotId=snapshot)
    yield "delete it again", answer(ec2.delete_snapshot, SnapshotId=snapshot)


@pytest.mark.root
async def test_the_disk_service_answers_as_the_page_says(tmp_path: Path) -> None:
    host = Host()
    nodes = tuple(CloudInstance(f"i-0{n}", ZONE, str(tmp_path / f"n{n}")) for n in (1, 2))
    settings = CloudOptions(
        data_dir=str(tmp_path),
        access_key="AKIAVOLPLANE",
        secret_key="secret",
        zones=(ZONE, "us-east-1b"),
        instances=nodes,
    )
    async with serve_endpoint(settings, host, MemoryStore()) as address:
        found = await asyncio.to_thread(lambda: dict(answers(client(address), "i-01", "i-02")))
    await host.close()
    assert found == {call: ours for call, (ours, _) in table().items()}


@contextmanager
def moto() -> Iterator[str]:
    program = peers.path("moto_server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # It is a program of another environment: ours must not leak into it.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [program, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.peer("moto_server")
def test_moto_answers_as_the_page_says() -> None:
    with moto() as address:
        ec2 = client(address)
        for _ in range(600):
            try:
                ec2.describe_volumes()
                break
            except BotoCoreError:
                time.sleep(0.3)
        place = {"AvailabilityZone": ZONE}
        made = ec2.run_instances(ImageId="ami-12345678", MinCount=2, MaxCount=2, Placement=place)
        one, two = (i["InstanceId"] for i in made["Instances"])
        found = dict(answers(ec2, one, two))
    assert found == {call: theirs for call, (_, theirs) in table().items()}
