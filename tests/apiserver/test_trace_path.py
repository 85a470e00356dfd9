"""/debug/trace: the trace spans of the process, for benchmarks and performance analysis."""

from __future__ import annotations

import time
from typing import Any

from tests.apiserver.conftest import client_of

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def _claim(name: str) -> dict[str, object]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}


async def test_the_trace_shows_the_steps_of_one_object_since_a_time(served: Any) -> None:
    async with served() as api:
        assert (await api.post(CLAIMS, _claim("before"))).status == 201
        moment = time.monotonic_ns()
        assert (await api.post(CLAIMS, _claim("after"))).status == 201
        spans = await api.get(f"/debug/trace?subject=pvc/default/&since={moment}")
        (span,) = spans.json
        assert (span["component"], span["step"], span["subject"]) == (
            "apiserver",
            "create",
            "pvc/default/after",
        )
        assert moment <= span["start"] <= span["end"] <= time.monotonic_ns()


async def test_only_the_administrator_may_read_the_trace(served: Any) -> None:
    async with served() as api:
        pair = api.server.authority.client("client-somebody", "somebody", ())
        http = client_of(api.server, pair=pair)
        assert (await http.request("GET", "/debug/trace")).status == 403
        await http.close()
