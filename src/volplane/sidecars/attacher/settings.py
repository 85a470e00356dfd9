"""The attacher's flags, under upstream's names and with its defaults; client-side request limits are off."""

from volplane.sidecars import Common


class Settings(Common, frozen=True, kw_only=True):
    timeout: float = 15.0
    worker_threads: int = 10
    resync: float = 600.0
    reconcile_sync: float = 60.0
    max_entries: int = 0  # of one ListVolumes page; 0 leaves it to the driver
    default_fstype: str = ""
    max_grpc_log_length: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")
