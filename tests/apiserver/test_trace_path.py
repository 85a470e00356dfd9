"""What the process did, told over HTTPS: for the benchmark, and for whoever looks for lost time."""

from __future__ import annotations

import time
from typing import Any

from tests.apiserver.conftest import client_of

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def _claim(name: str) -> dict[str, object]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}


async def test_the_trace_tells_the_steps_of_one_object_since_a_moment(served: Any) -> None:
    async with served() as api:
        assert (await api.post(CLAIMS, _claim("before"))).status == 201
        moment = time.monotonic_ns()
        assert (await api.post(CLAIMS, _claim("after"))).status == 201
        told = await api.get(f"/debug/trace?subject=pvc/default/&since={moment}")
        (span,) = told.json
        assert (span["component"], span["step"], span["subject"]) == (
            "apiserver",
            "create",
            "pvc/default/after",
        )
        assert moment <= span["start"] <= span["end"] <= time.monotonic_ns()


async def test_the_trace_is_for_the_administrator_alone(served: Any) -> None:
    async with served() as api:
        pair = api.server.authority.client("client-somebody", "somebody", ())
        http = client_of(api.server, pair=pair)
        assert (await http.request("GET", "/debug/trace")).status == 403
        await http.close()
