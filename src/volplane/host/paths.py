"""Paths of a node: as manifests and drivers know them, and as they are on this machine.

All methods return the *wire* path, below `/var/lib/kubelet`: what is sent to drivers and seen in containers.
`real()` turns it into the path to open. Several nodes share this machine, so each has its own real root,
which is short because socket paths are limited to 107 bytes. If the machine is the node, both are the same
(`identity`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence

KUBELET = "/var/lib/kubelet"
POD_LOGS = "/var/log/pods"
DEVICES = "/dev"

_CSI = "plugins/kubernetes.io/csi"
_BLOCK = f"{_CSI}/volumeDevices"


def escape_plugin_name(plugin: str) -> str:
    return plugin.replace("/", "~")


class NodePaths:
    def __init__(self, root: str, *, identity: bool = False, targets: Sequence[str] = ()) -> None:
        """`root` is the node's directory; with `identity` it is the wire path, too.

        `targets`: further directories for volumes, for callers other than a kubelet.
        """
        self.targets = tuple(os.path.realpath(target) for target in targets)
        # Without links, as in the kernel's mount table: a mount that is not found there by our path would be
        # taken for a plain directory.
        self.root = os.path.realpath(root)
        self.wire_root = os.path.abspath(root) if identity else KUBELET
        self.is_machine = identity
        self.dev = DEVICES if identity else f"{self.root}/dev"  # the real directory with this node's disks
        pairs = [(self.wire_root, self.root)] if self.wire_root != self.root else []
        if not identity:
            pairs += [(POD_LOGS, f"{self.root}/logs"), (DEVICES, self.dev)]
        self._pairs = pairs
        # Paths that a pod knows by their names on a machine, but that are this node's alone.
        self.private = f"{self.root}/host"
        # The longest real root first: the directories of devices and logs are inside the node's root.
        shown = [*pairs, ("", self.private)] if pairs else []
        self._wire_roots = {real: wire for wire, real in sorted(shown, key=lambda pair: -len(pair[1]))}
        self._real_paths = re.compile("|".join(f"{re.escape(real)}(?![\\w.-])" for real in self._wire_roots))

    def real(self, path: str) -> str:
        """The path to open for a wire path; other paths stay as they are."""
        for wire, real in self._pairs:
            if _inside(path, wire):
                return real + path[len(wire) :]
        return path

    def wire(self, path: str) -> str:
        for real, wire in self._wire_roots.items():
            if _inside(path, real):
                return wire + path[len(real) :]
        return path

    def wire_text(self, text: str) -> str:
        """A message to a user: paths of the node's directory on this machine become wire paths."""
        if not self._pairs or self.root not in text:
            return text
        return self._real_paths.sub(lambda found: self._wire_roots[found[0]], text)

    def find_volume_root(self, path: str) -> str:
        """The real directory that contains a path, wire or real, by name; "" if no volume may be there."""
        if any(_inside(path, root) for root in (self.wire_root, self.root)):
            return self.root
        return next((target for target in self.targets if _inside(path, target)), "")

    # Directories of the node

    @property
    def pods(self) -> str:
        return f"{self.wire_root}/pods"

    @property
    def plugins(self) -> str:
        return f"{self.wire_root}/plugins"

    @property
    def registry(self) -> str:
        return f"{self.wire_root}/plugins_registry"

    @property
    def containers(self) -> str:
        """The process runtime's state files."""
        return f"{self.wire_root}/containers"

    @property
    def seccomp(self) -> str:
        """The directory of seccomp profiles of type Localhost."""
        return f"{self.wire_root}/seccomp"

    @property
    def logs(self) -> str:
        return POD_LOGS

    def driver_socket(self, driver: str) -> str:
        return f"{self.plugins}/{driver}/csi.sock"

    def log_directory(self, namespace: str, pod: str, uid: str) -> str:
        return f"{self.logs}/{namespace}_{pod}_{uid}"

    def log_file(self, namespace: str, pod: str, uid: str, container: str, attempt: int) -> str:
        return f"{self.log_directory(namespace, pod, uid)}/{container}/{attempt}.log"

    # Of one pod

    def pod(self, uid: str) -> str:
        return f"{self.pods}/{uid}"

    def volumes(self, uid: str) -> str:
        return f"{self.pod(uid)}/volumes"

    def volume(self, uid: str, plugin: str, spec_name: str) -> str:
        """A pod's volume of any plugin, such as `kubernetes.io/empty-dir`."""
        return f"{self.volumes(uid)}/{escape_plugin_name(plugin)}/{spec_name}"

    def pod_plugin(self, uid: str, plugin: str, spec_name: str) -> str:
        """What a plugin notes about a pod's volume."""
        return f"{self.pod(uid)}/plugins/{escape_plugin_name(plugin)}/{spec_name}"

    def volume_devices(self, uid: str) -> str:
        return f"{self.pod(uid)}/volumeDevices"

    def volume_device(self, uid: str, plugin: str, spec_name: str) -> str:
        return f"{self.volume_devices(uid)}/{escape_plugin_name(plugin)}/{spec_name}"

    def subpaths(self, uid: str) -> str:
        return f"{self.pod(uid)}/volume-subpaths"

    def subpath(self, uid: str, spec_name: str, container: str, index: int) -> str:
        return f"{self.subpaths(uid)}/{spec_name}/{container}/{index}"

    def hosts_file(self, uid: str) -> str:
        return f"{self.pod(uid)}/etc-hosts"

    def resolv_conf_file(self, uid: str) -> str:
        return f"{self.pod(uid)}/resolv.conf"

    def container(self, uid: str, name: str) -> str:
        """The directory of a container's termination messages."""
        return f"{self.pod(uid)}/containers/{name}"

    @property
    def local_block_maps(self) -> str:
        """The devices of local volumes, by volume and pod."""
        return f"{self.plugins}/{escape_plugin_name('kubernetes.io/local-volume')}/volumeDevices"

    # CSI, file systems

    def staging(self, driver: str, handle: str) -> str:
        return f"{self._staging_directory(driver, handle)}/globalmount"

    def staging_data(self, driver: str, handle: str) -> str:
        return f"{self._staging_directory(driver, handle)}/vol_data.json"

    def _staging_directory(self, driver: str, handle: str) -> str:
        return f"{self.wire_root}/{_CSI}/{driver}/{hashlib.sha256(handle.encode()).hexdigest()}"

    def csi_target(self, uid: str, spec_name: str) -> str:
        return f"{self.volume(uid, 'kubernetes.io/csi', spec_name)}/mount"

    def csi_data(self, uid: str, spec_name: str) -> str:
        return f"{self.volume(uid, 'kubernetes.io/csi', spec_name)}/vol_data.json"

    # CSI, raw block

    def block_staging(self, spec_name: str) -> str:
        return f"{self.wire_root}/{_BLOCK}/staging/{spec_name}"

    def block_target(self, uid: str, spec_name: str) -> str:
        return f"{self.wire_root}/{_BLOCK}/publish/{spec_name}/{uid}"

    def block_map(self, uid: str, spec_name: str) -> str:
        return f"{self.wire_root}/{_BLOCK}/{spec_name}/dev/{uid}"

    def block_data(self, spec_name: str) -> str:
        return f"{self.wire_root}/{_BLOCK}/{spec_name}/data/vol_data.json"

    def block_link(self, uid: str, spec_name: str) -> str:
        return self.volume_device(uid, "kubernetes.io/csi", spec_name)


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")
