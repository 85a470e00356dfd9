"""The real server over HTTPS, as the contract's cases meet it."""

from tests.apiserver.conftest import served

__all__ = ["served"]
