"""Traps in a container's root: a process that triggers one has only the container's privileges.

Each trap lies where something that makes or enters the container might look: a library that the C library
loads for a user's name, a codec for a traceback, a pipe in the place of a device. It comes as a volume, so
any pod could bring it. A trap that is sprung leaves a mark with the capabilities of whoever sprang it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.conftest import RuntimeEnv
from volplane.host import mounts
from volplane.node.containers import launcher_client
from volplane.node.containers.base import DEFAULT_CAPABILITIES, CannotExec, Mount, StartFailed
from volplane.node.containers.launcher import identity

pytestmark = pytest.mark.root

LAUNCHER = f"{launcher_client._PACKAGE_DIRECTORY}/launcher"
PYTHON = os.path.realpath(sys.executable)
STDLIB = sysconfig.get_path("stdlib")
USER = 1234
DEFAULT = 0
for _name in DEFAULT_CAPABILITIES:
    DEFAULT |= identity._BITS[_name]

PYTHON_TRAP = """# -*- coding: utf-8 -*-
import os
with open("/mark/sprung", "a") as file:
    try:
        file.write([line for line in open("/proc/self/status") if line.startswith("CapEff")][0])
    except OSError:
        file.write("?\\n")
"""
C_TRAP = r"""
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void spring(void) {
    char text[4096], *line;
    int from = open("/proc/self/status", O_RDONLY);
    int to = open("/mark/sprung", O_WRONLY | O_CREAT | O_APPEND, 0666);
    ssize_t size = from < 0 ? 0 : read(from, text, sizeof text - 1);
    text[size > 0 ? size : 0] = 0;
    line = strstr(text, "CapEff");
    if (to >= 0) write(to, line ? line : "?\n", line ? strchr(line, '\n') + 1 - line : 2);
    close(from);
    close(to);
}
"""


class Trapped:
    """A room with a place for traps and one for the marks they leave."""

    def __init__(self, room: RuntimeEnv) -> None:
        self.room = room
        self.mark = room.path / "mark"
        self.mark.mkdir()
        self.mark.chmod(0o777)
        self.traps = room.path / "traps"
        self.traps.mkdir()
        self.mounts = [Mount(str(self.mark), "/mark")]

    def file(self, content: bytes | str, target: str) -> None:
        path = self.traps / f"file-{len(self.mounts)}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(0o755)
        self.mounts.append(Mount(str(path), target))

    def place(self, target: str, make: Callable[[Path], None]) -> None:
        """A volume at `target` that `make` fills."""
        path = self.traps / f"volume-{len(self.mounts)}"
        path.mkdir()
        make(path)
        self.mounts.append(Mount(str(path), target))

    def special(self, target: str, make: Callable[[Path], None]) -> None:
        """Something that `make` makes, at `target`."""
        path = self.traps / f"special-{len(self.mounts)}"
        make(path)
        self.mounts.append(Mount(str(path), target))

    def spec(self, *command: str, **more: Any) -> Any:
        return self.room.spec(*command, mounts=tuple(self.mounts), **more)

    def sprung(self) -> list[int]:
        """The capabilities of the processes that triggered a trap; -1 if /proc does not show them."""
        path = self.mark / "sprung"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1], 16) if line.startswith("CapEff") else -1 for line in lines]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RuntimeEnv]:
    tmp_path.chmod(0o755)
    yield RuntimeEnv(tmp_path)
    for entry in mounts.read_table().under(str(tmp_path)):
        mounts.unmount(entry.target, detach=True)


@pytest.fixture
def trapped(room: RuntimeEnv) -> Trapped:
    return Trapped(room)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library that springs when it is loaded."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a library with")
    directory = tmp_path_factory.mktemp("library")
    source = directory / "trap.c"
    source.write_text(C_TRAP)
    argv = [compiler, "-shared", "-fPIC", "-w", "-o", str(directory / "trap.so"), str(source)]
    subprocess.run(argv, check=True)
    return (directory / "trap.so").read_bytes()


def library_directory() -> str:
    """Where the dynamic linker looks in any case."""
    with open("/proc/self/maps") as file:
        return next(
            os.path.dirname(line.split()[-1]) for line in file if "/libc.so" in line or "/libc-" in line
        )


def read(path: str) -> str:
    return Path(path).read_text()


def is_there(path: str) -> bool:
    return os.path.exists(path)


def status_of(text: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def caps(status: dict[str, str]) -> dict[str, int]:
    return {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}


NOBODY = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": DEFAULT, "CapAmb": 0}
ROOT = {"CapInh": 0, "CapPrm": DEFAULT, "CapEff": DEFAULT, "CapBnd": DEFAULT, "CapAmb": 0}


async def run_trapped(trapped: Trapped, **more: Any) -> dict[str, str]:
    """Start a container and enter it, by a pipe and by a terminal; the status of its command."""
    room = trapped.room
    async with room.temporary_runtime() as runtime:
        spec = trapped.spec("sh", "-c", "cat /proc/self/status; exec sleep 1000", **more)
        async with asyncio.timeout(30):
            state = await runtime.start(spec)
            assert state.running, state
            await room.wait_for_output("Seccomp:")
            first = status_of(read(f"/proc/{state.pid}/status"))
            code, text = await room.run_in(runtime, "one", "cat", "/proc/self/status")
            assert code == 0
            await enter_terminal(runtime)
            await runtime.stop("one", 0)
    status = status_of("\n".join(room.output()))
    # Who runs it and who enters it are the same, and pid 1 is no more than that.
    wanted = NOBODY if more.get("user") else ROOT
    for found in (status, first, status_of(text)):
        assert caps(found) == wanted
        assert found["Uid"].split() == [str(more.get("user", 0))] * 4
        assert found["Gid"].split() == [status["Gid"].split()[0]] * 4
        assert found["NoNewPrivs"] == str(int(more.get("no_new_privs", False)))
    return status


async def enter_terminal(runtime: Any) -> None:
    try:
        running = await runtime.exec("one", ("cat", "/proc/self/status"), tty=True)
    except CannotExec as error:
        assert "terminal" in str(error)  # noqa: PT017  # a trap may take it away, and do no more
        return
    while await running.stdout.read():
        pass
    await running.wait()
    await running.close()


# --- the C library


def plant_nss(trapped: Trapped, library: bytes, what: str) -> None:
    trapped.file(f"{what}: trap\n", "/etc/nsswitch.conf")
    trapped.file(library, f"{library_directory()}/libnss_trap.so.2")


def plant_replaced_nss(trapped: Trapped, library: bytes) -> None:
    """The library that every system has, replaced."""
    trapped.file("passwd: compat\ngroup: compat\n", "/etc/nsswitch.conf")
    trapped.file(library, f"{library_directory()}/libnss_compat.so.2")


def plant_systemd_nss(trapped: Trapped, library: bytes) -> None:
    trapped.file("passwd: systemd [NOTFOUND=continue] sss\n", "/etc/nsswitch.conf")
    for name in ("systemd", "sss"):
        trapped.file(library, f"{library_directory()}/libnss_{name}.so.2")


def plant_gconv(trapped: Trapped, library: bytes) -> None:
    """A converter between character sets for what a locale asks for."""
    directory = f"{library_directory()}/gconv"
    names = ("UTF-8", "ANSI_X3.4-1968", "ISO-8859-1", "INTERNAL")
    lines = [f"module {one}// {other}// trap 1" for one in names for other in names if one != other]
    trapped.file("\n".join(lines), f"{directory}/gconv-modules")
    trapped.file(b"", f"{directory}/gconv-modules.cache")
    trapped.file(library, f"{directory}/trap.so")


def plant_locale(trapped: Trapped, library: bytes) -> None:
    """Reading these would block for ever."""
    for path in ("/usr/lib/locale/locale-archive", "/usr/lib/locale/C.utf8/LC_MESSAGES/SYS_LC_MESSAGES"):
        trapped.special(path, os.mkfifo)
    trapped.special("/usr/share/locale/locale.alias", os.mkfifo)
    trapped.special("/etc/localtime", os.mkfifo)


def plant_terminfo(trapped: Trapped, library: bytes) -> None:
    trapped.special("/usr/share/terminfo/x/xterm", os.mkfifo)
    trapped.special("/lib/terminfo/x/xterm", os.mkfifo)
    trapped.special("/etc/inputrc", os.mkfifo)


PLANTS = {
    "nss-passwd": lambda trapped, library: plant_nss(trapped, library, "passwd"),
    "nss-groups": lambda trapped, library: plant_nss(trapped, library, "passwd: files\ngroup"),
    "nss-initgroups": lambda trapped, library: plant_nss(trapped, library, "initgroups"),
    "nss-replaced": plant_replaced_nss,
    "nss-systemd": plant_systemd_nss,
    "gconv": plant_gconv,
    "locale": plant_locale,
    "terminfo": plant_terminfo,
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
async def test_nothing_of_the_c_librarys_is_loaded_from_a_container(
    trapped: Trapped, library: bytes, plant: Any
) -> None:
    plant(trapped, library)
    await run_trapped(trapped, user=USER)
    assert trapped.sprung() == []


async def test_a_library_that_every_program_loads_is_loaded_by_the_containers_programs_only(
    trapped: Trapped, library: bytes
) -> None:
    trapped.file(library, "/preloaded.so")
    trapped.file("/preloaded.so\n", "/etc/ld.so.preload")
    await run_trapped(trapped)
    assert set(trapped.sprung()) == {DEFAULT}


# --- Python


def plant_codec(trapped: Trapped) -> None:
    """What shows a traceback reads the source files, and each may name the codec it is written in."""

    def fill(path: Path) -> None:
        for name in os.listdir(LAUNCHER):
            if name.endswith(".py"):
                (path / name).write_text("# -*- coding: cp037 -*-\n" * 2)

    trapped.place(LAUNCHER, fill)
    trapped.file(PYTHON_TRAP, f"{STDLIB}/encodings/cp037.py")


def plant_encodings(trapped: Trapped) -> None:
    def fill(path: Path) -> None:
        for name in os.listdir(f"{STDLIB}/encodings"):
            if name.endswith(".py"):
                (path / name).write_text(PYTHON_TRAP)

    trapped.place(f"{STDLIB}/encodings", fill)


def plant_standard_library(trapped: Trapped) -> None:
    """Every module there is, in the place of the standard library."""

    def fill(path: Path) -> None:
        for name in sys.stdlib_module_names:
            (path / f"{name}.py").write_text(PYTHON_TRAP)
        (path / "encodings").mkdir()
        (path / "encodings" / "__init__.py").write_text(PYTHON_TRAP)

    trapped.place(STDLIB, fill)


def plant_site_packages(trapped: Trapped) -> None:
    def fill(path: Path) -> None:
        for name in ("sitecustomize", "usercustomize", "traceback", "linecache", "tokenize", "pwd", "grp"):
            (path / f"{name}.py").write_text(PYTHON_TRAP)
        (path / "trap.pth").write_text("import sitecustomize\n")

    for place in ("/usr/lib/python3/dist-packages", f"{STDLIB}/site-packages"):
        if os.path.isdir(place):
            trapped.place(place, fill)


def plant_working_directory(trapped: Trapped) -> None:
    """Python looks for modules where it stands, too."""

    def fill(path: Path) -> None:
        for name in ("traceback", "linecache", "codecs", "pwd", "struct", "socket"):
            (path / f"{name}.py").write_text(PYTHON_TRAP)

    trapped.place("/srv/app", fill)


PYTHON_PLANTS = {
    "codec-of-source": plant_codec,
    "encodings": plant_encodings,
    "standard-library": plant_standard_library,
    "site-packages": plant_site_packages,
    "working-directory": plant_working_directory,
}


@pytest.mark.parametrize("plant", PYTHON_PLANTS.values(), ids=PYTHON_PLANTS)
async def test_no_error_inside_a_container_imports_its_code(trapped: Trapped, plant: Any) -> None:
    """With a terminal that cannot be opened, and commands that cannot be run, so that there are errors."""
    plant(trapped)
    trapped.place("/dev/pts", lambda path: None)
    room = trapped.room
    async with room.temporary_runtime() as runtime, asyncio.timeout(30):
        await runtime.start(trapped.spec("sleep", "1000", workdir="/srv/app"))
        with pytest.raises(CannotExec, match="terminal"):
            await runtime.exec("one", ("cat",), tty=True)
        for command, words in (("no-such", "not found in"), ("/etc/passwd", "permission denied")):
            with pytest.raises(CannotExec, match=words):
                await runtime.exec("one", (command,))
        await runtime.start(trapped.spec("/no/such/é", id="two", workdir="/srv/app"))
        assert (await runtime.wait("two")).exit_code == 127
        with pytest.raises(StartFailed, match="terminal"):
            await runtime.start(trapped.spec("sh", id="three", tty=True))
        await runtime.stop("one", 0)
    assert trapped.sprung() == []


async def test_the_traps_for_python_spring_for_the_containers_own_programs(trapped: Trapped) -> None:
    """With the container's capabilities only: a trap that never springs would show nothing."""
    plant_working_directory(trapped)
    room = trapped.room
    async with room.temporary_runtime() as runtime, asyncio.timeout(30):
        await runtime.start(trapped.spec(PYTHON, "-c", "import traceback", workdir="/srv/app"))
        await runtime.wait("one")
    assert set(trapped.sprung()) == {DEFAULT}


