"""The snapshotter's flags, under upstream's names and with its defaults; client-side request limits are
off.
"""

from volplane.sidecars import Common


class Settings(Common, frozen=True, kw_only=True):
    timeout: float = 60.0
    worker_threads: int = 10
    resync_period: float = 900.0
    snapshot_name_prefix: str = "snapshot"
    snapshot_name_uuid_length: int = -1
    groupsnapshot_name_prefix: str = "groupsnapshot"
    groupsnapshot_name_uuid_length: int = -1
    extra_create_metadata: bool = False
    node_deployment: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")
        if not self.snapshot_name_prefix:
            raise ValueError("snapshot name prefix cannot be empty")

    @property
    def groups(self) -> bool:
        return self.feature_gates.get("CSIVolumeGroupSnapshot", False)
