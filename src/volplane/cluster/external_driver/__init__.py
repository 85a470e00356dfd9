"""A driver brought by its author: a command, or a small file that says more about it.

`read` and `from_command` say what to run, `probe` starts it once and asks what it can do, `manifests` puts
our sidecars around it as its answers call for. What is given in the file counts more than what is derived.
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
