"""The attacher's flags, with upstream's names and defaults; requests to the API server are not limited."""

from typing import Annotated

from volplane.base.settings import Duration, about
from volplane.sidecars.base import SidecarOptions


class AttacherOptions(SidecarOptions, frozen=True, kw_only=True):
    timeout: Annotated[Duration, about("timeout of one CSI call")] = 15.0
    worker_threads: Annotated[int, about("VolumeAttachments that are processed at the same time")] = 10
    resync: Annotated[Duration, about("interval at which every VolumeAttachment is reconciled again")] = 600.0
    reconcile_sync: Annotated[
        Duration, about("interval between ListVolumes calls that verify attachments")
    ] = 60.0
    max_entries: Annotated[int, about("entries of one ListVolumes page; 0 leaves it to the driver")] = 0
    default_fstype: Annotated[str, about("file system of volumes that name none", value="FSTYPE")] = ""
    max_grpc_log_length: Annotated[int, about("accepted and ignored: logging of gRPC messages")] = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")