# --- /etc/passwd


def make_huge(path: Path) -> None:
    path.write_bytes(b"x" * (64 << 20) + f"\nu:x:{USER}:7:::/home/u:/bin/sh\n".encode())


def make_endless_line(path: Path) -> None:
    path.write_bytes(b":" * (4 << 20))


def make_many_lines(path: Path) -> None:
    path.write_bytes(f"u:x:{USER}:99999999999999999999999999:c:/h:/s\n".encode() * 20000)


def make_link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def make_device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


PASSWD_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "huge": make_huge,
    "endless-line": make_endless_line,
    "impossible-group": make_many_lines,
    "device": make_device,
    "directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("make", PASSWD_FILES.values(), ids=PASSWD_FILES)
async def test_a_passwd_file_that_is_none_gives_no_user_a_group(trapped: Trapped, make: Any) -> None:
    trapped.special("/etc/passwd", make) if make is not PASSWD_FILES["directory"] else trapped.place(
        "/etc", lambda path: (path / "passwd").mkdir()
    )
    status = await run_trapped(trapped, user=USER)
    assert status["Gid"].split()[0] == "0"


@pytest.mark.parametrize("target", ["/proc/1/root/etc/passwd", "/proc/self/fd/0", "/proc/kmsg", "/dev/zero"])
async def test_a_passwd_file_behind_a_link_is_not_read(trapped: Trapped, target: str) -> None:
    trapped.place("/etc", lambda path: make_link(target)(path / "passwd"))
    status = await run_trapped(trapped, user=USER)
    assert status["Gid"].split()[0] == "0"


