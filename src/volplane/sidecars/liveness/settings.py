"""The liveness probe's flags, with upstream's names and defaults.

Unlike upstream, `health_port` listens on loopback only; `http_endpoint` sets any other address.
"""

from typing import Annotated

from msgspec import Struct

from volplane.base.settings import Duration, about


class LivenessOptions(Struct, frozen=True, kw_only=True):
    csi_address: Annotated[str, about("socket of the CSI driver")] = "/run/csi/socket"
    probe_timeout: Annotated[Duration, about("timeout of one Probe call")] = 3.0
    health_port: Annotated[int, about("port of /healthz on loopback; 0 picks a free one")] = 9808
    http_endpoint: Annotated[str, about("address for metrics and health checks", value="HOST:PORT")] = ""
    metrics_address: Annotated[str, about("deprecated name of --http-endpoint", value="HOST:PORT")] = ""
    metrics_path: Annotated[str, about("HTTP path of the metrics")] = "/metrics"

    def __post_init__(self) -> None:
        if self.http_endpoint and self.metrics_address:
            raise ValueError("only one of `--metrics-address` and `--http-endpoint` can be explicitly set")

    @property
    def endpoint(self) -> str:
        return self.http_endpoint or f"127.0.0.1:{self.health_port}"
