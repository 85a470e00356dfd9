"""Errors of the kubelet's API: a status code and a message, which the API server passes on."""

from __future__ import annotations


class KubeletApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