async def test_a_passwd_file_says_which_group_a_user_has_and_where_it_is_at_home(trapped: Trapped) -> None:
    trapped.file(f"bad:x:{USER}\nu:x:{USER}:77:A User:/home/u:/bin/sh\n", "/etc/passwd")
    async with trapped.room.temporary_runtime() as runtime:
        await runtime.start(trapped.spec("sh", "-c", "echo $(id -g) $HOME", user=USER))
        assert (await runtime.wait("one")).exit_code == 0
    assert trapped.room.output() == ["77 /home/u"]


# --- terminals


def fill_dev(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def fill(path: Path) -> None:
        (path / "pts").mkdir()
        make(path / "ptmx")
        make(path / "pts" / "ptmx")
        os.mknod(path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))

    return fill


TERMINALS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "other-device": make_device,
    "link-to-descriptor": make_link("/proc/self/fd/3"),
    "link-to-the-machine": make_link("/proc/1/root/dev/ptmx"),
    "file": lambda path: path.touch(),
    "same-numbers": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(5, 2)),
}


@pytest.mark.parametrize("make", TERMINALS.values(), ids=TERMINALS)
async def test_what_lies_in_the_place_of_a_terminal_is_none(trapped: Trapped, make: Any) -> None:
    trapped.place("/dev", fill_dev(make))
    async with trapped.room.temporary_runtime() as runtime, asyncio.timeout(30):
        await runtime.start(trapped.spec("sleep", "1000"))
        with pytest.raises(CannotExec, match="cannot open a terminal"):
            await runtime.exec("one", ("cat",), tty=True)
        with pytest.raises(StartFailed, match="cannot open a terminal"):
            await runtime.start(trapped.spec("sh", id="two", tty=True))
        await runtime.stop("one", 0)


