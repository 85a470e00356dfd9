"""The registrar's flags, under upstream's names and with its defaults."""

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    kubelet_registration_path: str = ""  # required: the driver's socket as the kubelet sees it
    csi_address: str = "/run/csi/socket"
    plugin_registration_path: str = "/registration"
    timeout: float = 1.0
    http_endpoint: str = ""
    health_port: int = 0

    def __post_init__(self) -> None:
        if not self.kubelet_registration_path:
            raise ValueError("kubelet-registration-path is a required parameter")
        if self.http_endpoint and self.health_port:
            raise ValueError("only one of `--health-port` and `--http-endpoint` can be explicitly set")
