"""Records the CSI calls of a process in a file, and reads the files of other processes.

A call is written as one line when it begins and another when it ends, without buffering: a call that was cut
off because its process was killed is in the file, without its end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from google.protobuf.message import Message
from msgspec import Struct

from volplane.csi.call_interceptor import CallInterceptor, CsiCall

FILE = "VOLPLANE_CALLS"  # the variable that names the file
SUFFIX = ".calls"
_LATER = ("end", "code", "response", "message", "note")  # fields that are set when a call ends


class CallRecord(Struct):
    life: float  # when the process started: a file is written by one process after another
    call: CsiCall


class CallRecorder(CallInterceptor):
    """An interceptor that writes calls to a file and keeps none in memory."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._life = time.monotonic()

    def _record_call(self, method: str, caller: str, address: str, request: Message) -> CsiCall:
        call = super()._record_call(method, caller, address, request)
        self.calls.clear()
        self._write(call)
        return call

    def _end_call(self, call: CsiCall) -> None:
        self._write(call)

    def _write(self, call: CsiCall) -> None:
        os.write(self._file, msgspec.json.encode(CallRecord(self._life, call)) + b"\n")


class CallRecordReader:
    """Reads the calls that were added to the files of a directory since the last read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}
        self._lives: dict[str, float] = {}  # by file: the process that writes it now
        self._open: dict[tuple[str, float, int], CsiCall] = {}

    def read_new_calls(self, ended: Callable[[CsiCall], None] = lambda call: None) -> list[CsiCall]:
        """New calls in the order of their start. Calls that were in progress are updated in place."""
        found: list[CsiCall] = []
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            found += self._of(path, ended)
        for (name, life, _), call in self._open.items():
            if life != self._lives[name]:
                call.note = "its caller was killed"
        return sorted(found, key=lambda call: call.start)

    def _of(self, path: Path, ended: Callable[[CsiCall], None]) -> list[CsiCall]:
        found, at = [], self._read.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(at)
            for text in file:
                if not text.endswith(b"\n"):
                    break
                at += len(text)
                line = msgspec.json.decode(text, type=CallRecord)
                self._lives[path.name] = line.life
                key = (path.name, line.life, line.call.number)
                if (known := self._open.pop(key, None)) is not None:
                    for field in _LATER:
                        setattr(known, field, getattr(line.call, field))
                    ended(known)
                else:
                    found.append(line.call)
                    self._open[key] = line.call
        self._read[path.name] = at
        return found


def start_recording() -> CallRecorder | None:
    """The recorder that the environment asks for, to be passed to all callers of this process."""
    path = os.environ.get(FILE)
    return CallRecorder(path) if path else None
