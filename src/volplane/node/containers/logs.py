"""A container's log in the format of Kubernetes nodes: time, stream, F (full) or P (partial), text."""

from __future__ import annotations

from volplane.base import clock
from volplane.node.containers.launcher.log import MAX_LINE, RotatingFile, split_line


class LogFile:
    """Appends whole lines, so that a reader that follows the file never sees part of one."""

    def __init__(self, path: str, stream: str = "stderr", *, max_size: int = 0, max_files: int = 0) -> None:
        self.stream = stream
        self._file = RotatingFile(path, max_size, max_files)

    def write(self, text: str) -> None:
        head = f"{clock.microstamp()[:-1]}000Z {self.stream} "
        if "\n" not in text and len(text) * 4 <= MAX_LINE:  # most texts: one line that is not split
            return self._file.append([f"{head}F {text}\n".encode(errors="replace")])
        lines = [line.encode(errors="replace") for line in text.split("\n")]
        start = head.encode()
        self._file.append([start + mark + part + b"\n" for line in lines for mark, part in split_line(line)])

    def close(self) -> None:
        self._file.close()
