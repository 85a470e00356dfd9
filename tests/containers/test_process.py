"""Process containers: what they see, what they leave behind, and how they exit."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from volplane.host.processes import start_time, wait_for_exit
from volplane.node.containers.base import (
    ContainerDevice,
    ContainerError,
    ContainerSpec,
    Mount,
    NoSuchContainer,
    StartFailed,
    signal_number,
)

pytestmark = pytest.mark.root

DEVICES = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) [FP] ")


def there(path: str) -> bool:
    return Path(path).exists()


async def test_a_command_runs_and_its_output_is_logged(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        state = await runtime.start(room.shell("echo out; echo err >&2; printf partial; exit 3"))
        assert state.running
        assert state.pid > 0
        state = await runtime.wait("one")
        assert (state.running, state.exit_code, state.reason, state.pid) == (False, 3, "Error", 0)
        assert state.started_at <= state.finished_at
        assert state.spec == room.shell("echo out; echo err >&2; printf partial; exit 3")
    assert sorted(room.log()) == [("stderr", "err"), ("stdout", "out"), ("stdout", "partial")]
    lines = (room.path / "logs" / "one" / "0.log").read_text().splitlines()
    assert all(LINE.match(line) for line in lines)
    assert "stdout P partial" in lines[-1] or "stdout P partial" in lines[-2]


async def test_a_command_that_ends_before_we_look_has_ended_as_it_did(
    room: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with room.temporary_runtime() as runtime:
        launch = runtime._launch

        async def late(*args: Any) -> Any:
            answer = await launch(*args)
            await wait_for_exit(answer["shim"])
            return answer

        monkeypatch.setattr(runtime, "_launch", late)
        await runtime.start(room.shell("exit 0"))
        state = await runtime.wait("one")
        assert (state.exit_code, state.reason, state.message) == (0, "Completed", "")


async def test_all_output_is_in_the_log_when_the_container_has_ended(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("seq 1 20000; head -c 40000 /dev/zero | tr '\\0' x"))
        assert (await runtime.wait("one")).reason == "Completed"
    texts = room.output()
    assert texts[:20000] == [str(n) for n in range(1, 20001)]
    assert "".join(texts[20000:]) == "x" * 40000


async def test_a_container_is_its_own_machine(room: Any) -> None:
    script = "hostname; echo $$ $PPID; pwd; echo $GREETING $HOME $HOSTNAME; ls /run /tmp; ls -x -w 0 /dev"
    async with room.temporary_runtime() as runtime:
        spec = room.shell(script, hostname="pod-0", workdir="/made/for/it", env={"GREETING": "hello"})
        await runtime.start(spec)
        assert (await runtime.wait("one")).exit_code == 0
    hostname, pids, workdir, env, *rest = room.output()
    assert hostname == "pod-0"
    assert pids == "2 1"
    assert workdir == "/made/for/it"
    assert env == "hello /root pod-0"
    assert rest[:-1] == ["/run:", "", "/tmp:"]
    assert rest[-1].split() == DEVICES.split()
    assert socket.gethostname() != "pod-0"
    assert not there("/made")


async def test_what_a_container_writes_outside_its_volumes_is_its_own(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(
            room.shell("echo x > /etc/volplane-test && rm -r /usr/share && cat /etc/volplane-test")
        )
        assert (await runtime.wait("one")).exit_code == 0
    assert room.output() == ["x"]
    assert not there("/etc/volplane-test")
    assert there("/usr/share")


async def test_volumes_are_where_the_pod_wants_them(room: Any) -> None:
    data, config = room.path / "data", room.path / "config"
    data.mkdir()
    config.write_text("setting\n")
    mounts = (
        Mount(str(config), "/etc/app/config", readonly=True),
        Mount(str(data), "/srv/data"),
        Mount(str(data), "/srv/data/again", readonly=True),
    )
    script = """
    cat /etc/app/config
    echo y > /etc/app/config || echo refused
    touch /srv/data/file
    rm /srv/data/again/file
    """
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell(script, mounts=mounts))
        assert (await runtime.wait("one")).exit_code == 1
    assert room.output() == ["setting", "refused"]
    assert (data / "file").exists()
    assert config.read_text() == "setting\n"


async def test_a_device_is_given_to_a_container(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        spec = room.shell(
            "head -c 3 /dev/xvda | od -An -tx1", devices=(ContainerDevice("/dev/zero", "/dev/xvda"),)
        )
        await runtime.start(spec)
        assert (await runtime.wait("one")).exit_code == 0
    assert room.output() == [" 00 00 00"]


async def test_every_user_may_use_the_plain_devices(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell("echo gone > /dev/null && stat -c %a /dev/null /dev/zero", user=1234))
        assert (await runtime.wait("one")).exit_code == 0
    assert room.output() == ["666", "666"]


async def test_a_user_and_its_groups(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        script = "id -u; id -g; id -G; touch /etc/x || cat /proc/1/environ"
        await runtime.start(room.shell(script, user=1234, group=55, groups=(66, 77)))
        assert (await runtime.wait("one")).exit_code != 0
    assert room.output() == ["1234", "55", "55 66 77"]


async def test_a_container_may_not_change_the_machine(room: Any) -> None:
    script = """
    mount -t tmpfs none /mnt || echo no mount
    mknod /tmp/disk b 7 0 || echo no device
    echo 1 > /proc/sys/vm/drop_caches || echo no setting
    touch /sys/x || echo no sys
    """
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell(script))
        await runtime.wait("one")
    assert room.output() == ["no mount", "no device", "no setting", "no sys"]


async def test_a_privileged_container_may_mount_and_sees_the_machines_devices(room: Any) -> None:
    script = "mount -t tmpfs none /mnt && test -e /dev/loop-control && echo yes; mount --make-shared /mnt"
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell(script, privileged=True))
        assert (await runtime.wait("one")).exit_code == 0
    assert room.output() == ["yes"]


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (("no-such-program",), 127, 'exec: "no-such-program": executable file not found in $PATH'),
        (("/no/such/file",), 127, 'exec: "/no/such/file": no such file or directory'),
        (("/etc/passwd",), 126, 'exec: "/etc/passwd": permission denied'),
    ],
)
async def test_a_command_that_cannot_run_says_why(
    room: Any, command: tuple[str, ...], code: int, text: str
) -> None:
    async with room.temporary_runtime() as runtime:
        state = await runtime.start(room.spec(*command))
        assert (state.running, state.exit_code, state.reason, state.message) == (
            False,
            code,
            "StartError",
            text,
        )
        assert await runtime.wait("one") == state
    assert room.log() == [("stderr", text)]


async def test_a_container_that_cannot_be_made_leaves_nothing(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        with pytest.raises(StartFailed, match="cannot mount /no/such/source at /data: No such file"):
            await runtime.start(room.spec("true", mounts=(Mount("/no/such/source", "/data"),)))
        nested = (Mount("/etc/hostname", "/data"), Mount("/etc", "/data/x"))
        with pytest.raises(StartFailed, match="Not a directory"):
            await runtime.start(room.spec("true", mounts=nested))
        with pytest.raises(ContainerError, match="cannot be a container's id"):
            await runtime.start(ContainerSpec(id="../x"))
        with pytest.raises(NoSuchContainer):
            await runtime.wait("one")
        assert await runtime.states() == []
        assert await runtime.state("one") is None
        assert not (room.containers / "one").exists()


async def test_an_image_without_a_command_pauses_until_it_is_stopped(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        assert (await runtime.start(room.spec())).running
        assert (await runtime.stop("one", 30)).exit_code == 0


async def test_a_command_may_end_itself_when_asked(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(
            room.shell("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
        )
        await room.wait_for_output("ready")
        state = await runtime.stop("one", 30)
        assert state.exit_code == 7
        assert await runtime.stop("one", 30) == state
    assert room.output() == ["ready", "bye"]


async def test_a_command_that_ignores_the_request_is_killed_with_all_it_started(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.start(
            room.shell("trap '' TERM; setsid sleep 1000 & echo ready; while :; do sleep 100; done")
        )
        await room.wait_for_output("ready")
        assert (await runtime.stop("one", 0.1)).exit_code == 137


async def test_the_first_process_reaps_what_others_leave(room: Any) -> None:
    script = 'sh -c \'sh -c "exit 0" & sh -c "exit 0" &\'; echo ready; exec sleep 1000'
    async with room.temporary_runtime() as runtime:
        await runtime.start(room.shell(script))
        await room.wait_for_output("ready")
        listing = await room.run_in(runtime, "one", "ps", "-e", "-o", "stat=")
        assert "Z" not in listing[1]
        await runtime.stop("one", 0)


async def test_starting_twice_is_starting_once(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        first = await runtime.start(room.spec("sleep", "1000"))
        assert await runtime.start(room.spec("sleep", "1000")) == first
        both = await asyncio.gather(
            runtime.start(room.spec("sleep", "1000", id="two")),
            runtime.start(room.spec("sleep", "1000", id="two")),
        )
        assert both[0] == both[1]


async def test_a_caller_that_leaves_does_not_leave_an_unknown_container(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.prepare()
        starting = asyncio.create_task(runtime.start(room.spec("sleep", "1000")))
        await asyncio.sleep(0.001)
        starting.cancel()
        assert (await runtime.start(room.spec("sleep", "1000"))).running


async def test_a_container_started_by_somebody_else_is_taken_over(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        await runtime.prepare()
        async with room.runtime() as other:
            state = await other.start(room.spec("sleep", "1000"))
        assert await runtime.start(room.spec("sleep", "1000")) == state
        assert (await runtime.stop("one", 0)).exit_code == 137


async def test_many_start_at_once(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        specs = [
            room.shell("echo $HOSTNAME; exec sleep 1000", id=f"c{n}", hostname=f"pod-{n}") for n in range(12)
        ]
        states = await asyncio.gather(*(runtime.start(spec) for spec in specs))
        assert all(state.running for state in states)
        await asyncio.gather(*(room.wait_for_output(f"pod-{n}", f"c{n}") for n in range(12)))
        await asyncio.gather(*(runtime.remove(state.id) for state in states))
        assert await runtime.states() == []


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGRTMIN+3"])
async def test_a_command_may_choose_the_signal_that_asks_it_to_end(room: Any, name: str) -> None:
    async with room.temporary_runtime() as runtime:
        traps = f"trap 'exit 5' {signal_number(name)}; trap 'exit 6' TERM"
        script = f"{traps}; echo ready; while :; do sleep 0.05; done"
        await runtime.start(room.spec("bash", "-c", script, stop_signal=name))
        await room.wait_for_output("ready")
        assert (await runtime.stop("one", 60)).exit_code == 5


def test_signals_have_names() -> None:
    assert signal_number("SIGTERM") == signal.SIGTERM
    assert signal_number("SIGRTMAX-2") == signal.SIGRTMAX - 2
    assert signal_number("SIGNONE") == signal_number("signal") == signal_number("SIGUSR1+x") == signal.SIGTERM


async def test_without_a_pid_namespace_stopping_still_ends_everything(room: Any) -> None:
    async with room.temporary_runtime() as runtime:
        script = "trap '' TERM; setsid sleep 4321 & echo $$ $!; while :; do sleep 100; done"
        await runtime.start(room.shell(script, host_pid=True))
        pids = (await room.wait_for_output("")).split()
        assert all(start_time(int(pid)) for pid in pids)
        await runtime.stop("one", 0.05)
        assert not any(start_time(int(pid)) for pid in pids)
