"""A container's command: its environment, its terminal, and how it is started.

All of it runs after `identity.drop_privileges`, in the container's root, and reads the container's files
with the container's own privileges.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import struct
import termios
from contextlib import suppress

from . import kernel, paths
from .failures import DENIED_IN_PATH, NO_TERMINAL, NOT_IN_PATH, PROGRAM, TERMINAL, SetupFailure, SetupProgress
from .identity import ContainerProcessUser
from .spec import Spec

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SIGNALS = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441
_MULTIPLEXER = os.makedev(5, 2)


class PreparedCommand:
    """A program that was found, and all that it is started with."""

    def __init__(self, program: str, argv: list[str], env: dict[str, str], stdio: list[int]) -> None:
        self._program, self._argv, self._env = program, argv, env
        self._stdio = stdio  # three streams, or one terminal

    def start(self) -> int:
        """Start it in a session of its own and return its pid."""
        kernel.close_on_exec(3)  # not every descriptor that came over a socket has the flag
        if len(self._stdio) == 1:
            return _fork_on_terminal(self._program, self._argv, self._env, self._stdio[0])
        return os.posix_spawn(
            self._program,
            self._argv,
            self._env,
            file_actions=[(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(self._stdio)],
            setsid=True,
            setsigmask=(),
            setsigdef=SIGNALS,
        )


def prepare(
    spec: Spec,
    argv: list[str],
    user: ContainerProcessUser,
    stdio: list[int],
    terminal_socket: socket.socket | None,
    progress: SetupProgress,
) -> PreparedCommand:
    """Find the program and its environment. It will get the streams `stdio`, or a terminal.

    With `terminal_socket`, a terminal is opened and its master end is sent over that socket.
    """
    env = build_environment(spec, user)
    if terminal_socket is not None:
        progress.reach(TERMINAL)
        stdio = [_open_terminal(terminal_socket)]
        env = {"TERM": "xterm", **env}
    progress.reach(PROGRAM)
    argv = _replace_program(argv, spec["program"], env["PATH"])
    return PreparedCommand(_find_program(argv[0], env["PATH"]), argv, env, stdio)


def _replace_program(argv: list[str], program: list[str], path: str) -> list[str]:
    """The command with the program that stands for the image's, if it names one that is not here."""
    if not program or ("/" in argv[0] and os.path.exists(argv[0])) or argv[: len(program)] == program:
        return argv
    if "/" not in argv[0]:
        try:
            _find_program(argv[0], path)
            return argv
        except SetupFailure:
            pass
    return [*program, *argv[1:]]


def build_environment(spec: Spec, user: ContainerProcessUser) -> dict[str, str]:
    return {"PATH": PATH, "HOME": user.home, "HOSTNAME": spec["hostname"], **spec["env"]}


def _find_program(program: str, path: str) -> str:
    if "/" in program:
        return program
    denied = False
    for directory in path.split(":"):
        candidate = f"{directory or '.'}/{program}"
        try:
            info = os.stat(candidate)
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode) and os.access(candidate, os.X_OK):
            return candidate
        denied = True
    raise SetupFailure(DENIED_IN_PATH if denied else NOT_IN_PATH)


def _open_terminal(terminal_socket: socket.socket) -> int:
    """Open a terminal of the container's devpts. Send the master end away and return the slave."""
    master = _open_multiplexer()
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    # By descriptor: a name in /dev/pts could lead to another terminal.
    slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    socket.send_fds(terminal_socket, [b'{"terminal": true}\n'], [master])
    os.close(master)
    return slave


def _open_multiplexer() -> int:
    """Privileged containers have the machine's /dev, whose /dev/ptmx belongs to another devpts instance."""
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK  # opening a FIFO in its place must not block
    for path in ("/dev/pts/ptmx", "/dev/ptmx"):
        with suppress(OSError):
            found = paths.open_path(path, links=False)
            is_one = _is_multiplexer(found)
            os.close(found)
            if is_one:
                master = paths.open_path(path, flags=flags, links=False)
                if _is_multiplexer(master):
                    os.set_blocking(master, True)
                    return master
                os.close(master)
    raise SetupFailure(NO_TERMINAL)


def _is_multiplexer(descriptor: int) -> bool:
    info = os.fstat(descriptor)
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == _MULTIPLEXER


def _fork_on_terminal(program: str, argv: list[str], env: dict[str, str], slave: int) -> int:
    """Like posix_spawn, which cannot make an open terminal the controlling one."""
    report, reporting = os.pipe()  # exec closes the writing end
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for number in range(3):
                os.dup2(slave, number)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execve(program, argv, env)
        except OSError as error:
            os.write(reporting, struct.pack("i", error.errno or 0))
        finally:
            os._exit(127)
    os.close(reporting)
    os.close(slave)
    problem = os.read(report, 4)
    os.close(report)
    if problem:
        os.waitpid(child, 0)
        raise OSError(*struct.unpack("i", problem), "")
    return child
