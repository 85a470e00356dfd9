"""The snapshotter's flags, with upstream's names and defaults; requests to the API server are not limited."""

from typing import Annotated

from volplane.base.settings import Duration, about
from volplane.sidecars.base import SidecarOptions


class SnapshotterOptions(SidecarOptions, frozen=True, kw_only=True):
    timeout: Annotated[Duration, about("timeout of one CSI call")] = 60.0
    worker_threads: Annotated[int, about("snapshot contents that are processed at the same time")] = 10
    resync_period: Annotated[Duration, about("interval at which every content is reconciled again")] = 900.0
    snapshot_name_prefix: Annotated[str, about("prefix of snapshot names sent to the driver")] = "snapshot"
    snapshot_name_uuid_length: Annotated[int, about("characters of the uid in the name; -1 uses all")] = -1
    groupsnapshot_name_prefix: Annotated[str, about("prefix of group snapshot names sent to the driver")] = (
        "groupsnapshot"
    )
    groupsnapshot_name_uuid_length: Annotated[
        int, about("characters of the uid in the group's name; -1 uses all")
    ] = -1
    extra_create_metadata: Annotated[
        bool, about("send the names of snapshot and content with CreateSnapshot")
    ] = False
    node_deployment: Annotated[bool, about("process only contents of this node; needs NODE_NAME")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_threads < 1:
            raise ValueError("option -worker-threads must be greater than zero")
        if not self.snapshot_name_prefix:
            raise ValueError("snapshot name prefix cannot be empty")

    @property
    def has_groups(self) -> bool:
        return self.feature_gates.get("CSIVolumeGroupSnapshot", False)
