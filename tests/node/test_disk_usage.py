"""How much of the node's disk a directory uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from volplane.node.eviction import usage


def test_a_file_that_is_removed_meanwhile_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    listed = usage._list_entries

    def list_then_remove(directory: str) -> list[os.DirEntry[str]]:
        entries = listed(directory)
        os.unlink(entries[0].path)
        return entries

    monkeypatch.setattr(usage, "_list_entries", list_then_remove)
    found = usage._amount(str(tmp_path))
    assert (found.inodes, found.size) == (2, 2 * 4096)


def test_hard_links_count_once_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"x" * 4096)
    os.link(tmp_path / "below" / "file", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    assert usage._amount(str(tmp_path)).inodes == 3
