"""Probes and hooks: when a container counts as up, ready and alive, and what happens around its life."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NodeEnv, node_env
from tests.node.test_pods import log_of, shell, status
from volplane.api.codec import convert
from volplane.api.core import Container, Pod
from volplane.node.containers.task import TaskContext
from volplane.node.pods.lifecycle_handlers import HandlerError, port_of
from volplane.node.pods.probes import ProbeTally, count_result
from volplane.web.message import Request, Response
from volplane.web.server import serve

pytestmark = pytest.mark.root
PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def probe(action: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**action, "periodSeconds": 1, "failureThreshold": 1, **more}


def run(*command: str) -> dict[str, Any]:
    return {"exec": {"command": list(command)}}


async def said(here: NodeEnv, text: str) -> None:
    async def heard() -> bool:
        return any(text in message for message in await here.list_event_messages())

    await until(heard, PATIENCE)


async def readiness(here: NodeEnv, wanted: bool) -> None:
    async def reached() -> bool:
        return bool((await status(here)).ready == wanted)

    await until(reached, PATIENCE)


# --- how often in a row


@pytest.mark.parametrize(
    ("seen", "successes", "failures", "counts"),
    [
        ("", 1, 3, None),
        ("+", 1, 3, True),
        ("+", 2, 3, None),
        ("+-+", 2, 3, None),
        ("++", 2, 3, True),
        ("--", 1, 3, None),
        ("---", 1, 3, False),
        ("+--", 1, 3, True),
        ("+---", 1, 3, False),
        ("+--+--", 1, 3, True),
        ("---+", 1, 3, True),
        ("---+", 2, 3, False),
    ],
)
def test_a_result_counts_when_it_was_seen_often_enough_in_a_row(
    seen: str, successes: int, failures: int, counts: bool | None
) -> None:
    tally = ProbeTally()
    for sign in seen:
        tally = count_result(tally, sign == "+", successes=successes, failures=failures)
    assert tally.verdict is counts


def test_a_port_may_be_named() -> None:
    ports = [{"name": "web", "containerPort": 8080}]
    container = convert(Container, {"name": "c", "ports": ports})
    assert port_of("web", container) == 8080
    assert port_of(9, container) == 9
    assert port_of("9", container) == 9
    with pytest.raises(HandlerError):
        port_of("other", container)


# --- probes


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
async def test_a_container_that_is_not_alive_is_ended_and_started_again(policy: str) -> None:
    async with node_env() as here:
        await here.start()
        script = "trap 'exit 0' TERM; touch /tmp/ok; sleep 1; rm /tmp/ok; sleep 1000 & wait"
        liveness = probe(run("cat", "/tmp/ok"), initialDelaySeconds=2)
        # It ends without an error when it is asked to; that is no success.
        await here.pod(container=shell(script, livenessProbe=liveness), restartPolicy=policy)

        async def again() -> bool:
            return bool((await status(here)).restart_count >= 1)

        await until(again, PATIENCE)
        await said(here, "Liveness probe failed: cat: /tmp/ok: No such file or directory")
        await said(here, "Container main failed liveness probe, will be restarted")


async def test_a_pod_is_ready_while_its_container_answers_and_is_not_restarted_when_it_does_not() -> None:
    port = free_port()
    fine = True

    async def answer(request: Request) -> Response:
        return Response(status=200 if fine else 503)

    async def web(context: TaskContext) -> None:
        server = await serve(answer, port=port)
        await context.stop.wait()
        await server.close(0)

    async with node_env() as here:
        await here.start()
        here.images |= {"web": web}
        get = {"httpGet": {"path": "/healthz", "port": "http"}}
        ports = [{"name": "http", "containerPort": port}]
        await here.pod(container={"image": "web", "ports": ports, "readinessProbe": probe(get)})
        await here.wait_until_ready()
        fine = False
        await readiness(here, False)
        await said(here, "Readiness probe failed: HTTP probe failed with statuscode: 503")
        pod = await here.client.get(Pod, "app", "default")
        (ready,) = [c for c in pod.status.conditions if c.type == "Ready"]
        assert (ready.status, ready.reason) == ("False", "ContainersNotReady")
        assert pod.status.phase == "Running"
        fine = True
        await readiness(here, True)
        assert (await status(here)).restart_count == 0


async def test_until_it_has_started_nobody_asks_whether_it_lives() -> None:
    port = free_port()
    opened = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def slow(context: TaskContext) -> None:
        await opened.wait()
        server = await asyncio.start_server(greet, "127.0.0.1", port)
        await context.stop.wait()
        server.close()

    async with node_env() as here:
        await here.start()
        here.images |= {"slow": slow}
        connect = {"tcpSocket": {"port": port}}
        await here.pod(
            container={
                "image": "slow",
                "startupProbe": probe(connect, failureThreshold=60),
                "livenessProbe": probe(connect),
            }
        )
        await said(here, f"Startup probe failed: dial tcp 127.0.0.1:{port}: connect: connection refused")
        before = await status(here)
        assert before.state.running is not None
        assert (before.started, before.ready) == (False, False)
        opened.set()
        await here.wait_until_ready()
        after = await status(here)
        assert (after.started, after.restart_count) == (True, 0)
        assert not any("Liveness" in message for message in await here.list_event_messages())


async def test_a_container_that_does_not_start_in_time_is_ended() -> None:
    async with node_env() as here:
        await here.start()
        startup = probe(run("false"), failureThreshold=2)
        await here.pod(container=shell("sleep 1000", startupProbe=startup), terminationGracePeriodSeconds=0)
        await said(here, "Container main failed startup probe, will be restarted")


async def test_a_command_that_takes_too_long_has_failed() -> None:
    async with node_env() as here:
        await here.start()
        slow = probe(run("sleep", "100"), timeoutSeconds=1)
        await here.pod(container=shell("sleep 1000", readinessProbe=slow), terminationGracePeriodSeconds=0)
        await said(here, 'Readiness probe failed: command timed out: "sleep 100" timed out after 1s')


async def test_a_probe_that_cannot_be_asked_is_told_as_an_error() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container={"readinessProbe": probe(run("true"))})
        await said(here, "Readiness probe errored and resulted in unknown state: ")
        assert not (await status(here)).ready


async def test_a_sidecar_has_started_when_its_probe_says_so() -> None:
    async with node_env() as here:
        await here.start()
        script = "sleep 2; touch /tmp/up; sleep 1000 & wait"
        beside = shell(
            script,
            restartPolicy="Always",
            startupProbe=probe(run("cat", "/tmp/up"), failureThreshold=60),
        )
        beside["name"] = "beside"
        await here.pod(initContainers=[beside], terminationGracePeriodSeconds=0)
        await said(here, "Startup probe failed: cat: /tmp/up: No such file or directory")
        main = await status(here)
        assert main.state.waiting is not None
        assert main.state.waiting.reason == "PodInitializing"
        await here.wait_until_ready()


async def test_what_probes_have_found_out_outlives_the_node() -> None:
    async with node_env() as here:
        await here.start()
        never = probe(run("false"), initialDelaySeconds=1000)
        await here.pod("app", container=shell("sleep 1000", readinessProbe=never))

        async def runs() -> bool:
            return (await status(here)).state.running is not None

        await until(runs, PATIENCE)
        await here.stop(drain=False)
        await here.start()
        await asyncio.sleep(0.5)
        assert not (await status(here)).ready


# --- hooks


async def test_a_hook_runs_after_the_start_and_before_the_container_is_ready() -> None:
    async with node_env() as here:
        await here.start()
        hook = {"postStart": run("/bin/sh", "-c", "echo started > /tmp/hook")}
        script = (
            "trap 'exit 0' TERM; while ! cat /tmp/hook 2>/dev/null; do sleep 0.1; done; sleep 1000 & wait"
        )
        made = await here.pod(container=shell(script, lifecycle=hook))
        await here.wait_until_ready()

        async def read() -> bool:
            return "started" in log_of(here, made)

        await until(read, PATIENCE)


async def test_a_hook_that_fails_ends_the_container() -> None:
    async with node_env() as here:
        await here.start()
        hook = {"postStart": run("false")}
        await here.pod(container=shell("sleep 1000", lifecycle=hook), terminationGracePeriodSeconds=0)
        await said(here, "PostStartHook failed")
        await said(here, "FailedPostStartHook")

        async def again() -> bool:
            return bool((await status(here)).restart_count >= 1)

        await until(again, PATIENCE)


async def test_a_hook_runs_before_the_container_is_asked_to_end(tmp_path: Path) -> None:
    async with node_env() as here:
        await here.start()
        volumes = [{"name": "order", "hostPath": {"path": str(tmp_path)}}]
        mounts = [{"name": "order", "mountPath": "/order"}]
        script = "trap 'echo term >> /order/log; exit 0' TERM; sleep 1000 & wait"
        hook = {"preStop": run("/bin/sh", "-c", "sleep 0.5; echo hook >> /order/log")}
        await here.pod(container=shell(script, lifecycle=hook, volumeMounts=mounts), volumes=volumes)
        await here.wait_until_ready()
        await here.delete()
        await here.wait_for_phase("gone")
        assert (tmp_path / "log").read_text().split() == ["hook", "term"]


async def test_a_hook_that_takes_longer_than_the_grace_is_not_waited_for() -> None:
    async with node_env() as here:
        await here.start()
        hook = {"preStop": {"sleep": {"seconds": 1}}}
        await here.pod(container=shell("trap '' TERM; while :; do sleep 1; done", lifecycle=hook))
        await here.wait_until_ready()
        await here.delete(grace=1)
        async with asyncio.timeout(PATIENCE):
            await here.wait_for_phase("gone")


async def test_a_hook_that_fails_at_the_end_is_told_and_the_end_comes() -> None:
    async with node_env() as here:
        await here.start()
        hook = {"preStop": run("false")}
        await here.pod(container=shell("trap 'exit 0' TERM; sleep 1000 & wait", lifecycle=hook))
        await here.wait_until_ready()
        await here.delete()
        await here.wait_for_phase("gone")
        await said(here, "PreStopHook failed")
