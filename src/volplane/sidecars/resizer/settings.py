"""The resizer's flags, under upstream's names and with its defaults; client-side request limits are off."""

from volplane.sidecars import Common


class Settings(Common, frozen=True, kw_only=True):
    timeout: float = 10.0
    workers: int = 10
    resync_period: float = 600.0
    handle_volume_inuse_error: bool = True
    extra_modify_metadata: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers < 1:
            raise ValueError("option -workers must be greater than zero")

    def gate(self, name: str, *, default: bool) -> bool:
        return self.feature_gates.get(name, default)
