"""Long socket paths."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from volplane.base.sockets import LONGEST, short_path


def test_a_short_path_is_left_alone() -> None:
    with short_path("/run/csi.sock") as short:
        assert short == "/run/csi.sock"


def test_a_long_path_is_bound_and_connected_through_its_directory(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory-with-a-long-name"] * 6)
    deep.mkdir(parents=True)
    path = str(deep / "csi.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with short_path(path) as short:
            assert len(short) <= LONGEST
            server.bind(short)
        server.listen()
        with short_path(path) as short:
            client.connect(short)
    assert Path(path).is_socket()


def test_a_name_that_is_itself_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="socket name too long"), short_path(str(tmp_path / ("x" * 120))):
        pass
