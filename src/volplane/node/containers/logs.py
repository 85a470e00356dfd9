"""A container's log in the format every Kubernetes node writes: time, stream, whole or partial, text."""

from __future__ import annotations

import os

from volplane.base import clock

LONGEST = 16 << 10  # a longer line is written in parts, marked P until the last


class LogFile:
    """Lines are appended one write each: a reader that follows the file sees whole lines only."""

    def __init__(self, path: str, stream: str = "stderr") -> None:
        self.stream = stream
        self._descriptor = -1
        if path:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, text: str) -> None:
        if self._descriptor >= 0:
            os.write(self._descriptor, b"".join(self._lines(text)))

    def _lines(self, text: str) -> list[bytes]:
        stamp = clock.microstamp().replace("Z", "000Z")
        lines = []
        for line in text.split("\n"):
            data = line.encode(errors="replace")
            pieces = [data[i : i + LONGEST] for i in range(0, len(data), LONGEST)] or [b""]
            for number, piece in enumerate(pieces, 1):
                mark = "F" if number == len(pieces) else "P"
                lines.append(f"{stamp} {self.stream} {mark} ".encode() + piece + b"\n")
        return lines

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