# --- places for mounts and for the command


MAGIC = ["/proc/1/root", "/proc/self/root/etc", "/proc/self/fd/3", "/proc/self/cwd", "/proc/1/exe"]


@pytest.mark.parametrize("target", MAGIC)
async def test_a_volume_is_not_mounted_through_a_link_of_another_one(trapped: Trapped, target: str) -> None:
    trapped.place("/links", lambda path: make_link(target)(path / "x"))
    trapped.mounts.append(Mount(str(trapped.mark), "/links/x"))
    trapped.mounts.append(Mount(str(trapped.mark), "/links/x/deeper"))
    async with trapped.room.temporary_runtime() as runtime, asyncio.timeout(30):
        with pytest.raises(StartFailed, match=r"cannot mount .* at /links/x"):
            await runtime.start(trapped.spec("true"))


@pytest.mark.parametrize("target", ["/proc", "/proc/self", "/proc/sys/kernel", "/proc/new", "/links/x"])
async def test_nothing_is_mounted_in_proc(trapped: Trapped, target: str) -> None:
    trapped.place("/links", lambda path: make_link("../proc/sys")(path / "x"))
    trapped.mounts.append(Mount(str(trapped.mark), target))
    async with trapped.room.temporary_runtime() as runtime, asyncio.timeout(30):
        with pytest.raises(StartFailed, match=f"cannot mount .* at {target}: "):
            await runtime.start(trapped.spec("true"))


