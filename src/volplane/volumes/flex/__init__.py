"""FlexVolume: volumes served by executables that answer each call with one JSON object."""

from volplane.volumes.flex.driver import (
    FlexCallError,
    FlexCapabilities,
    FlexDriver,
    FlexNotSupported,
    FlexReply,
)
from volplane.volumes.flex.prober import FlexProber

__all__ = [
    "FlexCallError",
    "FlexCapabilities",
    "FlexDriver",
    "FlexNotSupported",
    "FlexProber",
    "FlexReply",
]
