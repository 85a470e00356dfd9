"""Records of volumes that a kubelet has attached itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from volplane.volumes.flex import attach_record
from volplane.volumes.flex.attach_record import AttachRecord


def test_a_record_is_read_listed_and_removed(tmp_path: Path) -> None:
    directory = str(tmp_path / "attached")
    assert attach_record.read(directory, "pv-1") is None
    assert attach_record.list_names(directory) == []
    attach_record.write(directory, "pv-1", AttachRecord())
    assert attach_record.read(directory, "pv-1") == AttachRecord(attached=False)
    attach_record.write(directory, "pv-1", AttachRecord(True, "/dev/vdb"))
    assert attach_record.read(directory, "pv-1") == AttachRecord(True, "/dev/vdb")
    assert attach_record.list_names(directory) == ["pv-1"]
    attach_record.remove(directory, "pv-1")
    attach_record.remove(directory, "pv-1")
    assert attach_record.list_names(directory) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"attached": 1}'])
def test_a_record_that_cannot_be_decoded_still_tells_that_attach_was_called(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "pv-1.json").write_text(content)
    assert attach_record.read(str(tmp_path), "pv-1") == AttachRecord(attached=False)
    assert attach_record.list_names(str(tmp_path)) == ["pv-1"]
