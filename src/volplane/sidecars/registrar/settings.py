"""The registrar's flags, with upstream's names and defaults."""

from typing import Annotated

from msgspec import Struct

from volplane.base.settings import Duration, about


class RegistrarOptions(Struct, frozen=True, kw_only=True):
    kubelet_registration_path: Annotated[
        str, about("the driver's socket as the kubelet sees it; required", value="PATH")
    ] = ""
    csi_address: Annotated[str, about("socket of the CSI driver")] = "/run/csi/socket"
    plugin_registration_path: Annotated[str, about("directory of the registration socket")] = "/registration"
    timeout: Annotated[Duration, about("timeout of one CSI call")] = 1.0
    http_endpoint: Annotated[str, about("address for health checks", value="HOST:PORT")] = ""
    health_port: Annotated[int, about("deprecated: port for health checks; 0 disables them")] = 0

    def __post_init__(self) -> None:
        if not self.kubelet_registration_path:
            raise ValueError("kubelet-registration-path is a required parameter")
        if self.http_endpoint and self.health_port:
            raise ValueError("only one of `--health-port` and `--http-endpoint` can be explicitly set")

    @property
    def endpoint(self) -> str:
        return self.http_endpoint or (f":{self.health_port}" if self.health_port else "")
