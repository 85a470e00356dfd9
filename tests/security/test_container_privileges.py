"""A container's command has exactly the privileges of its spec."""

from __future__ import annotations

import base64
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.conftest import RuntimeEnv
from volplane.host import mounts
from volplane.node.containers.base import DEFAULT_CAPABILITIES, Mount, StartFailed
from volplane.node.containers.launcher import identity

pytestmark = pytest.mark.root

CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RuntimeEnv]:
    tmp_path.chmod(0o755)
    yield RuntimeEnv(tmp_path)
    for entry in mounts.read_table().under(str(tmp_path)):
        mounts.unmount(entry.target, detach=True)


def mask(names: tuple[str, ...]) -> int:
    return sum(identity._BITS[name] for name in names)


def read(path: str) -> str:
    return Path(path).read_text()


def status_of(text: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


async def run(room: RuntimeEnv, script: str, **more: Any) -> list[str]:
    """The output of a script as the container's command and by exec; both must be equal."""
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell(f"({script}) 2>&1", **more))
        await runtime.wait("one")
        await runtime.start(room.spec("sleep", "1000", id="two", **more))
        _, entered = await room.run_in(runtime, "two", "sh", "-c", f"({script}) 2>&1")
        await runtime.stop("two", 0)
    assert entered.splitlines() == room.output()
    return room.output()


async def status(room: RuntimeEnv, **more: Any) -> dict[str, str]:
    return status_of(
        "\n".join(await run(room, "grep -E '^(Cap|NoNew|Uid|Seccomp:)' /proc/self/status", **more))
    )


@pytest.mark.parametrize(
    ("names", "held"),
    [
        (None, DEFAULT_CAPABILITIES),
        ((), ()),
        (("CAP_NET_ADMIN",), ("CAP_NET_ADMIN",)),
        (("CAP_CHOWN", "CAP_SYS_TIME", "CAP_NO_SUCH"), ("CAP_CHOWN", "CAP_SYS_TIME")),
    ],
)
async def test_a_container_has_the_capabilities_of_its_spec(room: RuntimeEnv, names: Any, held: Any) -> None:
    found = await status(room, capabilities=names)
    wanted = mask(held)
    assert {name: int(found[name], 16) for name in CAPABILITIES} == {
        "CapInh": 0,
        "CapPrm": wanted,
        "CapEff": wanted,
        "CapBnd": wanted,
        "CapAmb": 0,
    }


async def test_another_user_than_root_has_none_and_can_get_those_of_the_spec(room: RuntimeEnv) -> None:
    found = await status(room, user=1234, capabilities=("CAP_NET_ADMIN",))
    assert int(found["CapPrm"], 16) == int(found["CapEff"], 16) == 0
    assert int(found["CapBnd"], 16) == mask(("CAP_NET_ADMIN",))
    assert found["Uid"].split() == ["1234"] * 4


async def test_a_privileged_container_has_all_that_the_node_has(room: RuntimeEnv) -> None:
    found = await status(room, privileged=True, capabilities=(), seccomp="not looked at")
    own = status_of(read("/proc/self/status"))
    assert found["CapEff"] == own["CapEff"]


def test_the_launcher_has_the_same_default_as_the_node() -> None:
    assert identity._DEFAULT == DEFAULT_CAPABILITIES
    assert "CAP_MKNOD" not in DEFAULT_CAPABILITIES


@pytest.mark.parametrize("asked", [False, True])
async def test_new_privileges_are_forbidden_where_the_spec_says_so(room: RuntimeEnv, asked: bool) -> None:
    assert (await status(room, no_new_privs=asked))["NoNewPrivs"] == str(int(asked))


# --- files


async def test_a_read_only_root_has_writable_volumes(room: RuntimeEnv) -> None:
    volume = room.path / "volume"
    volume.mkdir()
    script = "touch /x /tmp/x /etc/x /usr/x; touch /data/x && echo written; pwd"
    more = {"mounts": (Mount(str(volume), "/data"),), "workdir": "/made/for/it", "readonly_root": True}
    said = await run(room, script, **more)
    assert [line for line in said if "Read-only" not in line] == ["written", "/made/for/it"]
    assert len(said) == 6


SECRET = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/ssh",
    "/etc/ssl/private",
    "/home",
    "/etc/sudoers",
    "/root/.ssh",
)


