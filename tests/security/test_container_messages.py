"""What a container leaves for the node to read: never more than its own last words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from volplane.node.pods.container_spec import LONGEST_MESSAGE, _make_message_file, _read_message

SECRET = "of the machine\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


MADE: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda path, secret: path.symlink_to(secret),
    "link-to-nowhere": lambda path, secret: path.symlink_to(secret.parent / "new"),
    "pipe": lambda path, secret: os.mkfifo(path),
    "directory": lambda path, secret: path.mkdir(),
    "link-to-a-descriptor": lambda path, secret: path.symlink_to("/proc/self/fd/0"),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_last_words_are_read_from_a_file_only(
    tmp_path: Path, secret: Path, make: Callable[[Path, Path], None]
) -> None:
    place = tmp_path / "words"
    make(place, secret)
    assert _read_message(str(place)) == ""
    with pytest.raises(OSError, match="words"):
        _make_message_file(str(place))
    assert secret.read_text() == SECRET
    assert secret.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "new").exists()


def test_last_words_are_read_to_their_limit(tmp_path: Path) -> None:
    place = tmp_path / "words"
    _make_message_file(str(place))
    assert place.stat().st_mode & 0o777 == 0o666
    place.write_bytes(b"\xff" + b"x" * 2 * LONGEST_MESSAGE)
    assert _read_message(str(place)) == "\N{REPLACEMENT CHARACTER}" + "x" * (LONGEST_MESSAGE - 1)
