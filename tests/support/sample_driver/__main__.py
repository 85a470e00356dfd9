"""`python -m tests.support.sample_driver ENDPOINT DIRECTORY NODE [MUTANT]`: run it as a process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from tests.support.sample_driver.mutants import MUTANTS
from volplane import sdk


async def main(endpoint: str, directory: str, node: str, mutant: str = "none") -> None:
    serving = asyncio.ensure_future(
        sdk.serve(MUTANTS[mutant](directory, node), endpoint.removeprefix("unix://"))
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