async def test_a_container_does_not_see_the_machines_secrets(room: RuntimeEnv) -> None:
    own = room.path / "own"
    own.write_text("key\n")
    script = (
        f"for place in {' '.join(SECRET)}; do ls -A $place; cat $place; done 2>/dev/null; cat /root/.ssh/id"
    )
    said = await run(room, script, mounts=(Mount(str(own), "/root/.ssh/id"),))
    # Files are not there or empty, directories empty; what a pod brings itself, it sees.
    assert [line for line in said if line not in SECRET] == ["id", "key"]


async def test_of_the_home_of_root_only_the_interpreter_is_seen(room: RuntimeEnv) -> None:
    said = await run(room, "find /root -xdev -not -type d; ls -A /root")
    first = {Path(p).parts[2] for p in (sys.prefix, sys.base_prefix) if p.startswith("/root/")}
    assert set(said) == first


async def test_the_interpreter_runs_in_a_container_and_cannot_be_changed(room: RuntimeEnv) -> None:
    probe = "import json, encodings.cp037, sys; print(sys.version_info[:2])"
    said = await run(room, f'{sys.executable} -I -c "{probe}"; touch {sys.base_prefix}/x')
    assert said[0] == str(tuple(sys.version_info[:2]))
    inside = any(sys.base_prefix.startswith(f"{place}/") for place in ("/root", "/home"))
    assert not inside or "Read-only file system" in said[1]
    assert not os.path.exists(f"{sys.base_prefix}/x")  # noqa: ASYNC240


async def test_the_machines_secrets_are_seen_where_the_spec_says_so(room: RuntimeEnv) -> None:
    machine = sorted(os.listdir("/root"))
    assert await run(room, "ls -A -1 /root | LC_ALL=C sort", cover_secrets=False) == machine


# --- devices


async def test_a_device_node_that_a_container_makes_is_of_no_use(room: RuntimeEnv) -> None:
    """One that may make them: neither in its root, nor in a volume, nor where devices can be used."""
    volume = room.path / "volume"
    volume.mkdir()
    script = """
    mknod /dev/made c 1 5 2>/dev/null && echo made in /dev
    for place in /tmp /data /dev/shm; do
        rm -f $place/made; mknod $place/made c 1 5 && head -c 1 $place/made > /dev/null && echo used in $place
    done
    head -c 1 /dev/zero > /dev/null && echo given ones work
    """
    capabilities = (*DEFAULT_CAPABILITIES, "CAP_MKNOD")
    said = await run(room, script, capabilities=capabilities, mounts=(Mount(str(volume), "/data"),))
    assert [line for line in said if "Permission denied" not in line] == ["given ones work"]


@pytest.mark.parametrize("propagation", ["rslave", "private"])
async def test_a_container_that_makes_device_nodes_gets_no_mounts_that_come_later(
    room: RuntimeEnv, propagation: Any
) -> None:
    """Those would have devices. A directory that brings mounts along follows the machine's, too."""
    volume = room.path / "volume"
    (volume / "inner").mkdir(parents=True)
    if propagation == "private":
        mounts.mount("tmpfs", str(volume / "inner"), "tmpfs", [])
    given = (Mount(str(volume), "/data", propagation=propagation),)
    more: dict[str, Any] = {"capabilities": (*DEFAULT_CAPABILITIES, "CAP_MKNOD"), "mounts": given}
    async with room.temporary_runtime() as runtime:
        with pytest.raises(StartFailed, match=r"cannot mount .*/volume at /data: .*MKNOD"):
            await runtime.start(room.spec("true", **more))


async def test_a_device_in_a_volume_is_of_no_use(room: RuntimeEnv) -> None:
    volume = room.path / "volume"
    volume.mkdir()
    os.mknod(volume / "zero", 0o020666, os.makedev(1, 5))
    said = await run(room, "head -c 1 /data/zero", mounts=(Mount(str(volume), "/data"),))
    assert "Permission denied" in said[0]


# --- settings of the kernel


async def test_sysctls_are_set_in_the_containers_own_namespaces(room: RuntimeEnv) -> None:
    before = read("/proc/sys/kernel/shm_rmid_forced")
    script = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/kernel/msgmax; echo 0 > /proc/sys/kernel/msgmax"
    said = await run(room, script, sysctls={"kernel.shm_rmid_forced": "1", "kernel/msgmax": "65000"})
    assert said[:2] == ["1", "65000"]
    assert "Read-only file system" in said[2]
    assert read("/proc/sys/kernel/shm_rmid_forced") == before


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("vm.swappiness", {}),
        ("kernel.core_pattern", {}),
        ("net.ipv4.ip_forward", {}),  # the container shares the machine's network
        ("kernel.shm_rmid_forced", {"host_ipc": True}),
        ("kernel/../vm/swappiness", {}),
        ("fs/mqueue/../../vm/swappiness", {}),
    ],
)
async def test_a_sysctl_of_the_machine_is_refused(room: RuntimeEnv, name: str, more: Any) -> None:
    place = name if "/" in name else name.replace(".", "/")
    same = read(f"/proc/sys/{place}").strip()  # so that the machine stays as it is, should it be set
    async with room.temporary_runtime() as runtime:
        with pytest.raises(StartFailed, match=f"cannot set sysctl {name}: "):
            await runtime.start(room.spec("true", sysctls={name: same}, **more))


