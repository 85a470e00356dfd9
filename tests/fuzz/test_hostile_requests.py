"""Hostile requests to one server: each gets a 4xx, none stalls the event loop or exhausts memory.

`VOLPLANE_FUZZ_REQUESTS=10000` sends ten thousand requests; `VOLPLANE_FUZZ_SEED` selects other ones.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.hostile import HostileRequests, list_endpoints
from tests.fuzz.model import AS_UPSTREAM
from tests.support.event_loop_probe import Answer, MeasuredServer, resident
from volplane.base import memory
from volplane.store.sqlite import SqliteStore

pytestmark = pytest.mark.slow

REQUESTS = int(os.environ.get("VOLPLANE_FUZZ_REQUESTS", "1500"))
SEED = int(os.environ.get("VOLPLANE_FUZZ_SEED", "14"))
WARM_UP = 200  # requests after which the server's memory is stable
LONGEST = 0.05  # seconds of CPU time in one callback
GROWTH = 192 << 20  # bytes of memory


class Figures:
    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []
        self.as_upstream: Counter[str] = Counter()
        self.longest, self.culprit = 0.0, ""
        self.start = self.end = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.statuses.total()} requests (seed {SEED}): {counts}; {len(self.failures)} unexpected 5xx "
            f"(as upstream's: {dict(self.as_upstream)}); "
            f"longest callback {self.longest * 1000:.1f} ms of CPU time; "
            f"memory {self.start >> 20} MiB -> {self.end >> 20} MiB"
        )


def is_upstream_message(answer: Answer) -> str:
    """Return whether upstream also answers this error with a 500."""
    try:
        message = str(json.loads(answer.body).get("message"))
    except ValueError:
        return ""
    return next((words for words in AS_UPSTREAM if message.startswith(words)), "")


def test_hostile_requests_get_4xx_and_do_not_stall_the_server(tmp_path: Path) -> None:
    memory.tune_garbage_collector()  # as `volplane` does
    figures = Figures()
    with MeasuredServer(tmp_path, lambda: SqliteStore.open(tmp_path / "state.db")) as server:

        def get(path: str) -> Any:
            return server.request("GET", path).json

        server.request(
            "POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}}
        )
        hostile = HostileRequests(SEED, list_endpoints(get))
        for request in hostile.first():
            server.send(request.method, request.path, request.body, request.headers)
        for number in range(REQUESTS):
            request = hostile.request()
            server.probe.take()
            answer = server.send(request.method, request.path, request.body, request.headers)
            figures.statuses[answer.status] += 1
            longest, culprit = server.probe.take()
            if longest > figures.longest:
                figures.longest, figures.culprit = longest, f"{culprit} of {request}"
            if answer.status >= 500 and request.method == "HEAD":  # which does not say why
                answer = server.send("GET", request.path, None, request.headers)
            if answer.status >= 500 and (words := is_upstream_message(answer)):
                figures.as_upstream[words] += 1
            elif answer.status >= 500:
                figures.failures.append(f"{answer.status} {answer.body[:500]!r} to {request}")
            if number == WARM_UP:
                memory.release_memory()
                figures.start = resident()
        memory.release_memory()
        figures.end = resident()
    print(f"\n{figures}\nthe longest: {figures.culprit[:1000]}")
    assert not figures.failures, "\n".join([str(figures), *figures.failures[:20]])
    assert figures.longest < LONGEST, f"{figures}\n{figures.culprit}"
    assert figures.end - figures.start < GROWTH, str(figures)
    # Some requests must succeed, otherwise little is tested.
    assert figures.statuses[200] + figures.statuses[201] > REQUESTS // 20, str(figures)
