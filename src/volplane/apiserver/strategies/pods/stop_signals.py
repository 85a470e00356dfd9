"""stopSignal of containers: which signals there are depends on the operating system that the pod names."""

from __future__ import annotations

from volplane.api.core import PodSpec
from volplane.api.errors import Causes, forbidden, not_supported

_LINUX = (
    "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE",
    "POLL", "PROF", "PWR", "QUIT", "RTMAX", *(f"RTMAX-{n}" for n in range(1, 15)), "RTMIN",
    *(f"RTMIN+{n}" for n in range(1, 16)), "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN",
    "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
)  # fmt: skip
STOP_SIGNALS = {
    "linux": tuple(sorted(f"SIG{name}" for name in _LINUX)),
    "windows": ("SIGKILL", "SIGTERM"),
}


def stop_signals(path: str, spec: PodSpec) -> Causes:
    system = spec.os.name if spec.os is not None else ""
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for at, container in enumerate(containers):
            signal = container.lifecycle.stop_signal if container.lifecycle is not None else None
            if signal is None:
                continue
            here = f"{path}.{kind}[{at}].lifecycle.stopSignal"
            if not system:
                yield forbidden(here, "may not be set for containers with empty `spec.os.name`")
            elif system in STOP_SIGNALS and signal not in STOP_SIGNALS[system]:
                yield not_supported(here, signal, STOP_SIGNALS[system])
