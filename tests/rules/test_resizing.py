"""The state of an expansion on a claim, and patches of its conditions."""

from __future__ import annotations

from typing import Any

from volplane.api import codec
from volplane.api.core import PersistentVolumeClaim
from volplane.rules import resizing
from volplane.rules.resizing import ResizeState


def claim(**status: Any) -> PersistentVolumeClaim:
    return codec.convert(PersistentVolumeClaim, {"status": status})


def test_the_state_is_read_from_the_status() -> None:
    assert resizing.state(claim()) is ResizeState.NONE
    pending = claim(allocatedResourceStatuses={"storage": "NodeResizePending"})
    assert resizing.state(pending) is ResizeState.NODE_PENDING
    newer = claim(allocatedResourceStatuses={"storage": "SomethingNew"})
    assert resizing.state(newer) is ResizeState.NONE


def test_sizes() -> None:
    sized = claim(capacity={"storage": "1Gi"}, allocatedResources={"storage": "2Gi"})
    assert (resizing.actual_size(sized), resizing.allocated_size(sized)) == (1 << 30, 2 << 30)
    assert (resizing.actual_size(claim()), resizing.allocated_size(claim())) == (0, None)


def test_only_conditions_that_change_are_patched() -> None:
    there = claim(
        conditions=[
            {"type": "Resizing", "status": "True"},
            {"type": "ControllerResizeError", "status": "True", "message": "no room"},
        ]
    )
    assert resizing.has_condition(there, "Resizing")
    assert not resizing.has_condition(there, "FileSystemResizePending")
    same = {"type": "Resizing", "status": "True"}
    assert resizing.conditions(there, [same]) == []
    ended = {"type": "Resizing", "status": "False"}
    assert resizing.conditions(there, [ended]) == [ended]
    new = {"type": "FileSystemResizePending", "status": "True"}
    dropped = resizing.conditions(there, [new], drop=resizing.CONDITIONS)
    assert dropped[-1] == new
    assert {"$patch": "delete", "type": "ControllerResizeError"} in dropped
    kept = resizing.conditions(there, [same], drop=["Resizing"])
    assert kept == []
