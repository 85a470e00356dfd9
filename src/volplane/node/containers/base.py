"""The interface of container runtimes, and the types they share.

The caller chooses a container's id and never reuses it: a restart is a new container with the next attempt
number. So every call here is safe to repeat after a crash.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping
from typing import Literal, Protocol

from msgspec import Struct

Propagation = Literal["private", "rslave", "rshared"]
ProcMount = Literal["Default", "Unmasked"]

# The default capabilities of containerd without MKNOD: not every machine has a device cgroup, and with a
# device node of the machine's disk a container's root could change the whole machine.
DEFAULT_CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
    "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
)  # fmt: skip

COMPLETED, ERROR, START_ERROR = "Completed", "Error", "StartError"
KILLED = 137  # 128 + SIGKILL, as every runtime reports it


class Mount(Struct, frozen=True):
    source: str  # a path of this machine
    target: str  # a path in the container
    readonly: bool = False
    propagation: Propagation = "private"
    recursive: bool = False  # with readonly: mounts below it are read-only, too
    image: str = ""  # the id of an image whose files are mounted instead of the source
    image_name: str = ""  # as the pod names it
    subpath: str = ""  # a directory of the image


class ContainerDevice(Struct, frozen=True):
    source: str
    target: str
    permissions: str = "mrw"


class CgroupLimits(Struct, frozen=True):
    """What the kernel grants a container; 0: no limit."""

    cpu_shares: int = 0
    cpu_quota: int = 0  # microseconds of each period
    cpu_period: int = 0
    memory: int = 0  # bytes
    oom_score_adj: int = 0


class ContainerSpec(Struct, frozen=True):
    id: str
    pod_uid: str = ""
    pod_name: str = ""
    namespace: str = ""
    service_account: str = ""  # of the pod
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    program: tuple[str, ...] = ()  # runs in place of programs of the image, which the container does not have
    env: Mapping[str, str] = {}
    workdir: str = ""
    hostname: str = ""
    mounts: tuple[Mount, ...] = ()
    devices: tuple[ContainerDevice, ...] = ()
    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    privileged: bool = False
    attempt: int = 0
    log_path: str = ""
    log_max_size: int = 0  # bytes of one log file; 0: no limit
    log_max_files: int = 0  # number of log files, including the one being written
    host_network: bool = False  # hostNetwork of the pod
    host_pid: bool = False
    host_ipc: bool = False
    network: str = ""  # a network namespace to join, such as /run/netns/x; the host's if empty
    stop_signal: str = "SIGTERM"  # "": that of the image
    cgroups: tuple[str, ...] = ()  # cgroup directories that the container joins
    stdin: bool = False  # it has an input that attached clients can write to,
    stdin_once: bool = False  # and that ends when the first of them leaves
    tty: bool = False
    capabilities: tuple[str, ...] | None = None  # names like CAP_CHOWN; DEFAULT_CAPABILITIES if None
    no_new_privs: bool = False
    readonly_root: bool = False  # does not apply to volumes
    seccomp: str = ""  # base64 of a compiled filter, an array of struct sock_filter; none if empty
    sysctls: Mapping[str, str] = {}  # set in the container's own namespaces
    proc_mount: ProcMount = "Default"
    cover_secrets: bool = True  # hide keys and passwords of this machine
    # Only for a runtime with images of its own:
    image_ref: str = ""  # the id of the pulled image
    limits: CgroupLimits = CgroupLimits()
    added_capabilities: tuple[str, ...] = ()  # to the default capabilities of the runtime
    dropped_capabilities: tuple[str, ...] = ()
    seccomp_profile: str = ""  # RuntimeDefault, or the path of a profile; none if empty
    share_processes: bool = False  # shareProcessNamespace of the pod
    target: str = ""  # the name of the container whose process namespace it joins
    user_name: str = ""  # the user of the image, if it is a name
    message_path: str = ""  # terminationMessagePath


class ContainerRunState(Struct, frozen=True):
    id: str
    running: bool
    pid: int = 0
    started_at: str = ""
    finished_at: str = ""
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    spec: ContainerSpec | None = None  # the spec it was started with, also after a restart of the node
    runtime_id: str = ""  # the id of a runtime that chooses ids itself, such as containerd://…
    image: str = ""  # the image that runs, by name,
    image_id: str = ""  # and by digest
    recursive_mounts: frozenset[str] | None = None  # paths that are read-only with all below; None: as asked


class ContainerError(Exception):
    """An operation on a container failed; the text is shown in the pod's events."""

    reason = "RunContainerError"  # of a container that waits for its start


