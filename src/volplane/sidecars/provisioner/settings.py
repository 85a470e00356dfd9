"""The provisioner's flags, under upstream's names and with its defaults; client-side request limits are
off. Upstream's five minutes after an infeasible error have no flag; ours is `--infeasible-retry-interval`.
"""

from typing import Annotated

from msgspec import Meta

from volplane.sidecars import Common


class Settings(Common, frozen=True, kw_only=True):
    timeout: float = 10.0
    infeasible_retry_interval: Annotated[
        float, Meta(description="how long a driver that called the arguments wrong is not asked again")
    ] = 300.0
    worker_threads: int = 100
    volume_name_prefix: str = "pvc"
    volume_name_uuid_length: int = -1
    strict_topology: bool = False
    immediate_topology: bool = True
    extra_create_metadata: bool = False
    default_fstype: str = ""
    controller_publish_readonly: bool = False
    prevent_volume_mode_conversion: bool = True
    cloning_protection_threads: int = 1
    snapshot_orphan_sweep_interval: float = 300.0
    enable_capacity: bool = False
    capacity_threads: int = 1
    capacity_poll_interval: float = 60.0
    capacity_for_immediate_binding: bool = False
    capacity_ownerref_level: int = 1
    kube_api_capacity_qps: float = 0.0
    kube_api_capacity_burst: int = 0
    node_deployment: bool = False
    node_deployment_immediate_binding: bool = True
    node_deployment_base_delay: float = 20.0
    node_deployment_max_delay: float = 60.0
    enable_pprof: bool = False  # accepted, like the next one: they are about Go's run time
    automaxprocs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")
        if self.node_deployment and self.leader_election:
            raise ValueError("--node-deployment and --leader-election exclude each other")
        if not self.volume_name_prefix:
            raise ValueError("volume name prefix cannot be empty")
