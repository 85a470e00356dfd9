"""How the disk service is set up; the command line's options are these fields."""

from typing import Annotated

from msgspec import Meta, Struct

from volplane.cloud.model import Instance
from volplane.rules import latency


def about(text: str) -> Meta:
    return Meta(description=text)


class Settings(Struct, frozen=True, kw_only=True):
    data_dir: str
    access_key: str
    secret_key: str
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    zones: tuple[str, ...] = ("us-east-1a",)
    thin: Annotated[float, about("how many times the machine's space is promised to sparse disks")] = 100.0
    latency: Annotated[str, about("take as long as a cloud: ebs, io2 or efs")] = ""
    request_rate: Annotated[float, about("requests a second and action; 0: no limit")] = 0.0
    request_burst: Annotated[int, about("requests of an action that may come at once")] = 20
    modification_pause: Annotated[float, about("time between two modifications of a volume; AWS: 6h")] = 0.0
    faults: Annotated[str, about("a script (JSON) of requests that fail")] = ""
    instances: tuple[Instance, ...] = ()  # registered at the start; others register themselves

    def __post_init__(self) -> None:
        latency.checked(self.latency)
        if self.thin < 0:
            raise ValueError(f"--thin must not be negative, not {self.thin}")
