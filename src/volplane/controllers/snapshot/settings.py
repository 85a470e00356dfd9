"""The snapshot controller's flags, under upstream's names; client-side request limits are off."""

from collections.abc import Mapping
from typing import Annotated

from volplane.base.settings import Duration, about
from volplane.loops.leader import LeaderElectionOptions


class SnapshotControllerOptions(LeaderElectionOptions, frozen=True, kw_only=True):
    resync_period: Annotated[Duration, about("interval at which every snapshot is reconciled again")] = 900.0
    worker_threads: Annotated[int, about("snapshots that are processed at the same time")] = 10
    retry_interval_start: Annotated[Duration, about("first delay after a failure; it doubles each time")] = (
        1.0
    )
    retry_interval_max: Annotated[Duration, about("longest delay after a failure")] = 300.0
    enable_distributed_snapshotting: Annotated[
        bool, about("label contents with their node, for one snapshotter per node")
    ] = False
    prevent_volume_mode_conversion: Annotated[
        bool, about("record the source volume mode, so that a restore cannot change it")
    ] = True
    retry_crd_interval_max: Annotated[Duration, about("time to wait for the snapshot CRDs at start")] = 30.0
    kube_api_qps: Annotated[float, about("accepted and ignored: requests are not limited")] = 0.0
    kube_api_burst: Annotated[int, about("accepted and ignored: requests are not limited")] = 0
    http_endpoint: Annotated[str, about("address for metrics and health checks", value="HOST:PORT")] = ""
    metrics_path: Annotated[str, about("HTTP path of the metrics")] = "/metrics"
    feature_gates: Annotated[Mapping[str, bool], about("feature gates to switch on or off")] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")

    @property
    def groups(self) -> bool:
        return self.feature_gates.get("CSIVolumeGroupSnapshot", False)