async def test_a_sysctl_of_the_network_is_the_pods(room: RuntimeEnv) -> None:
    name = f"vp-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)  # noqa: ASYNC221
    try:
        more = {"network": f"/run/netns/{name}", "sysctls": {"net.ipv4.ip_unprivileged_port_start": "7"}}
        assert await run(room, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", **more) == ["7"]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)  # noqa: ASYNC221


async def test_a_proc_hides_what_is_the_machines(room: RuntimeEnv) -> None:
    files, places = "/proc/keys /proc/kcore /proc/timer_list /proc/interrupts", "/proc/acpi /sys/firmware"
    look = f"cat {files} 2>/dev/null; find {places} -mindepth 1 2>/dev/null"
    script = f"{look}; echo x > /proc/sys/kernel/core_pattern"
    masked = await run(room, script)
    assert len(masked) == 1
    assert "Read-only file system" in masked[0]


async def test_a_proc_that_is_not_masked_shows_what_is_hidden_otherwise(room: RuntimeEnv) -> None:
    script = "test -c /proc/keys && echo hidden; echo x > /proc/sys/kernel/core_pattern"
    said = await run(room, script, proc_mount="Unmasked")
    assert len(said) == 1  # the setting is refused all the same
    assert "Read-only file system" in said[0]


# --- filters


def refuse_call(number: int) -> str:
    """A seccomp program that answers one call with EPERM and allows every other."""
    load, equal, answer = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, 0x00050001), (answer, 0, 0, 0x7FFF0000)]
    return base64.b64encode(b"".join(struct.pack("=HBBI", *step) for step in program)).decode()


UNAME = {"x86_64": 63, "aarch64": 160}.get(os.uname().machine, 0)


@pytest.mark.skipif(not UNAME, reason="the number of a call is known for two architectures only")
@pytest.mark.parametrize("no_new_privs", [False, True])
@pytest.mark.parametrize("user", [None, 1234])
async def test_a_filter_refuses_what_it_says(room: RuntimeEnv, no_new_privs: bool, user: Any) -> None:
    more = {"seccomp": refuse_call(UNAME), "no_new_privs": no_new_privs, "user": user}
    found = await run(
        room, "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; uname || echo refused", **more
    )
    assert status_of("\n".join(found)) == {"Seccomp": "2", "NoNewPrivs": str(int(no_new_privs))}
    assert found[-1] == "refused"


PRCTL = {"x86_64": 157, "aarch64": 167}.get(os.uname().machine, 0)


@pytest.mark.skipif(not PRCTL, reason="the number of a call is known for two architectures only")
async def test_a_filter_cannot_keep_the_bounding_set(room: RuntimeEnv) -> None:
    """It answers as a kernel that knows no capabilities."""
    load, equal, answer, drop = 0x20, 0x15, 0x06, 24
    steps = [
        (load, 0, 0, 0),
        (equal, 0, 3, PRCTL),
        (load, 0, 0, 16),
        (equal, 0, 1, drop),
        (answer, 0, 0, 0x00050016),  # EINVAL
        (answer, 0, 0, 0x7FFF0000),
    ]
    program = base64.b64encode(b"".join(struct.pack("=HBBI", *step) for step in steps)).decode()
    found = await status(room, seccomp=program, capabilities=("CAP_CHOWN",))
    assert int(found["CapBnd"], 16) == mask(("CAP_CHOWN",))


@pytest.mark.parametrize("seccomp", ["AAAA", "not base64", base64.b64encode(bytes(8)).decode()])
async def test_a_filter_that_is_none_starts_nothing(room: RuntimeEnv, seccomp: str) -> None:
    async with room.temporary_runtime() as runtime:
        with pytest.raises(StartFailed, match="cannot take the container's user, capabilities and filter"):
            await runtime.start(room.spec("true", seccomp=seccomp))
