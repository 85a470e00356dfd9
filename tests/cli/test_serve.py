"""The exception handler of the event loop."""

from __future__ import annotations

import asyncio

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
