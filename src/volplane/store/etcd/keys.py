"""Our keys as etcd spells them, and the ranges over them.

A store's keys are text that begins with `/` (or with a root of the caller's); in etcd they lie under a
prefix. UTF-8 keeps the order of code points, so that both sides sort alike. The prefix itself, which is
outside the range of its keys, holds the mark of who owns them.
"""

from __future__ import annotations

from typing import TypeAlias

Range: TypeAlias = tuple[bytes, bytes]  # from, and the first one behind

ALL: Range = (b"\0", b"\0")  # everybody's


class EtcdKeys:
    def __init__(self, prefix: str, root: str = "") -> None:
        self._prefix = f"/{prefix.strip('/')}"
        if self._prefix == "/":
            raise ValueError("an etcd store needs a prefix of its own")
        self._root = root
        self._cut = len(self._prefix)
        self.mark = self._prefix.encode()
        self.everything = self.under("")

    def __str__(self) -> str:
        return self._prefix

    def outer(self, key: str) -> bytes:
        """As etcd has it."""
        if not key.startswith(f"{self._root}/"):
            raise ValueError(f"{key!r} does not begin with {self._root}/")
        return (self._prefix + key[len(self._root) :]).encode()

    def is_ours(self, key: bytes) -> bool:
        return key.startswith(self.everything[0])

    def inner(self, key: bytes) -> str:
        """As the store's users have it. What somebody else has put there need not be text."""
        return self._root + key.decode(errors="surrogateescape")[self._cut :]

    def under(self, prefix: str, after: str = "") -> Range:
        """All keys with this prefix, or those of them that come behind a key."""
        start = self.outer(prefix or f"{self._root}/")
        return max(start, self.outer(after) + b"\0") if after else start, _behind(start)


def _behind(prefix: bytes) -> bytes:
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1])
