"""The snapshot controller's flags, under upstream's names; client-side request limits are off."""

from collections.abc import Mapping

from volplane.loops.leader import Election


class Settings(Election, frozen=True, kw_only=True):
    resync_period: float = 900.0
    worker_threads: int = 10
    retry_interval_start: float = 1.0
    retry_interval_max: float = 300.0
    enable_distributed_snapshotting: bool = False
    prevent_volume_mode_conversion: bool = True
    retry_crd_interval_max: float = 30.0  # what the kinds get to appear
    kube_api_qps: float = 0.0
    kube_api_burst: int = 0
    http_endpoint: str = ""
    metrics_path: str = "/metrics"
    feature_gates: Mapping[str, bool] = {}

    def __post_init__(self) -> None:
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")

    @property
    def groups(self) -> bool:
        return self.feature_gates.get("CSIVolumeGroupSnapshot", False)
