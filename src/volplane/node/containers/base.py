"""What every way of running a container has in common.

A container has an id, chosen by the caller and never used again for another one: a restart is a new container
with the next attempt. That makes every call here safe to repeat after a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Literal, Protocol

from msgspec import Struct

Propagation = Literal["private", "rslave", "rshared"]
ProcMount = Literal["Default", "Unmasked"]

# What a container that asks for nothing may do, as containerd has it, but for MKNOD: there is not always a
# device cgroup here, and with a node of the machine's disk a container's root would own the machine.
DEFAULT_CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
    "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
)  # fmt: skip

COMPLETED, ERROR, START_ERROR = "Completed", "Error", "StartError"
KILLED = 137  # 128 + SIGKILL, as every runtime reports it


class Mount(Struct, frozen=True):
    source: str  # a path of this machine
    target: str  # where the container sees it
    readonly: bool = False
    propagation: Propagation = "private"
    recursive: bool = False  # read-only counts for what is mounted below it, too


class ContainerDevice(Struct, frozen=True):
    source: str
    target: str
    permissions: str = "mrw"


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
    log_max_size: int = 0  # bytes of one file of its log; 0: no limit
    log_max_files: int = 0  # how many files of it there may be, the one that is written included
    host_network: bool = False  # the pod asked for the machine's network
    host_pid: bool = False
    host_ipc: bool = False
    network: str = ""  # a network namespace to join, such as /run/netns/x; the host's if empty
    stop_signal: str = "SIGTERM"  # with which it is asked to end
    cgroups: tuple[str, ...] = ()  # directories whose cgroup.procs the container joins
    stdin: bool = False  # it has an input that whoever attaches may write to,
    stdin_once: bool = False  # and that ends with the first who does
    tty: bool = False
    capabilities: tuple[str, ...] | None = None  # names like CAP_CHOWN; DEFAULT_CAPABILITIES if None
    no_new_privs: bool = False
    readonly_root: bool = False  # volumes stay as writable as they are
    seccomp: str = ""  # base64 of a compiled filter, an array of struct sock_filter; none if empty
    sysctls: Mapping[str, str] = {}  # set in the container's own namespaces
    proc_mount: ProcMount = "Default"
    cover_secrets: bool = True  # keys and passwords of this machine are not seen


class ContainerRunState(Struct, frozen=True):
    id: str
    running: bool
    pid: int = 0
    started_at: str = ""
    finished_at: str = ""
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    spec: ContainerSpec | None = None  # what it was started with, also after a restart of the node


class ContainerError(Exception):
    """A container cannot do what was asked; the text is for the pod's events."""


class NoSuchContainer(ContainerError):
    def __init__(self, id: str) -> None:
        super().__init__(f'container "{id}" does not exist')


class ContainerNotRunning(ContainerError):
    def __init__(self, id: str) -> None:
        super().__init__(f'container "{id}" is not running')


class StartFailed(ContainerError):
    """Nothing was started and nothing is left of it."""


class ImageNotAllowed(StartFailed):
    """The pod may not run that image; it may be allowed later."""


class ExecRefused(ContainerError):
    pass


class AttachRefused(ContainerError):
    pass


class ExecInput(Protocol):
    async def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


class ExecOutput(Protocol):
    async def read(self, limit: int = 65536) -> bytes:
        """What is there; nothing means the end."""
        ...


class ExecSession(Protocol):
    """A command running inside a container."""

    @property
    def stdin(self) -> ExecInput | None: ...
    @property
    def stdout(self) -> ExecOutput: ...
    @property
    def stderr(self) -> ExecOutput | None:
        """None with a terminal: there everything comes out of one end."""
        ...

    def resize(self, width: int, height: int) -> None: ...
    async def wait(self) -> int: ...
    async def close(self) -> None:
        """Ends the command if it still runs."""
        ...


class AttachSession(Protocol):
    """Somebody who hears what a container says from now on, and may speak to it."""

    def listen(self) -> AsyncIterator[tuple[str, bytes]]:
        """("stdout" or "stderr", data), until the container has ended."""
        ...

    async def write(self, data: bytes) -> None: ...
    async def end_input(self) -> None:
        """Nothing more is said; the container's input ends if it was for the first one only."""
        ...

    async def resize(self, width: int, height: int) -> None: ...
    def close(self) -> None: ...


class Runtime(Protocol):
    async def start(self, spec: ContainerSpec) -> ContainerRunState:
        """Run it; a container of this id that exists already is left as it is. Raises StartFailed."""
        ...

    async def starts(self) -> list[str]:
        """The ids of containers whose start has begun and has come to no end, those given up included."""
        ...

    async def cancel_start(self, id: str) -> None:
        """End a start that is under way; afterwards nothing of it is left, or the container exists."""
        ...

    async def stop(self, id: str, grace: float) -> ContainerRunState:
        """Ask it to end, and after `grace` seconds end it; a start that is under way is cancelled."""
        ...

    async def state(self, id: str) -> ContainerRunState | None: ...
    async def states(self) -> list[ContainerRunState]:
        """All containers not yet removed, those of an earlier life of this process included."""
        ...

    async def wait(self, id: str) -> ContainerRunState:
        """Until it has ended."""
        ...

    async def exec(
        self, id: str, command: tuple[str, ...], *, tty: bool = False, stdin: bool = False
    ) -> ExecSession: ...
    async def attach(self, id: str, *, stdin: bool = False) -> AttachSession:
        """To a container that was started with an input or a terminal; others say all in their logs."""
        ...

    async def remove(self, id: str) -> None:
        """End it if need be and forget it. Its log stays."""
        ...

    async def close(self) -> None:
        """Let go without ending what can outlive this process."""
        ...


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
    )
