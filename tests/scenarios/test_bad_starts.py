"""Starts that cannot work, and starts again: what the user is told, and what is left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.journey import journey
from tests.support.up import VOLPLANE, Up, wait_until
from volplane.api.core import Pod
from volplane.node.containers import records

pytestmark = [pytest.mark.root, pytest.mark.slow]

MODES = pytest.mark.parametrize("mode", [(), ("--separate",)], ids=["one process", "separate"])


def volplane(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, VOLPLANE, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last line, after making sure that it is a message and not an accident."""
    assert done.returncode not in (0, -signal.SIGKILL), done
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a cluster could be; nothing of it may be left on the machine."""
    place = tmp_path / "cluster"
    yield place
    left = machine.leftovers(place)
    machine.purge(place)
    assert not left


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    cluster = Up(nodes=1, directory=tmp_path)
    yield cluster
    if cluster.process is not None and cluster.process.poll() is None:
        cluster.kill()
    machine.purge(tmp_path)


# --- starts that cannot work


def test_the_directory_of_another_user_is_refused(directory: Path) -> None:
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    readable = subprocess.run([*other, VOLPLANE, "--version"], capture_output=True, check=False)
    if readable.returncode:
        pytest.skip("this checkout is for root only")
    done = volplane("up", "--data-dir", str(directory), prefix=other)
    assert output_of(done) == f"volplane: cannot use {directory} as data directory: Permission denied"
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "-1"], "Error: --nodes must be between 0 and 1000, not -1"),
        (["--nodes", "x"], "not a whole number"),
        (["--nodes-per-zone", "0"], "Error: --nodes-per-zone must be at least 1, not 0"),
        (["--port", "70000"], "Error: --port must be a port number, not 70000"),
        (
            ["--node-monitor-grace-period", "0"],
            "Error: --node-monitor-grace-period must be at least 1 second, not 0",
        ),
        (["--log-level", "loud"], "'loud' is not one of"),
        (["--no-such-flag"], "No such option '--no-such-flag'"),
        (["surplus"], "unexpected extra argument (surplus)"),
    ],
)
def test_nonsense_on_the_command_line_is_named(directory: Path, arguments: list[str], message: str) -> None:
    assert message in output_of(volplane("up", "--data-dir", str(directory), *arguments))
    assert not directory.exists()


@MODES
def test_a_port_in_use_is_named_and_forgotten(directory: Path, mode: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        flags = ("--data-dir", str(directory), "--nodes", "1", *mode)
        line = output_of(volplane("up", *flags, "--port", str(port)))
        assert f"port {port} on 127.0.0.1 is in use by another program; choose another with --port" in line
        assert not directory.exists()


def test_a_port_that_is_lost_between_two_starts_is_named(up: Up) -> None:
    with up:
        pass
    port = up.memory().port
    with socket.create_server(("127.0.0.1", port)):
        assert f"port {port} on 127.0.0.1 is in use" in output_of(volplane("up", *up.arguments))
    with up:
        assert up.memory().port == port


def test_ports_that_nobody_outside_knows_may_change(up: Up) -> None:
    with up:
        pass
    before = up.memory()
    (kubelet,) = before.kubelet_ports.values()
    with (
        socket.create_server(("127.0.0.1", before.cloud_port)),
        socket.create_server(("127.0.0.1", kubelet)),
        up,
    ):
        assert up.memory().port == before.port
        assert up.memory().cloud_port != before.cloud_port
    assert machine.leftovers(up.directory) == {}


@MODES
def test_a_directory_in_use_is_named_with_its_process(tmp_path: Path, mode: tuple[str, ...]) -> None:
    with Up(*mode, nodes=1, directory=tmp_path) as up:
        plain = [flag for flag in up.arguments if flag != "--separate"]
        for other in ([], ["--separate"]):
            assert output_of(volplane("up", *plain, *other)) == (
                f"volplane: the data directory {tmp_path} is in use by process {up.pid}; "
                "stop it first, or choose another --data-dir"
            )
        assert up.is_ready()
    assert machine.leftovers(tmp_path) == {}


@MODES
@pytest.mark.parametrize("case", ["a file", "below a file", "read-only"])
def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, case: str, mode: tuple[str, ...]
) -> None:
    place = tmp_path / "place"
    if case == "read-only":
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(place)], check=True)
    else:
        place.write_text("mine")
    where = place if case == "a file" else place / "cluster"
    try:
        line = output_of(volplane("up", "--data-dir", str(where), *mode))
        assert line.startswith(f"volplane: cannot use {where} as data directory: ")
        assert case != "read-only" or line.endswith(": Read-only file system")
    finally:
        if case == "read-only":
            subprocess.run(["umount", str(place)], check=True)
    assert case == "read-only" or place.read_text() == "mine"


# --- ends, and starts again


@MODES
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_leaves_nothing_on_the_machine(
    tmp_path: Path, number: signal.Signals, mode: tuple[str, ...]
) -> None:
    up = Up(*mode, nodes=2, directory=tmp_path)
    try:
        up.start()
        async with journey(tmp_path) as user:
            await user.write()
            up.send(number)
            assert up.process is not None
            assert up.process.wait(60) == 0
            assert machine.leftovers(tmp_path) == {}
            assert not (tmp_path / "ready").exists()
            up.start()  # goes on where it was
            await user.move()
            await user.clean_up()
        assert up.stop() == 0
        assert machine.leftovers(tmp_path) == {}
    finally:
        if up.process is not None and up.process.poll() is None:
            up.kill()
        machine.purge(tmp_path)


async def test_a_signal_during_the_start_leaves_nothing_either(up: Up) -> None:
    up.start()
    async with journey(up.directory) as user:
        await user.write()
        up.kill()
        assert machine.mounts(up.directory)
        up.start(wait=False)
        wait_until("it has begun", lambda: (up.directory / "up.lock").read_text() == str(up.pid))
        up.send(signal.SIGTERM)
        assert up.process is not None
        assert up.process.wait(60) == 0
        assert machine.leftovers(up.directory) == {}


async def test_containers_go_on_through_a_kill_and_are_adopted(up: Up) -> None:
    up.start()
    async with journey(up.directory) as user:
        await user.write()
        (running,) = _running(up.directory)
        up.kill()
        assert running.started.is_alive
        up.start()
        (adopted,) = _running(up.directory)
        assert adopted.started == running.started
        client = await user.client()
        found = await client.get(Pod, "writer", "default")
        (status,) = found.status.container_statuses
        assert status.restart_count == 0
        assert status.state.running is not None
        await user.clean_up()
    assert not running.started.is_alive
    assert up.stop() == 0
    assert machine.leftovers(up.directory) == {}


def _running(directory: Path) -> list[records.ProcessContainerRecord]:
    containers = (directory / "n" / "1" / "containers").glob("*/container.json")
    found = [record for file in containers if (record := records.load(str(file.parent)))]
    return [record for record in found if record.started.is_alive]
