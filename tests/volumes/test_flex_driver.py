"""Calls of a FlexVolume driver: real executables, their answers, and what is made of them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from volplane.host import Host
from volplane.host.processes import wait_for_exit
from volplane.volumes.flex.driver import FlexDriver
from volplane.volumes.flex.errors import FlexCallError, FlexNotSupported

LOADED = 'echo "{\\"status\\": \\"Success\\", \\"capabilities\\": {\\"attach\\": false}}"'


@asynccontextmanager
async def driver(tmp_path: Path, body: str) -> AsyncIterator[FlexDriver]:
    """A driver in sh: `init` succeeds, every other command runs `body`; its argv is appended to `calls`."""
    executable = tmp_path / "driver"
    executable.write_text(
        f'#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done >> {tmp_path}/calls\n'
        f'if [ "$1" = init ]; then {LOADED}; exit; fi\n{body}\n'
    )
    executable.chmod(0o755)
    host = Host()
    try:
        yield await FlexDriver.load("example.com/driver", str(executable), host)
    finally:
        await host.close()


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().split()


async def failure(of: FlexDriver, command: str = "mount") -> str:
    with pytest.raises(FlexCallError) as caught:
        await of.call(command, "/target", "{}")
    return str(caught.value)


async def test_a_command_gets_its_arguments_and_its_answer_is_read(tmp_path: Path) -> None:
    async with driver(tmp_path, """echo '{"status": "Success", "device": "/dev/vdb"}'""") as flex:
        reply = await flex.call("attach", '{"size": "1"}', "worker-1")
    assert reply.device == "/dev/vdb"
    assert calls(tmp_path) == ["init", "attach", '{"size":', '"1"}', "worker-1"]


async def test_capabilities_that_init_does_not_name_have_their_defaults(tmp_path: Path) -> None:
    async with driver(tmp_path, "") as flex:
        found = flex.capabilities
    assert not found.attach
    assert found.fsgroup
    assert found.selinuxrelabel
    assert found.requiresfsresize
    assert not found.supportsmetrics


async def test_keys_are_read_whatever_their_case(tmp_path: Path) -> None:
    answer = {"Status": "Success", "Device": "/dev/vdc", "volumeNewSize": 7, "more": 1, "message": None}
    async with driver(tmp_path, f"echo '{json.dumps(answer)}'") as flex:
        reply = await flex.call("attach")
    assert (reply.device, reply.volumenewsize, reply.message) == ("/dev/vdc", 7, "")


async def test_a_failure_is_told_with_status_and_reason(tmp_path: Path) -> None:
    body = """echo '{"status": "Failure", "message": "no such volume"}'; exit 1"""
    async with driver(tmp_path, body) as flex:
        assert await failure(flex) == "mount command failed, status: Failure, reason: no such volume"


async def test_bad_answers_are_four_different_errors(tmp_path: Path) -> None:
    body = """case $1 in
        noise) echo warning >&2; echo '{"status": "Success"}';;
        empty) ;;
        liar) echo '{"status": "Success"}'; exit 3;;
        refusal) echo '{"status": "Failure", "message": "full"}';;
    esac"""
    async with driver(tmp_path, body) as flex:
        found = [await failure(flex, command) for command in ("noise", "empty", "liar", "refusal")]
    assert len(set(found)) == 4
    noise, empty, liar, refusal = found
    assert noise.startswith("noise command did not answer with one JSON object")
    assert '"warning' in noise
    assert empty.startswith("empty command did not answer with one JSON object")
    assert empty.endswith('output: ""')
    assert liar == "exit status 3"
    assert refusal == "refusal command failed, status: Failure, reason: full"


@pytest.mark.parametrize(
    "answer", ["[]", '"Success"', "{", '{"status": 7}', '{"status": "Success"} x', "\\377"]
)
async def test_garbage_is_an_error_that_shows_it(tmp_path: Path, answer: str) -> None:
    (tmp_path / "answer").write_bytes(answer.encode().replace(b"\\377", b"\xff"))
    async with driver(tmp_path, f"cat {tmp_path}/answer") as flex:
        assert "did not answer with one JSON object" in await failure(flex)


async def test_a_command_that_is_not_supported_is_called_once(tmp_path: Path) -> None:
    async with driver(tmp_path, """echo '{"status": "Not supported"}'; exit 1""") as flex:
        for _ in range(3):
            with pytest.raises(FlexNotSupported):
                await flex.call("waitforattach")
    assert calls(tmp_path) == ["init", "waitforattach"]


async def test_a_driver_that_hangs_ends_with_its_children_at_the_timeout(tmp_path: Path) -> None:
    body = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    async with driver(tmp_path, body) as flex:
        with pytest.raises(FlexCallError, match="timeout"):
            await flex.call("waitforattach", timeout=0.3)
    child = int((tmp_path / "child").read_text())
    await _wait_gone(child)


async def test_a_path_that_looks_like_a_secret_is_passed_on(tmp_path: Path) -> None:
    async with driver(tmp_path, """echo '{"status": "Success"}'""") as flex:
        assert (await flex.call("unmount", "/x/kubernetes.io/secret/y")).status == "Success"


async def test_an_answer_of_brackets_is_an_error(tmp_path: Path) -> None:
    async with driver(tmp_path, "printf '%0100000d' 0 | tr 0 '['") as flex:
        with pytest.raises(FlexCallError, match="did not answer with one JSON object"):
            await flex.call("mount")


async def test_a_cancelled_call_ends_the_driver(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    async with driver(tmp_path, f"echo $$ > {tmp_path}/started; sleep 600") as flex:
        call = asyncio.create_task(flex.call("mount"))
        pid = int(await asyncio.to_thread((tmp_path / "started").read_text))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await _wait_gone(pid)


async def test_a_driver_that_cannot_be_killed_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be blocked in the kernel: then it ends only when that call returns."""
    async with driver(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600") as flex:
        with monkeypatch.context() as patched:
            patched.setattr(os, "killpg", lambda group, number: None)
            with pytest.raises(FlexCallError, match="timeout"):
                await flex.call("mount", timeout=0.3)
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)
        os.kill(pid, 9)
        await _wait_gone(pid)


