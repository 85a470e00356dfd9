"""Locks, copies and fast restores of snapshots, with botocore and the `aws` command."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cloud.test_endpoint import Failed
from tests.cloud.test_endpoint import cloud as aws_cloud
from tests.support.ec2_client import ZONE, assert_refused, script
from volplane.cloud import snapshot_locks as locks
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.model import CloudSnapshot, LockMode, SnapshotLock, SnapshotState
from volplane.cloud.query import QueryParameters
from volplane.store.memory import MemoryStore

pytestmark = pytest.mark.root

NOW = datetime(2030, 1, 1, tzinfo=UTC)
START = "2030-01-01T00:00:00.000000Z"
SNAPSHOT = CloudSnapshot("snap-1", "vol-1", 1, SnapshotState.COMPLETED, START, START)


def take(ec2: Any) -> str:
    volume = ec2.create_volume(AvailabilityZone=ZONE, Size=1, VolumeType="gp3")["VolumeId"]
    return str(ec2.create_snapshot(VolumeId=volume)["SnapshotId"])


def with_lock(mode: LockMode, days: int, **more: Any) -> CloudSnapshot:
    return replace(SNAPSHOT, lock=SnapshotLock(mode, START, days, **more))


async def test_a_locked_snapshot_is_not_deleted_even_after_a_restart(tmp_path: Path) -> None:
    store, taken = MemoryStore(), dict[str, str]()

    def lock(ec2: Any) -> None:
        taken["id"] = take(ec2)
        done = ec2.lock_snapshot(SnapshotId=taken["id"], LockMode="governance", LockDuration=3)
        assert (done["LockState"], done["LockDuration"]) == ("governance", 3)
        assert done["LockExpiresOn"] - done["LockDurationStartTime"] == timedelta(days=3)
        assert_refused("OperationNotPermitted", ec2.delete_snapshot, SnapshotId=taken["id"])

    def unlock(ec2: Any) -> None:
        message = assert_refused("OperationNotPermitted", ec2.delete_snapshot, SnapshotId=taken["id"])
        assert taken["id"] in message
        shown = ec2.describe_locked_snapshots(Filters=[{"Name": "lock-state", "Values": ["governance"]}])
        assert [s["SnapshotId"] for s in shown["Snapshots"]] == [taken["id"]]
        assert ec2.unlock_snapshot(SnapshotId=taken["id"])["SnapshotId"] == taken["id"]
        assert ec2.describe_locked_snapshots()["Snapshots"] == []
        assert_refused("IncorrectState", ec2.unlock_snapshot, SnapshotId=taken["id"])
        ec2.delete_snapshot(SnapshotId=taken["id"])

    await script(tmp_path, lock, store=store)
    await script(tmp_path, unlock, store=store)


async def test_a_compliance_lock_can_only_be_extended_after_its_cooling_off(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        one = {"SnapshotId": take(ec2)}
        cool = ec2.lock_snapshot(**one, LockMode="compliance", LockDuration=9, CoolOffPeriod=1)
        assert cool["LockState"] == "compliance-cooloff"
        ec2.lock_snapshot(**one, LockMode="compliance", LockDuration=5)
        shorter = {**one, "LockMode": "compliance", "LockDuration": 4}
        assert_refused("OperationNotPermitted", ec2.lock_snapshot, **shorter)
        weaker = {**one, "LockMode": "governance", "LockDuration": 50}
        assert_refused("OperationNotPermitted", ec2.lock_snapshot, **weaker)
        assert_refused("OperationNotPermitted", ec2.unlock_snapshot, **one)
        until = datetime.now(UTC) + timedelta(days=30)
        longer = ec2.lock_snapshot(**one, LockMode="compliance", ExpirationDate=until)
        assert abs(longer["LockExpiresOn"] - until) < timedelta(seconds=1)
        assert_refused("InvalidSnapshot.NotFound", ec2.lock_snapshot, **{**shorter, "SnapshotId": "snap-0"})

    await script(tmp_path, use_ec2)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("LockDuration=1", "MissingParameter"),
        ("LockMode=governance", "MissingParameter"),
        ("LockMode=eternal&LockDuration=1", "InvalidParameterValue"),
        ("LockMode=governance&LockDuration=0", "InvalidParameterValue"),
        ("LockMode=governance&LockDuration=36501", "InvalidParameterValue"),
        ("LockMode=governance&LockDuration=1&CoolOffPeriod=1", "InvalidParameterCombination"),
        ("LockMode=compliance&LockDuration=1&CoolOffPeriod=73", "InvalidParameterValue"),
        (
            "LockMode=compliance&LockDuration=1&ExpirationDate=2031-01-01T00:00:00Z",
            "InvalidParameterCombination",
        ),
        ("LockMode=compliance&ExpirationDate=2029-01-01T00:00:00Z", "InvalidParameterValue"),
        ("LockMode=compliance&ExpirationDate=soon", "InvalidParameterValue"),
    ],
)
def test_a_wrong_lock_is_refused(given: str, code: str) -> None:
    with pytest.raises(Ec2ErrorResponse) as caught:
        locks.parse_lock(QueryParameters.parse(given), NOW)
    assert caught.value.code == code


def test_a_lock_expires() -> None:
    locked = with_lock(LockMode.COMPLIANCE, 2, cool_off=1)
    assert locked.lock is not None
    for hours, state in [(0, "compliance-cooloff"), (1, "compliance"), (47, "compliance"), (48, "expired")]:
        assert locks.lock_state(locked, locked.lock, NOW + timedelta(hours=hours)) == state
    locks.check_deletable(locked, NOW + timedelta(days=2))
    assert locks.remove_lock(locked, NOW + timedelta(days=2)).lock is None
    pending = replace(locked, state=SnapshotState.PENDING, ended="")
    assert locks.is_locked(pending, NOW + timedelta(days=99))  # its duration has not begun


@pytest.mark.peer("aws")
@pytest.mark.slow
async def test_the_aws_command_copies_locks_and_restores_fast(tmp_path: Path) -> None:
    async with aws_cloud(tmp_path) as aws:
        volume = (await aws("create-volume", "--availability-zone=us-east-1a", "--size=1"))["VolumeId"]
        taken = (await aws("create-snapshot", f"--volume-id={volume}"))["SnapshotId"]
        tags = "ResourceType=snapshot,Tags=[{Key=Name,Value=copy}]"
        source = ("--source-region=us-east-1", f"--source-snapshot-id={taken}")
        copied, enabled = await asyncio.gather(
            aws("copy-snapshot", *source, "--description=again", f"--tag-specifications={tags}"),
            aws(
                "enable-fast-snapshot-restores",
                "--availability-zones=us-east-1a",
                "--source-snapshot-ids",
                taken,
                "snap-00000000",
            ),
        )
        assert copied["Tags"] == [{"Key": "Name", "Value": "copy"}]
        assert [(f["SnapshotId"], f["State"]) for f in enabled["Successful"]] == [(taken, "enabled")]
        (failed,) = enabled["Unsuccessful"]
        (reason,) = failed["FastSnapshotRestoreStateErrors"]
        assert reason["Error"]["Code"] == "InvalidSnapshot.NotFound"
        lock = f"--snapshot-id={copied['SnapshotId']}"
        await aws("lock-snapshot", lock, "--lock-mode=governance", "--lock-duration=1")
        with pytest.raises(Failed, match="OperationNotPermitted"):
            await aws("delete-snapshot", lock)


async def test_a_copy_outlives_its_source(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        taken = take(ec2)
        ec2.lock_snapshot(SnapshotId=taken, LockMode="governance", LockDuration=1)
        given = {"SourceRegion": "us-east-1", "SourceSnapshotId": taken}
        copied = ec2.copy_snapshot(**given, Encrypted=True, KmsKeyId="alias/a", CompletionDurationMinutes=30)
        ec2.unlock_snapshot(SnapshotId=taken)
        ec2.delete_snapshot(SnapshotId=taken)
        (shown,) = ec2.describe_snapshots()["Snapshots"]
        assert (shown["SnapshotId"], shown["State"]) == (copied["SnapshotId"], "completed")
        assert (shown["VolumeId"], shown["VolumeSize"], shown["Encrypted"]) == ("vol-ffffffff", 1, True)
        assert (shown["KmsKeyId"], shown["CompletionDurationMinutes"]) == ("alias/a", 30)
        assert_refused("InvalidSnapshot.NotFound", ec2.copy_snapshot, **given)
        again = {**given, "SourceSnapshotId": shown["SnapshotId"]}
        assert_refused("InvalidParameterDependency", ec2.copy_snapshot, **again, KmsKeyId="alias/a")
        assert_refused("InvalidParameterValue", ec2.copy_snapshot, **again, CompletionDurationMinutes=7)
        outpost = "arn:aws:outposts:us-east-1:000000000000:outpost/op-1"
        assert_refused("UnsupportedOperation", ec2.copy_snapshot, **again, DestinationOutpostArn=outpost)
        far = {**again, "SourceRegion": "eu-west-1"}
        assert_refused("InvalidParameterValue", ec2.copy_snapshot, **far)
        ec2.create_volume(AvailabilityZone=ZONE, SnapshotId=shown["SnapshotId"], VolumeType="gp3")

    await script(tmp_path, use_ec2)


async def test_a_volume_shows_that_it_was_restored_fast(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        taken = take(ec2)
        both = {"SourceSnapshotIds": [taken], "AvailabilityZones": [ZONE]}
        ec2.enable_fast_snapshot_restores(**both)
        made = ec2.create_volume(AvailabilityZone=ZONE, SnapshotId=taken, VolumeType="gp3")
        assert made["FastRestored"] is True
        far = ec2.create_volume(AvailabilityZone="us-east-1b", SnapshotId=taken, VolumeType="gp3")
        assert far["FastRestored"] is False
        fast = [{"Name": "fast-restored", "Values": ["true"]}]
        assert [v["VolumeId"] for v in ec2.describe_volumes(Filters=fast)["Volumes"]] == [made["VolumeId"]]
        by_zone = [{"Name": "availability-zone-id", "Values": ["use1-az1"]}]
        (shown,) = ec2.describe_fast_snapshot_restores(Filters=by_zone)["FastSnapshotRestores"]
        assert (shown["SnapshotId"], shown["State"]) == (taken, "enabled")
        (off,) = ec2.disable_fast_snapshot_restores(**both)["Successful"]
        assert off["State"] == "disabled"
        assert ec2.describe_fast_snapshot_restores()["FastSnapshotRestores"] == []
        (again,) = ec2.disable_fast_snapshot_restores(**both)["Unsuccessful"]
        assert again["FastSnapshotRestoreStateErrors"][0]["Error"]["Code"] == "IncorrectState"
        nowhere = {"SourceSnapshotIds": [taken], "AvailabilityZones": ["mars-1a"]}
        assert_refused("InvalidZone.NotFound", ec2.enable_fast_snapshot_restores, **nowhere)

    await script(tmp_path, use_ec2)
