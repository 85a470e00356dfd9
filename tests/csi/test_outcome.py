"""Every code has a class; uncertain ones are exactly those of the contract."""

from __future__ import annotations

import pytest

from volplane.csi.outcome import (
    CallError,
    CallOutcome,
    Code,
    ProvisioningOutcome,
    classify,
    classify_provisioning,
    is_infeasible,
)

UNSETTLED = {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED, Code.ABORTED, Code.UNAVAILABLE}


@pytest.mark.parametrize("code", [c for c in Code if c is not Code.OK])
def test_a_code_is_final_unless_the_call_may_still_run(code: Code) -> None:
    assert classify(CallError(code)).is_final == (code not in UNSETTLED)


def test_aborted_is_busy_and_a_foreign_error_uncertain() -> None:
    assert classify(CallError(Code.ABORTED)) is CallOutcome.BUSY
    assert classify(OSError("broken pipe")) is CallOutcome.UNCERTAIN


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CallError(Code.INVALID_ARGUMENT), ProvisioningOutcome.INFEASIBLE),
        (CallError(Code.RESOURCE_EXHAUSTED), ProvisioningOutcome.EXHAUSTED),
        (CallError(Code.ABORTED), ProvisioningOutcome.BACKGROUND),
        (CallError(Code.UNAVAILABLE), ProvisioningOutcome.BACKGROUND),
        (CallError(Code.INTERNAL), ProvisioningOutcome.FINAL),
        (ConnectionResetError(), ProvisioningOutcome.BACKGROUND),
    ],
)
def test_the_provisioner_has_its_own_table(error: Exception, expected: ProvisioningOutcome) -> None:
    assert classify_provisioning(error) is expected


def test_sizes_that_can_never_be_reached() -> None:
    infeasible = {c for c in Code if is_infeasible(CallError(c))}
    assert infeasible == {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND}


def test_errors_read_as_go_prints_them() -> None:
    assert str(CallError(Code.NOT_FOUND, "no disk")) == "rpc error: code = NotFound desc = no disk"
    assert str(CallError(Code.CANCELLED, "x")) == "rpc error: code = Canceled desc = x"
    assert str(CallError(Code.DEADLINE_EXCEEDED, "x")) == "rpc error: code = DeadlineExceeded desc = x"
