"""The last lines of the logs of a driver's containers, by pod and node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from volplane.host import NodePaths
from volplane.testing.kill_driver import NAME

MAX_CHARACTERS = 4000  # characters per pod

Roots = Mapping[str, Path]  # the nodes' directories, by name


def log_sizes(roots: Roots) -> dict[str, int]:
    """The sizes of all logs, in bytes."""
    return {str(file): file.stat().st_size for _, file in _files(roots)}


def read_logs(roots: Roots, since: Mapping[str, int]) -> dict[str, str]:
    """What was added since then; the logs of a restarted container are joined."""
    found: dict[str, str] = {}
    for who, file in _files(roots):
        with suppress(FileNotFoundError), file.open("rb") as log:
            start = since.get(str(file), 0)
            log.seek(start if start <= os.fstat(log.fileno()).st_size else 0)  # rotated since then
            found[who] = found.get(who, "") + _strip_log_prefix(log.read().decode(errors="replace"))
    return {who: text[-MAX_CHARACTERS:].strip() for who, text in found.items()}


def _files(roots: Roots) -> Iterator[tuple[str, Path]]:
    """The log files of each pod, in the order of the container starts."""
    for node, root in roots.items():
        paths = NodePaths(str(root))
        for place in sorted(Path(paths.real(paths.logs)).glob(f"*/{NAME}")):
            pod = place.parent.name.split("_")[1]
            for file in sorted(place.glob("*.log"), key=lambda file: (len(file.name), file.name)):
                yield f"{pod} on {node}", file


def _strip_log_prefix(text: str) -> str:
    """Timestamp and text, without the stream and the partial-line tag."""
    lines = (line.split(" ", 3) for line in text.splitlines())
    return "".join(f"{words[0]} {words[3]}\n" for words in lines if len(words) == 4)