async def test_a_cancelled_call_leaves_no_task_that_watches_its_closed_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    async with driver(tmp_path, f"echo $$ > {tmp_path}/started; sleep 600") as flex:
        before = asyncio.all_tasks()
        call = asyncio.create_task(flex.call("mount"))
        await asyncio.to_thread((tmp_path / "started").read_text)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


async def test_hanging_calls_do_not_hold_up_others(tmp_path: Path) -> None:
    body = """[ "$1" = hang ] && sleep 600; echo '{"status": "Success"}'"""
    async with driver(tmp_path, body) as flex:
        hanging = [
            asyncio.create_task(flex.call("hang")) for _ in range(40)
        ]  # more than the host has threads
        assert (await flex.call("mount")).status == "Success"
        for call in hanging:
            call.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_an_answer_ends_with_the_driver_even_if_its_daemon_keeps_the_pipe(tmp_path: Path) -> None:
    body = f"""sleep 600 & echo $! > {tmp_path}/child; echo '{{"status": "Success"}}'"""
    async with driver(tmp_path, body) as flex:
        assert (await flex.call("mount")).status == "Success"
    os.kill(int((tmp_path / "child").read_text()), 9)


async def test_an_answer_has_a_limit(tmp_path: Path) -> None:
    async with driver(tmp_path, "yes") as flex:
        assert await failure(flex) == "mount command failed: more than 1048576 bytes of output"


async def test_a_file_that_cannot_run_says_why(tmp_path: Path) -> None:
    host = Host()
    try:
        (tmp_path / "driver").write_text("#!/bin/sh\n")
        with pytest.raises(FlexCallError, match="Permission denied"):
            await FlexDriver.load("driver", str(tmp_path / "driver"), host)
        with pytest.raises(FlexCallError, match="No such file"):
            await FlexDriver.load("driver", str(tmp_path / "missing"), host)
    finally:
        await host.close()


async def test_calls_are_logged_without_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = json.dumps({"kubernetes.io/secret/password": "aHVudGVyMg==", "share": "a"})
    with caplog.at_level(logging.INFO, logger="volplane.volumes.flex.driver"):
        async with driver(tmp_path, """echo '{"status": "Success"}'""") as flex:
            await flex.call("mount", "/target", options)
    assert 'mount /target {"kubernetes.io/secret/password": "***", "share": "a"}: success' in caplog.text
    assert "aHVudGVyMg" not in caplog.text


async def _wait_gone(pid: int) -> None:
    await asyncio.wait_for(wait_for_exit(pid), 30)
