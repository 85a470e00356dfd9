"""The calls of other processes, as their files tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.csi import v1
from volplane.csi.call_recorder import CallRecorder, CallRecordReader
from volplane.csi.outcome import CallError, Code

REQUEST = v1.NodeStageVolumeRequest(volume_id="v", secrets={"key": "sesame"})


async def fine() -> v1.NodeStageVolumeResponse:
    return v1.NodeStageVolumeResponse()


async def test_a_call_is_read_back_with_its_end(tmp_path: Path) -> None:
    recorder, reader = CallRecorder(str(tmp_path / "node.calls")), CallRecordReader(tmp_path)
    await recorder.intercept("NodeStageVolume", "kubelet", "/s", REQUEST, fine)
    [call] = reader.read_new_calls()
    assert (call.method, call.caller, call.address, call.code) == ("NodeStageVolume", "kubelet", "/s", "OK")
    assert call.end >= call.start
    assert "sesame" not in (tmp_path / "node.calls").read_text()
    assert reader.read_new_calls() == []
    assert recorder.calls == []


async def test_a_call_under_way_is_completed_when_it_ends(tmp_path: Path) -> None:
    recorder, reader = CallRecorder(str(tmp_path / "node.calls")), CallRecordReader(tmp_path)
    seen = []

    async def refuses() -> None:
        seen.extend(reader.read_new_calls())
        raise CallError(Code.INTERNAL, "disk on fire")

    with pytest.raises(CallError):
        await recorder.intercept("NodeStageVolume", "kubelet", "/s", REQUEST, refuses)
    [call] = seen
    assert (call.code, call.end) == ("", 0.0)
    assert reader.read_new_calls() == []
    assert (call.code, call.message) == ("INTERNAL", "disk on fire")


async def test_a_call_whose_caller_was_killed_says_so(tmp_path: Path) -> None:
    first, reader = CallRecorder(str(tmp_path / "node.calls")), CallRecordReader(tmp_path)
    first._record_call("NodeStageVolume", "kubelet", "/s", REQUEST)  # and here it dies
    [call] = reader.read_new_calls()
    assert call.note == ""
    await CallRecorder(str(tmp_path / "node.calls")).intercept(
        "NodeStageVolume", "kubelet", "/s", REQUEST, fine
    )
    assert len(reader.read_new_calls()) == 1
    assert (call.note, call.code) == ("its caller was killed", "")


async def test_calls_of_several_files_come_in_order(tmp_path: Path) -> None:
    one, two = CallRecorder(str(tmp_path / "b.calls")), CallRecorder(str(tmp_path / "a.calls"))
    for recorder, name in ((one, "first"), (two, "second"), (one, "third")):
        await recorder.intercept("NodeStageVolume", name, "/s", REQUEST, fine)
    assert [call.caller for call in CallRecordReader(tmp_path).read_new_calls()] == [
        "first",
        "second",
        "third",
    ]
