"""The exception handler of the event loop, and signals."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from volplane.cli.serve import handle_loop_exception

CLOSED = "unable to perform operation on <TCPTransport closed=True reading=False 0x1>; the handler is closed"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(CLOSED), False),
        (RuntimeError("unable to perform operation on something else"), True),
        (ValueError(CLOSED), True),
        (None, True),
    ],
)
async def test_a_connection_that_both_ends_close_is_no_news(
    error: Exception | None, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(handle_loop_exception)
    context = {"message": "Fatal error on SSL protocol"} | ({"exception": error} if error else {})
    loop.call_exception_handler(context)
    assert any(record.levelname == "ERROR" for record in caplog.records) is said


SERVER = """
import asyncio, sys
from volplane.cli.serve import serve

async def work(stop):
    print("serving", flush=True)
    await stop.wait()
    print("cleaning up", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("clean", flush=True)

serve(work)
"""


@pytest.mark.parametrize(
    ("second", "code", "last"), [(signal.SIGTERM, 0, "clean\n"), (signal.SIGINT, 130, "")]
)
def test_only_a_second_ctrl_c_exits_without_cleanup(second: signal.Signals, code: int, last: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "serving\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "cleaning up\n"
        process.send_signal(second)
        if second is signal.SIGTERM:
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == last
        assert process.wait() == code
