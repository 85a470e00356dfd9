"""How the disk service is set up; the command line's options are these fields."""

from msgspec import Struct

from volplane.cloud.model import Instance


class Settings(Struct, frozen=True, kw_only=True):
    data_dir: str
    access_key: str
    secret_key: str
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    zones: tuple[str, ...] = ("us-east-1a",)
    thin: float = 100.0  # how many times the machine's free space may be promised to sparse disks
    instances: tuple[Instance, ...] = ()  # registered at the start; others register themselves
