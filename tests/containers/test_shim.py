"""The shim between its go-ahead and the command, when the node ends."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from volplane.node.containers.base import KILLED
from volplane.node.containers.launcher import shim as shim_module
from volplane.node.containers.launcher.shim import Shim


@pytest.fixture
def first_process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def run_command_without_node(pid: int, begin: Callable[[int], None]) -> object:
    """`begin` gets the end of the pipe by which pid 1 reports; closing it says that the command runs."""
    shim = Shim.__new__(Shim)
    shim.pid = pid
    shim.report, reporting = os.pipe()
    shim.control, theirs = socket.socketpair()
    reply, node = socket.socketpair()
    node.close()
    with closing(theirs), closing(reply):
        thread = threading.Thread(target=begin, args=(reporting,))
        thread.start()
        try:
            return shim._run_command({"command": [], "args": []}, reply)
        finally:
            thread.join()


def test_a_command_that_begins_when_its_node_has_just_ended_goes_on(
    first_process: subprocess.Popen[bytes],
) -> None:
    def begin(reporting: int) -> None:
        threading.Event().wait(0.1)
        os.close(reporting)

    assert run_command_without_node(first_process.pid, begin) == {}
    assert first_process.poll() is None


def test_a_command_that_does_not_begin_is_killed_when_its_node_has_ended(
    first_process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim_module, "_EXEC_PATIENCE", 10)

    def hang(reporting: int) -> None:
        os.waitid(os.P_PID, first_process.pid, os.WEXITED | os.WNOWAIT)
        os.close(reporting)

    failure = run_command_without_node(first_process.pid, hang)
    assert isinstance(failure, dict)
    assert failure["code"] == KILLED
