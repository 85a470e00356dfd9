"""The resizer's flags, with upstream's names and defaults; requests to the API server are not limited."""

from typing import Annotated

from volplane.base.settings import Duration, about
from volplane.sidecars.base import SidecarOptions


class ResizerOptions(SidecarOptions, frozen=True, kw_only=True):
    timeout: Annotated[Duration, about("timeout of one CSI call")] = 10.0
    workers: Annotated[int, about("claims that are processed at the same time")] = 10
    resync_period: Annotated[Duration, about("interval at which every claim is reconciled again")] = 600.0
    handle_volume_inuse_error: Annotated[
        bool, about("after an in-use error wait until no pod uses the volume before trying again")
    ] = True
    extra_modify_metadata: Annotated[
        bool, about("send the names of claim and volume with ControllerModifyVolume")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers < 1:
            raise ValueError("option -workers must be greater than zero")

    def is_feature_enabled(self, name: str, *, default: bool) -> bool:
        return self.feature_gates.get(name, default)
