"""Health, version, metrics, keys: what monitoring and clients ask before anything else. And the trace."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import msgspec

from volplane.api.errors import NotFound
from volplane.base import metrics, trace
from volplane.web import Request, Response

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Go calls them
VERSION = {
    "major": "1",
    "minor": "35",
    "emulationMajor": "1",
    "emulationMinor": "35",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "34",
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
CHECKS = ("ping", "log", "etcd")  # by the names that monitoring asks for; etcd is the store, whatever it is
_ALWAYS_WELL = frozenset({"ping", "log"})  # of whoever answers at all


def is_health(path: str) -> bool:
    return path.strip("/").partition("/")[0] in _HEALTH


def health(request: Request, *, ready: bool) -> Response:
    """`/readyz` is yes only after start-up; `?verbose` names what was checked; `/readyz/etcd` is one."""
    top, _, check = request.path.strip("/").partition("/")
    healthy = ready or top == "livez"
    if check:
        if check not in CHECKS:
            raise NotFound.path()
        healthy = healthy or check in _ALWAYS_WELL
    elif "verbose" in request.query.raw or not healthy:
        return Response(status=200 if healthy else 500, headers=_TEXT, body=_checked(request, top, healthy))
    return Response(status=200 if healthy else 500, headers=_TEXT, body=b"ok" if healthy else b"not ready")


def _checked(request: Request, top: str, healthy: bool) -> bytes:
    left_out = request.query.all("exclude")
    lines = []
    for check in CHECKS:
        if check in left_out:
            lines.append(f"[+]{check} excluded: ok")
        else:
            well = healthy or check in _ALWAYS_WELL
            lines.append(f"[+]{check} ok" if well else f"[-]{check} failed: reason withheld")
    if unknown := [name for name in left_out if name not in CHECKS]:
        quoted = ", ".join(f'"{name}"' for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    lines.append(f"{top} check {'passed' if healthy else 'failed'}")
    return "".join(f"{line}\n" for line in lines).encode()


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