async def test_a_link_that_leads_out_of_a_volume_leads_to_the_containers_own_root(trapped: Trapped) -> None:
    trapped.place("/links", lambda path: make_link("../../../../../opt")(path / "x"))
    trapped.file("inside\n", "/links/x/escaped/file")
    async with trapped.room.temporary_runtime() as runtime:
        await runtime.start(trapped.spec("cat", "/opt/escaped/file"))
        assert (await runtime.wait("one")).exit_code == 0
    assert trapped.room.output() == ["inside"]
    assert not is_there("/opt/escaped")


@pytest.mark.parametrize("target", [*MAGIC, "/proc/1/root/made/for/it", "nowhere/at/all"])
async def test_a_working_directory_is_not_found_through_a_link_to_somewhere_else(
    trapped: Trapped, target: str
) -> None:
    trapped.place("/links", lambda path: make_link(target)(path / "x"))
    async with trapped.room.temporary_runtime() as runtime, asyncio.timeout(30):
        with pytest.raises(StartFailed, match="cannot use working directory /links/x"):
            await runtime.start(trapped.spec("true", workdir="/links/x"))
        await runtime.start(trapped.spec("sleep", "1000", workdir="/links/new"))
        (trapped.traps / "volume-1" / "new").rmdir()
        make_link(target)(trapped.traps / "volume-1" / "new")
        with pytest.raises(CannotExec, match="cannot use working directory /links/new"):
            await runtime.exec("one", ("pwd",))
        await runtime.stop("one", 0)


PROGRAMS = {
    "pipe": os.mkfifo,
    "device": make_device,
    "directory": lambda path: path.mkdir(),
    "link-to-a-pipe": make_link("/proc/self/fd/1"),
}


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
async def test_a_program_that_is_none_is_not_waited_for(trapped: Trapped, make: Any) -> None:
    trapped.place("/programs", lambda path: make(path / "x"))
    async with trapped.room.temporary_runtime() as runtime, asyncio.timeout(30):
        for number, (command, env) in enumerate((("/programs/x", {}), ("x", {"PATH": "/programs"}))):
            spec = trapped.spec(command, id=f"c{number}", env=env)
            state = await runtime.start(spec)
            assert (state.running, state.exit_code, state.reason) == (False, 126, "StartError")
        await runtime.start(trapped.spec("sleep", "1000"))
        with pytest.raises(CannotExec, match="permission denied"):
            await runtime.exec("one", ("/programs/x",))
        await runtime.stop("one", 0)


async def test_a_command_has_its_three_streams_and_nothing_else(trapped: Trapped) -> None:
    async with trapped.room.temporary_runtime() as runtime:
        await runtime.start(trapped.spec("sh", "-c", "ls /proc/self/fd; exec sleep 1000"))
        await trapped.room.wait_for_output("3")
        assert trapped.room.output() == ["0", "1", "2", "3"]  # the last one is what lists them
        assert await trapped.room.run_in(runtime, "one", "ls", "/proc/self/fd") == (0, "0\n1\n2\n3\n")
        await runtime.stop("one", 0)


async def test_the_first_process_shows_nothing_of_itself(trapped: Trapped) -> None:
    names = "root/etc/passwd exe fd/0 mem environ maps ns/mnt"
    script = f"for name in {names}; do head -c 1 /proc/1/$name > /dev/null 2>&1 && echo $name; done"
    async with trapped.room.temporary_runtime() as runtime:
        for id, user in (("one", None), ("two", USER)):
            await runtime.start(trapped.spec("sh", "-c", f"{script}; ls -A /proc/1/cwd/", id=id, user=user))
            assert (await runtime.wait(id)).exit_code != 0
            assert trapped.room.output(id) == []
