"""A container's output as a Kubernetes node keeps it: `time stream F text`, parts of a line marked P."""

from __future__ import annotations

import os
import time
from contextlib import suppress

LONGEST = 16 << 10  # a longer line is written in parts


class Log:
    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        os.makedirs(os.path.dirname(path) or "/", mode=0o755, exist_ok=True)
        self._file = os.open(path or "/dev/null", flags, 0o640)
        self._rest = {"stdout": b"", "stderr": b""}

    def write(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        head = f"{stamp()} {stream} ".encode()
        parts = [head + mark + part + b"\n" for line in lines for mark, part in _parts(line)]
        while len(rest) >= LONGEST:
            parts.append(head + b"P " + rest[:LONGEST] + b"\n")
            rest = rest[LONGEST:]
        self._rest[stream] = rest
        self._append(b"".join(parts))

    def flush(self) -> None:
        """A last line without its end stays without it."""
        for stream, rest in self._rest.items():
            if rest:
                self._append(f"{stamp()} {stream} P ".encode() + rest + b"\n")

    def _append(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk loses log lines, not the container
            if data:
                os.write(self._file, data)


def _parts(line: bytes) -> list[tuple[bytes, bytes]]:
    pieces = [line[i : i + LONGEST] for i in range(0, len(line), LONGEST)] or [b""]
    return [(b"P ", piece) for piece in pieces[:-1]] + [(b"F ", pieces[-1])]


def stamp() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds:09d}Z"
