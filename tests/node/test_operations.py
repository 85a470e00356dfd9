"""Which operation may start, and how long a failed one waits."""

from __future__ import annotations

import pytest

from volplane.node.operations import OperationKey, PendingOperations

LONGEST = 122.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(operations: PendingOperations, key: OperationKey, name: str) -> None:
    with pytest.raises(RuntimeError), operations.running(key, name):
        raise RuntimeError("no")


def test_a_mount_excludes_every_unmount_of_the_volume() -> None:
    operations = PendingOperations(Clock(), LONGEST)
    with operations.running(OperationKey("v"), "volume_mount"):
        assert operations.is_running(OperationKey("v", "a"))
        assert not operations.is_running(OperationKey("w", "a"))
    assert not operations.is_running(OperationKey("v", "a"))


def test_unmounts_of_two_pods_run_side_by_side() -> None:
    operations = PendingOperations(Clock(), LONGEST)
    with operations.running(OperationKey("v", "a"), "volume_unmount"):
        assert not operations.is_running(OperationKey("v", "b"))
        assert operations.is_running(OperationKey("v"))


def test_backoff_doubles_up_to_its_limit() -> None:
    clock = Clock()
    operations, delays = PendingOperations(clock, LONGEST), []
    for _ in range(10):
        fail(operations, OperationKey("v"), "volume_mount")
        delays.append(operations.delay(OperationKey("v"), "volume_mount"))
        clock.now += delays[-1]
        assert operations.delay(OperationKey("v"), "volume_mount") == 0
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 64, LONGEST, LONGEST]


def test_a_limit_below_the_first_pause_is_the_first_pause() -> None:
    operations = PendingOperations(Clock(), 0.1)
    for _ in range(2):
        fail(operations, OperationKey("v"), "volume_mount")
        assert operations.delay(OperationKey("v"), "volume_mount") == pytest.approx(0.1)


def test_another_operation_does_not_wait_and_ends_the_backoff_by_succeeding() -> None:
    operations = PendingOperations(Clock(), LONGEST)
    fail(operations, OperationKey("v"), "volume_mount")
    fail(operations, OperationKey("v"), "volume_mount")
    assert operations.delay(OperationKey("v", "a"), "volume_unmount") == 0
    fail(operations, OperationKey("v", "a"), "volume_unmount")
    assert operations.delay(OperationKey("v", "a"), "volume_unmount") == 0.5
    assert operations.delay(OperationKey("v"), "volume_mount") == 1
    with operations.running(OperationKey("v", "a"), "volume_unmount"):
        pass
    assert operations.delay(OperationKey("v"), "volume_mount") == 0


def test_two_operations_that_both_fail_do_not_drive_each_other_round() -> None:
    clock = Clock()
    operations, tries = PendingOperations(clock, LONGEST), 0
    wanted = ((OperationKey("v", "a"), "volume_unmount"), (OperationKey("v"), "volume_mount"))
    for _ in range(100):
        for key, name in wanted:
            if operations.delay(key, name) == 0:
                fail(operations, key, name)
                tries += 1
    assert tries == 2


def test_success_forgets_the_failure() -> None:
    operations = PendingOperations(Clock(), LONGEST)
    fail(operations, OperationKey("v"), "volume_mount")
    with operations.running(OperationKey("v"), "volume_mount"):
        pass
    assert operations.failure(OperationKey("v"), "volume_mount") is None
