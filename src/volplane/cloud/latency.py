"""Simulates the latency of a real cloud, between an intent and its effect."""

from __future__ import annotations

import asyncio
from random import Random

from volplane.rules import latency


class LatencySimulator:
    def __init__(self, profile: str = "", seed: int = 0) -> None:
        self._profile, self._random = latency.check_profile(profile), Random(seed)

    async def simulate(self, action: str, volume_type: str = "") -> None:
        seconds = latency.seconds(self._profile, action, self._random.random(), volume_type)
        if seconds:
            await asyncio.sleep(seconds)
