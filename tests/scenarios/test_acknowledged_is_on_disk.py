"""What the API server has acknowledged is on the disk: seen in the system calls of the real process.

Answers are encrypted, so the trace is read by order: on a connection that carries one request after another,
what is written after a request has been read is its answer. Between the two there must be a sync that began
after the request was there and ended before the answer left.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.up import VOLPLANE, wait_until

pytestmark = [pytest.mark.peer("strace"), pytest.mark.slow]

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CALLS = "read,readv,recvfrom,recvmsg,write,writev,sendto,sendmsg,fsync,fdatasync"


@contextmanager
def traced(directory: Path, trace: Path) -> Iterator[tuple[str, int]]:
    """An API server under strace: its token and its port."""
    strace = ["strace", "-f", "-yy", "-s", "0", "-o", str(trace), "-e", f"trace={CALLS}"]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*strace, VOLPLANE, "apiserver", "--data-dir", str(directory)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        served = wait_until(
            "it serves", lambda: re.search(r"serving on https://.*:(\d+)", log.read_text()), 60
        )
        yield (directory / "pki" / "admin.token").read_text(), int(served.group(1))
    finally:
        server = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        subprocess.run(["kill", "-TERM", *server], check=True)
        assert process.wait(60) == 0


class User:
    """One connection; notices its own port, by which it is found in the trace."""

    def __init__(self, directory: Path, token: str, port: int) -> None:
        context = ssl.create_default_context(cafile=str(directory / "pki" / "ca.crt"))
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        assert self.ask("GET", "/readyz")[0] == 200
        self.port: int = self.connection.sock.getsockname()[1]
        self.created = 0

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        self.connection.request(method, path, body, self.headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def create(self, count: int) -> None:
        for n in range(count):
            name = f"from-{self.port}-{n}"
            status, _ = self.ask("POST", CONFIG_MAPS, json.dumps({"metadata": {"name": name}}).encode())
            assert status == 201
            self.created += 1


def calls(trace: Path) -> Iterator[tuple[int, int, str, int]]:
    """(line of its begin, line of its end, text, result) of each call, in the order of the ends."""
    begun: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(trace.read_text().splitlines()):
        thread, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[thread] = number, text
            continue
        since, begin = begun.pop(thread) if text.startswith("<...") else (number, text)
        if result := re.search(r"= (-?\d+)(?: .*)?$", text):
            yield since, number, begin, int(result[1])


def answers(trace: Path, port: int) -> list[bool]:
    """For each answer on the connection from `port`: was there a sync between the request and it?"""
    found: list[bool] = []
    arrived = -1
    syncs: list[tuple[int, int]] = []
    for since, until, text, result in calls(trace):
        if text.startswith(("fsync", "fdatasync")):
            assert result == 0
            syncs.append((since, until))
        elif f":{port}]>" not in text or result <= 0:
            continue
        elif text.startswith(("read", "recv")):
            arrived = until
        elif arrived >= 0:
            found.append(any(arrived < begin and end < since for begin, end in syncs))
            arrived = -1
    return found


@pytest.mark.parametrize("users", [1, 6])
def test_every_created_object_is_synced_before_its_answer(tmp_path: Path, users: int) -> None:
    trace, each = tmp_path / "trace", 20
    with traced(tmp_path, trace) as (token, port):
        people = [User(tmp_path, token, port) for _ in range(users)]
        with ThreadPoolExecutor(users) as together:
            list(together.map(lambda user: user.create(each), people))
        for user in people:
            user.connection.close()
    for user in people:
        seen = answers(trace, user.port)
        assert len(seen) >= each + 1  # the handshake's, and those of the reads before
        assert all(seen[-each:]), f"answered before a sync: {seen}"
        assert not any(seen[:-each]) or users > 1, "a read waited for a sync: the trace is misread"
