"""Conversion of keys between the store and etcd, and ranges of keys.

Keys of the store begin with `/` (or with the caller's root); in etcd they are under a prefix. UTF-8 keeps the
order of code points, so both sort alike. The prefix itself, which is outside the range of its keys, holds the
mark of its owner.
"""

from __future__ import annotations

from typing import TypeAlias

Range: TypeAlias = tuple[bytes, bytes]  # first key, and the first key after the range

ALL: Range = (b"\0", b"\0")  # all keys of etcd


class EtcdKeys:
    def __init__(self, prefix: str, root: str = "") -> None:
        self._prefix = f"/{prefix.strip('/')}"
        if self._prefix == "/":
            raise ValueError("an etcd store needs a prefix")
        self._root = root
        self._cut = len(self._prefix)
        self.mark = self._prefix.encode()
        self.everything = self.under("")

    def __str__(self) -> str:
        return self._prefix

    def outer(self, key: str) -> bytes:
        """The key in etcd."""
        if not key.startswith(f"{self._root}/"):
            raise ValueError(f"{key!r} does not begin with {self._root}/")
        return (self._prefix + key[len(self._root) :]).encode()

    def is_ours(self, key: bytes) -> bool:
        return key.startswith(self.everything[0])

    def inner(self, key: bytes) -> str:
        """The key in the store. Keys of other clients need not be text."""
        return self._root + key.decode(errors="surrogateescape")[self._cut :]

    def under(self, prefix: str, after: str = "") -> Range:
        """The range of keys with this prefix, or those of them after a key."""
        start = self.outer(prefix or f"{self._root}/")
        return max(start, self.outer(after) + b"\0") if after else start, _behind(start)


def _behind(prefix: bytes) -> bytes:
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1])
