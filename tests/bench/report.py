"""The results as a table and as a file."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sysconfig
import time
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

# What the same steps take with Kubernetes v1.35.8 (kubelet, containerd, csi-driver-host-path, default
# settings) on one machine of this size.
_HEAD = ("", "median", "p95", "aim", "", "upstream", "ratio", "x floor")
_RATES = ("/s", "pods/s")  # units of which more is better


class Figure(Struct, frozen=True, kw_only=True):
    key: str  # a, b, c …
    name: str
    unit: str  # ms, s, MB, pods/s, kB
    samples: tuple[float, ...]
    aim: float | None = None
    upstream: float | None = None
    stages: dict[str, tuple[float, ...]] = {}  # when each stage was done, in their order
    shares: dict[str, tuple[float, ...]] = {}  # milliseconds in which each of these was in progress
    floor: str = ""  # the figure that this one is compared with

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def ratio(self) -> float | None:
        """How many times better than upstream."""
        if not self.upstream or not self.median:
            return None
        return self.median / self.upstream if self.unit in _RATES else self.upstream / self.median

    @property
    def p95(self) -> float:
        return percentile(self.samples, 0.95)


def percentile(samples: Sequence[float], part: float) -> float:
    """The percentile of the samples."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -int(-part * len(ordered) // 1) - 1))]


def table(figures: Sequence[Figure]) -> str:
    floors = {figure.name: figure.median for figure in figures}
    rows: list[Sequence[str]] = [_HEAD]
    for figure in figures:
        rows.append(_row(figure, floors))
        rows.extend(_stages(figure))
        rows.extend(_shares(figure))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
    return "  ".join(cells).rstrip()


def _row(figure: Figure, floors: dict[str, float]) -> tuple[str, ...]:
    aim = "" if figure.aim is None else _number(figure.aim, figure.unit)
    verdict = "" if figure.aim is None else "✓" if figure.median <= figure.aim else "✗"
    upstream = "" if figure.upstream is None else _number(figure.upstream, figure.unit)
    floor = floors.get(figure.floor)
    ratio = "" if not floor else f"{figure.median / floor:.1f}"
    p95 = _number(figure.p95, figure.unit) if len(figure.samples) > 1 else ""
    name = f"({figure.key}) {figure.name}"
    better = f"{figure.ratio:.1f}x" if figure.ratio is not None else ""
    return name, _number(figure.median, figure.unit), p95, aim, verdict, upstream, better, ratio


def _stages(figure: Figure) -> Iterable[tuple[str, ...]]:
    before = 0.0
    medians = {name: statistics.median(times) for name, times in figure.stages.items()}
    for name, at in sorted(medians.items(), key=lambda item: item[1]):
        yield (f"      {name}", _number(at, "ms"), "", "", "", "", "", f"+{at - before:.1f}")
        before = at


def _shares(figure: Figure) -> Iterable[tuple[str, ...]]:
    whole = figure.median * (1000 if figure.unit == "s" else 1)
    for name, times in figure.shares.items():
        if (spent := statistics.median(times)) == 0:
            continue
        yield (f"      of it: {name}", _number(spent, "ms"), "", "", "", "", "", f"{spent / whole:.0%}")


def _number(value: float, unit: str) -> str:
    digits = 2 if unit == "s" else 0 if unit in ("MB", "kB", "pods/s") else 1
    return f"{value:.{digits}f} {unit}"


def machine() -> dict[str, object]:
    """Place, time and load of the measurement."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "python": describe_interpreter(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
    }


def describe_interpreter() -> str:
    """`CPython 3.11.2 (GCC 12.2.0, -O2)`, with PGO and LTO if it was built so: figures depend on that."""
    flags = " ".join(
        str(sysconfig.get_config_var(name)) for name in ("CONFIG_ARGS", "PY_CORE_CFLAGS")
    ).split()
    built = list(filter(flags.__contains__, ("-O2", "-O3")))[-1:]
    named = (("enable-optimizations", "PGO"), ("-fprofile-use", "PGO"), ("with-lto", "LTO"), ("-flto", "LTO"))
    built += dict.fromkeys(word for option, word in named if any(option in flag for flag in flags))
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{version} ({', '.join([platform.python_compiler(), *built])})"


def _commit() -> str:
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def document(figures: Sequence[Figure], facts: dict[str, object]) -> bytes:
    """Everything, samples included."""
    rows = [
        {
            **msgspec.to_builtins(figure),
            "median": figure.median,
            "p95": figure.p95,
            "share_medians": {name: statistics.median(times) for name, times in figure.shares.items()},
            "stage_medians": {name: statistics.median(times) for name, times in figure.stages.items()},
        }
        for figure in figures
    ]
    return msgspec.json.format(msgspec.json.encode({"machine": facts, "figures": rows}), indent=2) + b"\n"