class NoSuchContainer(ContainerError):
    def __init__(self, id: str) -> None:
        super().__init__(f'container "{id}" does not exist')


class ContainerNotRunning(ContainerError):
    def __init__(self, id: str) -> None:
        super().__init__(f'container "{id}" is not running')


class StartFailed(ContainerError):
    """The container was not started, and nothing is left of it."""


class CreationFailed(StartFailed):
    """The container was not created."""

    reason = "CreateContainerError"


class ImageNotAllowed(CreationFailed):
    """The pod may not run that image now; retry later."""


class ExecRefused(ContainerError):
    pass


class CannotExec(ContainerError):
    """The command could not be started; `code` is the exit code of a shell in that case."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class AttachRefused(ContainerError):
    pass


class ExecInput(Protocol):
    async def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


class ExecOutput(Protocol):
    async def read(self, limit: int = 65536) -> bytes:
        """Data that is available; b"" at the end."""
        ...


class ExecSession(Protocol):
    """A command running inside a container."""

    @property
    def stdin(self) -> ExecInput | None: ...
    @property
    def stdout(self) -> ExecOutput: ...
    @property
    def stderr(self) -> ExecOutput | None:
        """None with a terminal, which has one output."""
        ...

    def resize(self, width: int, height: int) -> None: ...
    async def wait(self) -> int: ...
    async def close(self) -> None:
        """Kill the command if it still runs."""
        ...


class AttachSession(Protocol):
    """An attached client: receives a container's output from now on and may write to its input."""

    def read_output(self) -> AsyncIterator[tuple[str, bytes]]:
        """("stdout" or "stderr", data), until the container has ended."""
        ...

    async def write(self, data: bytes) -> None: ...
    async def end_input(self) -> None:
        """No more input follows; with stdinOnce the container's input ends."""
        ...

    async def resize(self, width: int, height: int) -> None: ...
    def close(self) -> None: ...


class Runtime(Protocol):
    async def start(self, spec: ContainerSpec) -> ContainerRunState:
        """Start a container; one with this id that exists already is left as it is. Raises StartFailed."""
        ...

    async def unfinished_starts(self) -> list[str]:
        """The ids of containers whose start is unfinished, including starts that were given up."""
        ...

    async def cancel_start(self, id: str) -> None:
        """Cancel an unfinished start; afterwards nothing of it is left, or the container exists."""
        ...

    async def stop(self, id: str, grace: float) -> ContainerRunState:
        """Send the stop signal, and kill the container after `grace` seconds. Cancels an unfinished start."""
        ...

    async def state(self, id: str) -> ContainerRunState | None: ...
    async def states(self) -> list[ContainerRunState]:
        """All containers that were not removed, including those of an earlier process of the node."""
        ...

    async def wait(self, id: str) -> ContainerRunState:
        """Wait until the container has exited."""
        ...

    async def exec(
        self, id: str, command: tuple[str, ...], *, tty: bool = False, stdin: bool = False
    ) -> ExecSession: ...
    async def attach(self, id: str, *, stdin: bool = False) -> AttachSession:
        """Attach to a container that was started with stdin or a terminal."""
        ...

    async def remove(self, id: str) -> None:
        """Kill it if it runs, and remove it. Its log stays."""
        ...

    async def close(self) -> None:
        """Release all resources; containers that can outlive this process go on running."""
        ...


def signal_number(name: str) -> int:
    """The number of a signal such as SIGUSR1 or SIGRTMIN+3; SIGTERM if this machine does not know it."""
    base, sign, offset = name.partition("+" if "+" in name else "-")
    known = getattr(signal, base, None)
    if not isinstance(known, signal.Signals) or (sign and not offset.isdecimal()):
        return signal.SIGTERM
    return known + int(f"{sign}{offset or 0}")


def make_ended_state(
    state: ContainerRunState, finished_at: str, code: int, message: str = "", reason: str = ""
) -> ContainerRunState:
    return ContainerRunState(
        id=state.id,
        running=False,
        pid=0,
        started_at=state.started_at,
        finished_at=finished_at,
        exit_code=code,
        reason=reason or (ERROR if code else COMPLETED),
        message=message,
        spec=state.spec,
        runtime_id=state.runtime_id,
        image=state.image,
        image_id=state.image_id,
    )
