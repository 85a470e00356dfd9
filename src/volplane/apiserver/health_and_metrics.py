"""Health checks, version, metrics, OpenID keys, and the debug trace."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import msgspec
from msgspec import structs

from volplane.api.errors import NotFound
from volplane.apiserver import cpu_offload
from volplane.apiserver.start_progress import READY_CHECKS, START_CHECKS, StartProgress
from volplane.base import metrics
from volplane.base.trace import Trace
from volplane.store import Store, StoreError
from volplane.web import Request, Response

log = logging.getLogger(__name__)

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # GOARCH
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
# Upstream's check names; "etcd" stands for any store. A server without its store must get no requests, but a
# restart would not help, so /livez does not check the store.
STORE, SHUTDOWN = "etcd", "shutdown"
CHECKS = {
    "healthz": ("ping", "log", STORE, *START_CHECKS),
    "livez": ("ping", "log", *START_CHECKS),
    "readyz": ("ping", "log", STORE, *READY_CHECKS, *START_CHECKS, SHUTDOWN),
}


class ServerHealth:
    """The state of the server; the store is checked on each request."""

    def __init__(self, store: Store, progress: StartProgress) -> None:
        self._store = store
        self._progress = progress
        self.closing = False
        self._logged = ""  # the store's last error, to log changes only

    async def failures(self, names: Iterable[str]) -> dict[str, str]:
        """Return the failing checks among these, with their reasons."""
        names = set(names)
        found = {}
        if STORE in names and (why := await self._store_failure()):
            found[STORE] = why
        found |= self._progress.find_unfinished(names)
        if SHUTDOWN in names and self.closing:
            found[SHUTDOWN] = "process is shutting down"
        return found

    async def _store_failure(self) -> str:
        try:
            await self._store.check()
            why = ""
        except StoreError as error:
            why = str(error)
        if why != self._logged:
            log.warning("not ready: store check failed: %s", why) if why else log.info(
                "store check passes again"
            )
            self._logged = why
        return why


def is_health_path(path: str) -> bool:
    return path.strip("/").partition("/")[0] in _HEALTH


async def health_response(request: Request, state: ServerHealth) -> Response:
    """Serve health checks: `?verbose` lists all checks, `/readyz/etcd` runs a single one."""
    top, _, one = request.path.strip("/").partition("/")
    checks = CHECKS[top]
    if one:
        if one not in checks:
            raise NotFound.path()
        failed = await state.failures((one,))
        body = f"internal server error: {failed[one]}\n" if failed else "ok"
        return Response(status=500 if failed else 200, headers=_TEXT, body=body.encode())
    left_out = frozenset(request.query.all("exclude"))
    # A server that starts is alive.
    left_to_check = set(checks) - left_out - (START_CHECKS.keys() if top == "livez" else set())
    failed = await state.failures(left_to_check)
    verbose = failed or "verbose" in request.query.raw
    body = _verbose_report(top, checks, left_out, failed) if verbose else "ok"
    return Response(status=500 if failed else 200, headers=_TEXT, body=body.encode())


def _verbose_report(top: str, checks: Sequence[str], left_out: Set[str], failed: Mapping[str, str]) -> str:
    lines = []
    for check in checks:
        if check in left_out:
            lines.append(f"[+]{check} excluded: ok")
        else:  # anonymous users may ask, so the reason is only logged
            lines.append(f"[-]{check} failed: reason withheld" if check in failed else f"[+]{check} ok")
    if unknown := sorted(left_out - set(checks)):
        quoted = ", ".join(f'"{name}"' for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    lines.append(f"{top} check {'failed' if failed else 'passed'}")
    return "".join(f"{line}\n" for line in lines)


def cacheable_json_response(document: Mapping[str, Any], media_type: str) -> Response:
    """Return a JSON document for token verifiers, which may cache it for an hour."""
    headers = [("Content-Type", media_type), ("Cache-Control", "public, max-age=3600")]
    return Response(status=200, headers=headers, body=msgspec.json.encode(document))


async def metrics_response() -> Response:
    """Return all metrics. Rendering takes up to 50 ms, so it runs in the worker thread."""
    text = await cpu_offload.run(cpu_offload.LARGE + 1, [], metrics.prepare())
    return Response(status=200, headers=[("Content-Type", metrics.CONTENT_TYPE)], body=text)


def trace_response(trace: Trace, request: Request) -> Response:
    """`/debug/trace?subject=pvc/default/data&since=<monotonic ns>`: the newest trace spans of this cluster.

    For benchmarks and performance analysis; not part of any API. Only for `system:masters`.
    """
    since = request.query.get("since")
    after = int(since) if since.isdecimal() and len(since) < 20 else 0
    spans = [span for span in trace.spans(request.query.get("subject")) if span.start >= after]
    named = [structs.asdict(span) for span in spans]
    return Response(status=200, headers=_JSON, body=msgspec.json.encode(named, enc_hook=str))
