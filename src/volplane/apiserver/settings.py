"""What the API server can be told on the command line."""

from __future__ import annotations

from msgspec import Struct


class Settings(Struct, frozen=True):
    data_dir: str  # certificates, tokens and the admin's kubeconfig go here
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    hosts: tuple[str, ...] = ()  # further names and addresses the certificate is valid for
