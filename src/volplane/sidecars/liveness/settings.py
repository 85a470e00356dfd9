"""The liveness probe's flags, under upstream's names and with its defaults.

`health_port` listens on loopback here; `http_endpoint` says itself where.
"""

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    csi_address: str = "/run/csi/socket"
    probe_timeout: float = 3.0
    health_port: int = 9808  # 0 takes a free one
    http_endpoint: str = ""
    metrics_address: str = ""
    metrics_path: str = "/metrics"

    def __post_init__(self) -> None:
        if self.http_endpoint and self.metrics_address:
            raise ValueError("only one of `--metrics-address` and `--http-endpoint` can be explicitly set")

    @property
    def endpoint(self) -> str:
        return self.http_endpoint or f"127.0.0.1:{self.health_port}"
