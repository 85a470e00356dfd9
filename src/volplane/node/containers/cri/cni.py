"""A default CNI network for a runtime that has none: a bridge of this machine.

A configuration that exists is never changed. Ours stays after a stop, because other clusters may use it.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from ipaddress import IPv4Network

from volplane.base.files import atomic_write
from volplane.host import network
from volplane.node.containers.cri.runtime_info import CniDirectories
from volplane.node.network import address_ranges

NAME, BRIDGE = "volplane", "vp-cni0"
FILE = "10-volplane.conflist"
CNI_VERSION = "0.4.0"
PREFIX = 20  # of the pods of all nodes on this machine
EXTENSIONS = (".conf", ".conflist", ".json")
REQUIRED = ("bridge", "host-local", "loopback")


class NoNetworkPlugins(Exception):
    """The runtime has no network, and none can be configured; the text says what is missing."""


def write_default_network(directories: CniDirectories) -> str:
    """Write a configuration if the runtime has none. Returns its path; "" if there is one already.

    Raises NoNetworkPlugins, OSError.
    """
    if _find_configurations(directories.config):
        return ""
    found = [name for name in REQUIRED if _has_program(name, directories)]
    if missing := [name for name in REQUIRED if name not in found]:
        raise NoNetworkPlugins(
            f"the container runtime has no CNI network, and the plugins {', '.join(missing)} are not in "
            f"{', '.join(directories.binaries)}: install them (Debian: containernetworking-plugins), or set "
            "the runtime's bin_dir to where they are"
        )
    range = network.first_free(address_ranges.candidates(PREFIX, NAME), network.list_used_ranges(BRIDGE))
    if range is None:
        raise NoNetworkPlugins(f"this machine uses all of {address_ranges.SPACE}")
    path = os.path.join(directories.config, FILE)
    os.makedirs(directories.config, exist_ok=True)
    with_firewall = shutil.which("iptables") is not None
    forwards = with_firewall and _has_program("portmap", directories)
    text = json.dumps(make_network(range, masquerade=with_firewall, port_mappings=forwards), indent=2)
    atomic_write(path, f"{text}\n".encode(), 0o644)
    return path


def make_network(range: IPv4Network, *, masquerade: bool, port_mappings: bool) -> dict[str, object]:
    """`masquerade`: pods reach other machines; `port_mappings`: host ports. Both need iptables."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "isDefaultGateway": True,
        "ipMasq": masquerade,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": str(range)}]]},
    }
    mapping = {"type": "portmap", "capabilities": {"portMappings": True}}
    plugins = [bridge, mapping] if port_mappings else [bridge]
    return {"cniVersion": CNI_VERSION, "name": NAME, "plugins": plugins}


def remove_idle_bridge() -> None:
    """Remove the bridge of the default network if no pod is on it; the next pod creates it again.

    The runtimes of other clusters use it without a lock. A pod that one of them is connecting just now finds
    no bridge: its sandbox fails, and its node tries again. A pod that is connected in the instant between the
    look and the removal loses its network.
    """
    place = f"/sys/class/net/{BRIDGE}"
    with suppress(FileNotFoundError):
        if os.listdir(f"{place}/brif"):
            return
        try:
            network.remove_link(BRIDGE)
        except OSError:
            if os.path.exists(place):  # else another cluster has just removed it
                raise


def _find_configurations(directory: str) -> list[str]:
    with suppress(FileNotFoundError):
        return [name for name in os.listdir(directory) if name.endswith(EXTENSIONS)]
    return []


def _has_program(name: str, directories: CniDirectories) -> bool:
    return any(os.access(f"{place}/{name}", os.X_OK) for place in directories.binaries)
