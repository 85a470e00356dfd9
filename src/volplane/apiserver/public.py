"""Health, version, metrics, keys: what monitoring and clients ask before anything else. And the trace."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import msgspec

from volplane.base import metrics, trace
from volplane.web import Request, Response

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Go calls them
VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.8-volplane",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": f"python{platform.python_version()}",
    "compiler": platform.python_implementation().lower(),
    "platform": f"linux/{_MACHINES.get(platform.machine(), platform.machine())}",
}
_TEXT = [("Content-Type", "text/plain; charset=utf-8"), ("X-Content-Type-Options", "nosniff")]
_JSON = [("Content-Type", "application/json"), ("Cache-Control", "no-cache, private")]
_HEALTH = ("healthz", "livez", "readyz")


def is_health(path: str) -> bool:
    return path.strip("/").partition("/")[0] in _HEALTH


def health(request: Request, *, ready: bool) -> Response:
    """`/readyz` is yes only after start-up; `?verbose` names what was checked."""
    top, _, check = request.path.strip("/").partition("/")
    healthy = ready or top == "livez"
    if "verbose" in request.query.raw and not check:
        store, verdict = ("[+]store ok", "passed") if healthy else ("[-]store not ready", "failed")
        body = f"[+]ping ok\n{store}\n{top} check {verdict}\n"
        return Response(status=200 if healthy else 500, headers=_TEXT, body=body.encode())
    return Response(status=200 if healthy else 500, headers=_TEXT, body=b"ok" if healthy else b"not ready")


def told(document: Mapping[str, Any], media_type: str) -> Response:
    """What those who check tokens by themselves need; they may keep it for an hour."""
    headers = [("Content-Type", media_type), ("Cache-Control", "public, max-age=3600")]
    return Response(status=200, headers=headers, body=msgspec.json.encode(document))


def measured() -> Response:
    return Response(status=200, headers=[("Content-Type", metrics.CONTENT_TYPE)], body=metrics.render())


def traced(request: Request) -> Response:
    """`/debug/trace?subject=pvc/default/data&since=<monotonic ns>`: the newest steps of this process.

    For the benchmark and for whoever looks for lost time; not part of any API. Only `system:masters` may.
    """
    since = request.query.get("since")
    after = int(since) if since.isdecimal() else 0
    spans = [span for span in trace.spans(request.query.get("subject")) if span.start >= after]
    return Response(status=200, headers=_JSON, body=msgspec.json.encode(spans, enc_hook=str))
