"""Ten thousand random operations, and `kill -9` in between: state and files agree, no byte has changed."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from pathlib import Path

import pytest

from volplane.host import devices

pytestmark = [pytest.mark.root, pytest.mark.slow]

OPERATIONS, KILLS = 10_000, 12
WORKER = Path(__file__).with_name("worker.py")


async def run(directory: Path, seed: int, lines: int) -> tuple[int, str]:
    """One life of the service: until all is done, or until it is killed after so many lines of journal."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, WORKER, directory, str(seed), str(OPERATIONS)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    journal = directory / "journal"

    async def kill() -> None:
        assert process.stdout is not None
        if await process.stdout.readline() != b"agreed\n":
            return
        start = journal.stat().st_size
        while process.returncode is None and journal.stat().st_size < start + lines * 60:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)

    killing = asyncio.create_task(kill()) if lines else None
    assert process.stderr is not None
    errors = (await process.stderr.read()).decode()
    code = await process.wait()
    if killing:
        await killing
    return code, errors


async def test_ten_thousand_operations_and_a_dozen_kills(tmp_path: Path) -> None:
    chance = random.Random(7)
    try:
        kills = await lives(tmp_path, chance)
    finally:
        left = {d: f for d, f in devices.loops().items() if f.startswith(str(tmp_path))}
        for device, file in left.items():
            devices.loop_detach(device, file)
    assert kills > KILLS // 2
    assert not left
    ends = sum('"end"' in line for line in (tmp_path / "journal").read_text().splitlines())
    assert ends >= OPERATIONS


async def lives(directory: Path, chance: random.Random) -> int:
    kills = 0
    for seed in range(KILLS):
        code, errors = await run(directory, seed, chance.randrange(100, 1400))
        assert code in (0, -signal.SIGKILL), errors
        kills += code == -signal.SIGKILL
    code, errors = await run(directory, KILLS, 0)
    assert code == 0, errors
    return kills
