"""The flags of the disk service."""

from typing import Annotated

from msgspec import Struct

from volplane.base.settings import Duration, about
from volplane.cloud.model import CloudInstance
from volplane.rules import latency


class CloudOptions(Struct, frozen=True, kw_only=True):
    data_dir: Annotated[str, about("directory for disks and their records", value="DIR")]
    access_key: str
    secret_key: str
    host: Annotated[str, about("address to listen on")] = "127.0.0.1"
    port: Annotated[int, about("port to listen on; 0 picks a free one")] = 0
    zones: Annotated[tuple[str, ...], about("availability zones to offer")] = ("us-east-1a",)
    thin: Annotated[
        float, about("overcommit factor: disk sizes may add up to this many times the free space")
    ] = 100.0
    latency: Annotated[
        str, about("simulate the latency of a cloud: aws (by volume type), ebs, io2 or efs", value="PROFILE")
    ] = ""
    request_rate: Annotated[float, about("requests per second and action before throttling; 0: no limit")] = (
        0.0
    )
    request_burst: Annotated[int, about("requests of one action that may come at once")] = 20
    modification_pause: Annotated[Duration, about("least time between two ModifyVolume calls; AWS: 6h")] = 0.0
    faults: Annotated[str, about("JSON script of requests that fail", value="FILE")] = ""
    instances: tuple[CloudInstance, ...] = ()  # known at the start; others register themselves

    def __post_init__(self) -> None:
        latency.check_profile(self.latency)
        if self.thin < 0:
            raise ValueError(f"--thin must not be negative, not {self.thin}")
