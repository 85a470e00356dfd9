"""The attacher's flags, under upstream's names and with its defaults; client-side request limits are off."""

from collections.abc import Mapping

from volplane.sidecars import Election


class Settings(Election, frozen=True, kw_only=True):
    csi_address: str = "/run/csi/socket"
    timeout: float = 15.0
    worker_threads: int = 10
    retry_interval_start: float = 1.0
    retry_interval_max: float = 300.0
    resync: float = 600.0
    reconcile_sync: float = 60.0
    max_entries: int = 0  # of one ListVolumes page; 0 leaves it to the driver
    default_fstype: str = ""
    max_grpc_log_length: int = -1
    kube_api_qps: float = 0.0
    kube_api_burst: int = 0
    http_endpoint: str = ""
    metrics_address: str = ""
    metrics_path: str = "/metrics"
    feature_gates: Mapping[str, bool] = {}

    def __post_init__(self) -> None:
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")
        if self.http_endpoint and self.metrics_address:
            raise ValueError("only one of `--metrics-address` and `--http-endpoint` can be set.")
