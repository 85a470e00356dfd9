"""What a runtime says about itself: name, version, readiness, handlers, cgroup driver, CNI directories."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from volplane.api.core import NodeRuntimeHandler, NodeRuntimeHandlerFeatures
from volplane.csi.outcome import Code
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.client import CHECK_TIMEOUT, CriClient, CriError

DEFAULT_CNI_CONFIG, DEFAULT_CNI_BIN = "/etc/cni/net.d", "/opt/cni/bin"


class RuntimeInfo:
    """Facts about the runtime that do not change while it runs. `read` is called when it answers."""

    def __init__(self) -> None:
        self.name, self.version = "cri", ""
        self.systemd_cgroups = False
        self.handlers: tuple[NodeRuntimeHandler, ...] = ()

    def has_recursive_readonly(self, handler: str) -> bool:
        """Whether mounts below a read-only mount can be read-only, too; `handler`: "" is the default one."""
        found = (each.features for each in self.handlers if each.name == handler)
        return any(features is not None and features.recursive_read_only_mounts for features in found)

    async def read(self, cri: CriClient) -> None:
        """Raises CriError."""
        version = await cri.version()
        self.name, self.version = version.runtime_name or "cri", version.runtime_version
        status = await cri.status(verbose=True)
        self.handlers = tuple(make_handler(each) for each in status.runtime_handlers)
        self.systemd_cgroups = await self._has_systemd_cgroups(cri, status)

    async def _has_systemd_cgroups(self, cri: CriClient, status: v1.StatusResponse) -> bool:
        try:
            reply = await cri.call("RuntimeConfig", v1.RuntimeConfigRequest(), CHECK_TIMEOUT)
        except CriError as error:
            if error.code is not Code.UNIMPLEMENTED:
                raise
            return read_systemd_cgroups(status.info)  # containerd before 2.0 tells it nowhere else
        return bool(reply.linux.cgroup_driver == v1.SYSTEMD)


def make_handler(handler: v1.RuntimeHandler) -> NodeRuntimeHandler:
    """A handler for the Node's status. containerd before 2.0 lists none."""
    features = handler.features
    return NodeRuntimeHandler(
        handler.name,
        NodeRuntimeHandlerFeatures(features.recursive_read_only_mounts, features.user_namespaces),
    )


class CniDirectories(Struct, frozen=True):
    config: str = DEFAULT_CNI_CONFIG
    binaries: tuple[str, ...] = (DEFAULT_CNI_BIN,)


def read_cni_directories(info: Mapping[str, str]) -> CniDirectories:
    """From the verbose status of containerd; the usual ones if the runtime does not tell."""
    cni = _config(info).get("cni")
    if not isinstance(cni, dict):
        return CniDirectories()
    binaries = cni.get("binDirs") or [cni.get("binDir") or DEFAULT_CNI_BIN]
    return CniDirectories(cni.get("confDir") or DEFAULT_CNI_CONFIG, tuple(binaries))


def read_systemd_cgroups(info: Mapping[str, str]) -> bool:
    """Whether containerd's default runtime handler uses the systemd cgroup driver."""
    config = _config(info)
    containerd = config.get("containerd", {})
    if not isinstance(containerd, dict):
        return False
    handlers = containerd.get("runtimes") or {}
    handler = handlers.get(containerd.get("defaultRuntimeName", "runc")) or {}
    options = handler.get("options") or {}
    return bool(config.get("systemdCgroup") or options.get("SystemdCgroup"))


def _config(info: Mapping[str, str]) -> dict[str, object]:
    try:
        found = msgspec.json.decode(info.get("config", "{}"))
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def find_problem(status: v1.StatusResponse) -> str:
    """Why the node cannot run pods, in the kubelet's words; "" if it can."""
    problems = []
    for condition in status.status.conditions:
        if condition.status:
            continue
        if condition.type == "RuntimeReady":
            problems.append(f"container runtime not ready: {_describe(condition)}")
        elif condition.type == "NetworkReady":
            problems.append(f"container runtime network not ready: {_describe(condition)}")
    return problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]" if problems else ""


def _describe(condition: v1.RuntimeCondition) -> str:
    return f"{condition.type}=false reason:{condition.reason} message:{condition.message}"
