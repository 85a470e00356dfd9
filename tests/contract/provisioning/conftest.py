"""The real server over HTTPS, for the cases that are about its answers."""

from __future__ import annotations

from tests.apiserver.conftest import served

__all__ = ["served"]
