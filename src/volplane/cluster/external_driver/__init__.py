"""A CSI driver of the user: a command, or a file that describes it.

`read_driver_file` and `from_command` say what to run, `discover_driver` starts it once and queries its
capabilities, `build_manifests` deploys it with the sidecars that these need. Values in the file override
derived ones.
"""

from volplane.cluster.external_driver.command import BadCommand, parse_command
from volplane.cluster.external_driver.discover import discover_driver
from volplane.cluster.external_driver.driver_file import from_command, parse_driver_command, read_driver_file
from volplane.cluster.external_driver.manifest_files import from_manifests
from volplane.cluster.external_driver.model import (
    Command,
    DeploymentShape,
    DiscoveredDriver,
    ExternalDriver,
    InvalidDriver,
    resolve_shape,
)
from volplane.cluster.external_driver.workloads import build_manifests, expected_driver

__all__ = [
    "BadCommand",
    "Command",
    "DeploymentShape",
    "DiscoveredDriver",
    "ExternalDriver",
    "InvalidDriver",
    "build_manifests",
    "discover_driver",
    "expected_driver",
    "from_command",
    "from_manifests",
    "parse_command",
    "parse_driver_command",
    "read_driver_file",
    "resolve_shape",
]
