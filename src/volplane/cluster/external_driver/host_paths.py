"""Paths of the machine that a driver's command needs, but that its container would not see.

A container runs on the machine's root file system, with empty /tmp and /run, without secrets such as home
directories, and without file systems other than the system's own. Needed paths in such places are mounted
into the container.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator

from volplane.base.user_namespace import is_user_namespace
from volplane.cluster.external_driver.model import Command
from volplane.host.mounts import MountTable, read_table
from volplane.host.paths import KUBELET
from volplane.node.containers.launcher.rootfs import SECRETS, SYSTEM
from volplane.node.containers.launcher.user_namespace_root import SYSTEM as USER_NAMESPACE_SYSTEM
from volplane.node.containers.launcher_client import interpreter_paths

EMPTY = ("/tmp", "/var/tmp", "/run")
_SHARED_DIRECTORIES = ("/", *EMPTY, *SYSTEM, "/dev", "/proc", "/sys")


def hidden_paths(command: Command, table: MountTable | None = None) -> tuple[str, ...]:
    """The paths that the command needs and the container hides; only the outermost ones."""
    if command.container is not None:
        return ()
    mounts = [e.target for e in (table or read_table())]
    wanted = [path for path in _paths_of(command) if not _is_seen(path, mounts)]
    return tuple(_outermost(dict.fromkeys(wanted)))


def _paths_of(command: Command) -> Iterator[str]:
    yield from _unless_shared(command.directory)
    program = command.argv[0]
    for path in dict.fromkeys((program, os.path.realpath(program), _interpreter(program))):
        if path.startswith("/"):
            yield from _install_directory(path)
    texts = [*command.argv[1:], *command.env.values()]
    for text in texts:
        for part in (*text.partition("=")[::2], *text.split(":")):
            if part.startswith("/") and os.path.exists(part):
                yield from _paths_of_argument(part)


def _paths_of_argument(path: str) -> Iterator[str]:
    """What a path in an argument leads to; it may be a program, for a script that starts it."""
    environment = os.path.dirname(os.path.dirname(path))
    if os.path.exists(os.path.join(environment, "pyvenv.cfg")) or _is_installed_program(path):
        yield from _install_directory(path)
    for one in dict.fromkeys((path, os.path.realpath(path))):
        yield from _with_neighbours(one)


def _is_installed_program(path: str) -> bool:
    """Whether it is a program in a directory `bin`, whose libraries may be beside that."""
    in_bin = os.path.basename(os.path.dirname(path)) == "bin"
    return in_bin and os.path.isfile(path) and os.access(path, os.X_OK)


def _interpreter(program: str) -> str:
    """The interpreter in a script's first line, resolved; "" for a binary."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return ""
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    return os.path.realpath(words[0]) if words else ""


def _unless_shared(path: str) -> Iterator[str]:
    """The path, unless it is a directory that is shared with others, such as /tmp."""
    if os.path.normpath(path) not in _SHARED_DIRECTORIES:
        yield os.path.normpath(path)


def _with_neighbours(path: str) -> Iterator[str]:
    """A directory, or the directory of a file: a script may import the files beside it."""
    directory = path if os.path.isdir(path) else os.path.dirname(path)
    yield from _unless_shared(path if os.path.normpath(directory) in _SHARED_DIRECTORIES else directory)


def _install_directory(program: str) -> Iterator[str]:
    """The directory of an installed program, with the files it may need, as in a virtual environment.

    Of a program in ~/bin, only that directory: never the whole home directory.
    """
    directory = os.path.dirname(program)
    if os.path.basename(directory) == "bin" and not _is_home(os.path.dirname(directory)):
        directory = os.path.dirname(directory)
    if directory in _SHARED_DIRECTORIES:
        yield from _unless_shared(program)
    else:
        yield from _unless_shared(directory)
        yield from _editable_installs(directory)


def _is_home(directory: str) -> bool:
    return os.path.dirname(directory) == "/home" or directory in ("/root", os.path.expanduser("~"))


def _editable_installs(environment: str) -> Iterator[str]:
    """The directories of packages that `pip install -e` has put into a Python environment."""
    for file in glob.glob(f"{glob.escape(environment)}/lib/python3*/site-packages/*.pth"):
        with open(file, errors="replace") as lines:
            for line in map(str.strip, lines):
                if line.startswith("/") and os.path.isdir(line):
                    yield from _unless_shared(line)


def _is_seen(path: str, mounts: Iterable[str]) -> bool:
    if _inside(path, KUBELET):
        return True  # its node's directory, also on a machine with a kubelet of its own
    real = os.path.realpath(path)
    if real != path and any(
        _inside(path, place) and not _inside(real, place) for place in (*EMPTY, *SECRETS)
    ):
        return False  # a link in a place that the container does not have
    covered = [os.path.realpath(place) for place in (*EMPTY, *SECRETS)]
    if any(_inside(real, place) for place in covered):
        shown = [place for place in interpreter_paths() if any(_inside(place, other) for other in covered)]
        return any(_inside(real, place) for place in shown)
    if is_user_namespace() and not any(_inside(real, f"/{name}") for name in USER_NAMESPACE_SYSTEM):
        return False
    around = max((m for m in mounts if _inside(real, m)), key=len, default="/")
    return around == "/" or around in SYSTEM


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _outermost(paths: Iterable[str]) -> Iterator[str]:
    chosen: list[str] = []
    for path in sorted(paths):
        if not any(_inside(path, other) for other in chosen):
            chosen.append(path)
            yield path
