"""What a driver's containers say in a cluster: the ends of their logs, by pod and node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from volplane.node.containers import records
from volplane.testing.kill_driver import NAME

MAX_BYTES = 4000  # characters of one pod

Roots = Mapping[str, Path]  # the nodes' directories, by name


def log_sizes(roots: Roots) -> dict[str, int]:
    """Of all logs that there are, in bytes."""
    return {str(file): file.stat().st_size for _, file in _files(roots)}


def read_logs(roots: Roots, since: Mapping[str, int]) -> dict[str, str]:
    """What has come to them, of a driver that was started again in one piece."""
    found: dict[str, str] = {}
    for who, file in _files(roots):
        with suppress(FileNotFoundError), file.open("rb") as log:
            start = since.get(str(file), 0)
            log.seek(start if start <= os.fstat(log.fileno()).st_size else 0)  # rotated since then
            found[who] = found.get(who, "") + _strip_log_prefix(log.read().decode(errors="replace"))
    return {who: text[-MAX_BYTES:].strip() for who, text in found.items()}


def _files(roots: Roots) -> Iterator[tuple[str, Path]]:
    """In the order in which the containers of each pod were started."""
    for node, root in roots.items():
        specs = [record.started.spec for record in records.load_all(str(root / "containers"))]
        places = {Path(s.log_path).parent: s.pod_name for s in specs if s.name == NAME and s.log_path}
        for place, pod in sorted(places.items()):
            for file in sorted(place.glob("*.log"), key=lambda file: (len(file.name), file.name)):
                yield f"{pod} on {node}", file


def _strip_log_prefix(text: str) -> str:
    """Time and words: not which stream it was, nor whether the line is a whole one."""
    lines = (line.split(" ", 3) for line in text.splitlines())
    return "".join(f"{words[0]} {words[3]}\n" for words in lines if len(words) == 4)
