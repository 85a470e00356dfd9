"""What cannot be done, as the API server passes it on: a status code and a sentence."""

from __future__ import annotations


class KubeletApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
