"""Pods on a node: containers in their order, their environment, their ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NodeEnv, node_env, path_exists, read, wait_briefly
from volplane.api.codec import convert
from volplane.api.core import ConfigMap, ContainerStatus, Pod, Secret
from volplane.node.containers.base import ContainerRunState, ContainerSpec
from volplane.node.containers.task import TaskContext
from volplane.node.network.interface import NetworkAttachment
from volplane.node.pods.container_spec import ContainerSpecBuilder
from volplane.node.pods.environment import ContainerConfigError

pytestmark = pytest.mark.root


def shell(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "busybox", "command": ["/bin/sh", "-c", script], **more}


async def status(here: NodeEnv, name: str = "main") -> Any:
    pod = await here.client.get(Pod, "app", "default")
    everything = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return next((s for s in everything if s.name == name), ContainerStatus())


def log_of(here: NodeEnv, pod: Pod, container: str = "main", attempt: int = 0) -> str:
    path = here.paths.real(here.paths.log_file("default", pod.name, pod.uid, container, attempt))
    return "".join(line.split(" ", 3)[3] for line in Path(path).read_text().splitlines(keepends=True))


async def test_init_containers_run_in_their_order_before_the_rest() -> None:
    async with node_env() as here:
        await here.start()
        order: list[str] = []

        async def note(context: TaskContext) -> None:
            order.append(context.spec.name)

        async def keep(context: TaskContext) -> None:
            order.append(context.spec.name)
            await context.stop.wait()

        here.images |= {"note": note, "keep": keep}
        init = [
            {"name": "one", "image": "note"},
            {"name": "beside", "image": "keep", "restartPolicy": "Always"},
            {"name": "two", "image": "note"},
        ]
        await here.pod(initContainers=init, container={"image": "keep"})
        pod = await here.wait_until_ready()
        assert order == ["one", "beside", "two", "main"]
        assert [s.ready for s in pod.status.init_container_statuses] == [True, True, True]
        conditions = {c.type: c.status for c in pod.status.conditions}
        assert set(conditions.values()) == {"True"}


async def test_a_failing_init_container_fails_a_pod_that_never_restarts() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(
            restartPolicy="Never", initContainers=[{"name": "one", "image": "once", "args": ["4"]}]
        )
        await here.wait_for_phase("Failed")
        assert (await status(here)).state.waiting.reason == "PodInitializing"
        assert (await status(here, "one")).state.terminated.exit_code == 4


async def test_a_container_that_ends_is_restarted_at_once_and_then_held_back() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container={"image": "once", "args": ["1"]})

        async def held() -> bool:
            shown = await status(here)
            return bool(shown.state.waiting and shown.state.waiting.reason == "CrashLoopBackOff")

        await until(held)
        shown = await status(here)
        assert shown.restart_count == 1
        assert shown.last_state.terminated.exit_code == 1
        assert shown.state.waiting.message.startswith(
            "back-off 10s restarting failed container=main pod=app_"
        )
        assert await here.phase() == "Running"
        assert "Back-off restarting failed container main" in await here.wait_for_event("Back-off")


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("3", "Failed")])
async def test_a_pod_that_ends_lets_its_volumes_go_and_stays(code: str, phase: str) -> None:
    async with node_env() as here:
        await here.start()
        volume = {"name": "v", "emptyDir": {"medium": "Memory"}}
        mount = {"name": "v", "mountPath": "/v"}
        container = {"image": "once", "args": [code]}
        await here.pod(restartPolicy="Never", volumes=[volume], mounts=[mount], container=container)
        await here.wait_for_phase(phase)

        async def empty() -> bool:
            return here.list_mounts() == []

        await until(empty)
        assert await here.phase() == phase
        await here.delete()
        await here.wait_for_phase("gone")


async def test_the_environment_of_a_process() -> None:
    async with node_env() as here:
        await here.start(cluster_host="127.0.0.1", cluster_port=6443)
        meta = {"namespace": "default"}
        settings = {"metadata": {"name": "settings", **meta}, "data": {"A": "1", "B": "2"}}
        await here.client.create(convert(ConfigMap, settings))
        secret = {"metadata": {"name": "secret", **meta}, "data": {"KEY": "Z2VoZWlt"}}
        await here.client.create(convert(Secret, secret))
        env = [
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "A"}}},
            {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y", "optional": True}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            {"name": "JOINED", "value": "$(NAME)-$(P_KEY)-$(UNKNOWN)-$$(NAME)"},
        ]
        sources = [{"configMapRef": {"name": "settings"}}, {"prefix": "P_", "secretRef": {"name": "secret"}}]
        script = "env; pwd; id -u; id -g; id -G; hostname; echo $0 $1; exec sleep 1000"
        container = {
            "image": "busybox",
            "command": ["/bin/sh", "-c", script],
            "args": ["zero-$(NAME)", "one"],
            "env": env,
            "envFrom": sources,
            "workingDir": "/usr",
            "resources": {"limits": {"cpu": "250m"}},
            "securityContext": {"runAsUser": 1234},
        }
        context = {"runAsGroup": 99, "fsGroup": 77, "supplementalGroups": [55]}
        await here.pod(container=container, securityContext=context)
        pod = await here.wait_until_ready()

        async def written() -> bool:
            return "zero-app one" in log_of(here, pod)

        await until(written)
        lines = log_of(here, pod).splitlines()
        for expected in (
            "NAME=app",
            "ONE=1",
            "B=2",
            "P_KEY=geheim",
            "CPU=250",
            "JOINED=app-geheim-$(UNKNOWN)-$(NAME)",
            "KUBERNETES_SERVICE_HOST=127.0.0.1",
            "KUBERNETES_SERVICE_PORT=6443",
            "/usr",
            "1234",
            "99",
            "app",
        ):
            assert expected in lines, expected
        assert not any(line.startswith("NONE=") for line in lines)
        groups = next(set(line.split()) for line in lines if line.startswith("99 "))
        assert {"99", "77", "55"} <= groups


async def test_a_container_whose_config_is_missing_waits_with_the_reason() -> None:
    async with node_env() as here:
        await here.start()
        env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}]
        await here.pod(container={"env": env})

        async def waits() -> bool:
            shown = await status(here)
            return bool(shown.state.waiting and shown.state.waiting.reason == "CreateContainerConfigError")

        await until(waits)
        assert (await status(here)).state.waiting.message == 'configmaps "settings" not found'
        settings = {"metadata": {"name": "settings", "namespace": "default"}, "data": {"a": "1"}}
        await here.client.create(convert(ConfigMap, settings))
        await here.wait_until_ready()


async def test_an_image_without_a_command_gets_a_pause_and_an_event() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container={"image": "nginx"})
        await here.wait_until_ready()
        told = await here.wait_for_event("a pause process runs instead")
        assert told.startswith('Image "nginx" of container main is not available on this node')
        await here.delete()
        async with asyncio.timeout(10):  # it ends when it is asked to
            await here.wait_for_phase("gone")


async def test_a_volume_at_its_place_in_a_process() -> None:
    async with node_env() as here:
        await here.start()
        volumes = [{"name": "v", "emptyDir": {}}]
        places: list[dict[str, Any]] = [
            {"name": "v", "mountPath": "/usr/share/data"},
            {"name": "v", "mountPath": "/part", "subPath": "a/b"},
            {"name": "v", "mountPath": "/named", "subPathExpr": "$(WHO)", "readOnly": True},
        ]
        script = (
            "echo whole > /usr/share/data/x; echo part > /part/y; echo no > /named/z; "
            "cat /usr/share/data/a/b/y; echo done; exec sleep 1000"
        )
        container = {**shell(script), "env": [{"name": "WHO", "value": "me"}]}
        await here.pod(volumes=volumes, mounts=places, container=container)
        pod = await here.wait_until_ready()
        root = here.paths.real(here.paths.volume(pod.uid, "kubernetes.io/empty-dir", "v"))

        async def done() -> bool:
            return "done" in log_of(here, pod)

        await until(done)
        assert read(f"{root}/x") == "whole\n"
        assert read(f"{root}/a/b/y") == "part\n"
        assert not path_exists(f"{root}/me/z")
        assert "part\n" in log_of(here, pod)
        await here.delete()
        await here.wait_for_phase("gone")
        assert here.list_mounts() == []

        async def clean() -> bool:
            return not os.listdir(here.paths.real(here.paths.pods))

        await until(clean)


async def test_a_link_in_the_volume_does_not_lead_a_sub_path_out_of_it() -> None:
    async with node_env() as here:
        await here.start()
        volumes = [{"name": "v", "emptyDir": {}}]
        init = {
            **shell("ln -s /etc /v/out"),
            "name": "evil",
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }
        await here.pod(
            volumes=volumes,
            mounts=[{"name": "v", "mountPath": "/x", "subPath": "out"}],
            initContainers=[init],
            container=shell("ls /x; exec sleep 1000"),
        )
        told = await here.wait_for_event("subPath")
        assert told == 'Error: failed to prepare subPath for volumeMount "v" of container "main"'


async def test_the_last_words_of_a_container() -> None:
    async with node_env() as here:
        await here.start()
        container = shell("echo it was the disk > /dev/termination-log; exit 5")
        await here.pod(restartPolicy="Never", container=container)
        await here.wait_for_phase("Failed")
        ended = (await status(here)).state.terminated
        assert (ended.exit_code, ended.message) == (5, "it was the disk\n")


async def test_a_deaf_container_is_killed_after_its_grace() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container=shell("trap '' TERM; while :; do sleep 1; done"))
        await here.wait_until_ready()
        await here.delete(grace=1)
        await wait_briefly()
        assert await here.phase() == "Running"
        await here.wait_for_phase("gone")


async def test_a_container_whose_pod_is_deleted_while_it_is_started_never_runs() -> None:
    """The other container has started by then."""
    async with node_env() as here:
        role = await here.start()
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume()
        start, begun, go_on = role.runtimes.start, asyncio.Event(), asyncio.Event()

        async def slowly(spec: ContainerSpec) -> ContainerRunState:
            if spec.name == "slow":
                begun.set()
                await go_on.wait()
            return await start(spec)

        role.runtimes.start = slowly  # type: ignore[method-assign]
        places: list[dict[str, Any]] = [{"name": "data", "mountPath": "/data"}]
        quick, slow = ({"name": n, "image": "forever", "volumeMounts": places} for n in ("quick", "slow"))
        await here.pod(claim="data", containers=[quick, slow])
        await begun.wait()
        await here.delete()
        await here.wait_for_phase("gone")
        go_on.set()

        async def over() -> bool:
            return not here.list_mounts() and not await role.runtimes.states()

        await until(over)
        assert "Started container slow" not in await here.list_event_messages()


async def test_a_second_delete_shortens_the_grace() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container=shell("trap '' TERM; while :; do sleep 1; done"))
        await here.wait_until_ready()
        await here.delete(grace=1000)
        await wait_briefly()
        await here.delete(grace=0)
        assert here.role is not None
        role = here.role

        async def ended() -> bool:
            return not role.pods.workers and not await role.runtimes.states()

        async with asyncio.timeout(10):
            await until(ended)


async def test_a_deadline_ends_a_pod() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(activeDeadlineSeconds=5)  # long enough to be seen ready, on a busy machine, too
        await here.wait_until_ready()
        await here.wait_for_phase("Failed")
        pod = await here.client.get(Pod, "app", "default")
        assert pod.status.reason == "DeadlineExceeded"


async def test_a_running_process_survives_the_node_and_is_adopted() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container=shell("echo begun; exec sleep 1000"))
        before = await here.wait_until_ready()
        assert here.role is not None
        (state,) = await here.role.runtimes.states()
        await here.stop(drain=False)
        os.kill(state.pid, 0)
        await here.start()
        assert here.role is not None

        async def adopted() -> bool:
            assert here.role is not None
            found = await here.role.runtimes.states()
            return [(s.pid, s.running) for s in found] == [(state.pid, True)]

        await until(adopted)
        await wait_briefly(0.2)
        pod = await here.wait_until_ready()
        (shown,) = pod.status.container_statuses
        assert shown.restart_count == 0
        assert shown.container_id == before.status.container_statuses[0].container_id
        await here.delete()
        await here.wait_for_phase("gone")


async def test_a_process_of_a_pod_that_is_gone_is_ended() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(container=shell("exec sleep 1000"))
        await here.wait_until_ready()
        await here.stop(drain=False)
        await here.delete(grace=0)
        await here.start()

        async def ended() -> bool:
            assert here.role is not None
            left = [*os.listdir(here.paths.real(here.paths.pods)), *os.listdir(f"{here.paths.root}/logs")]
            return not await here.role.runtimes.states() and not left

        await until(ended)


async def test_a_mounted_volume_keeps_the_mode_of_its_root_when_the_node_starts_again() -> None:
    async with node_env() as here:
        await here.start_driver()
        await here.start()
        await here.wait_until_registered()
        await here.volume()
        await here.pod(claim="data", container=shell("exec sleep 1000"))
        pod = await here.wait_until_ready()
        root = here.paths.real(here.paths.csi_target(pod.uid, "pv-data"))
        os.chmod(root, 0o2775)
        await here.stop(drain=False)
        await here.start()

        async def staged_again() -> bool:
            return here.disks.count_calls()["publish"] == 2

        await until(staged_again)
        assert os.stat(root).st_mode & 0o7777 == 0o2775


@pytest.mark.parametrize("builtin", [True, False], ids=["built-in", "runtime"])
async def test_built_in_images_have_recursive_read_only_mounts_whatever_the_runtime_can_do(
    builtin: bool,
) -> None:
    async with node_env() as here:
        await here.start()
        pod = await here.pod(
            volumes=[{"name": "scratch", "emptyDir": {}}],
            mounts=[
                {"name": "scratch", "mountPath": "/d", "readOnly": True, "recursiveReadOnly": "Enabled"},
            ],
        )
        await here.wait_until_ready()
        assert here.role is not None
        building = ContainerSpecBuilder(here.role.volumes.context, {}).build(
            pod,
            pod.spec.containers[0],
            here.role.volumes.mounted_volumes(pod.uid),
            NetworkAttachment(""),
            id="1",
            attempt=0,
            builtin=builtin,
            recursive_readonly=False,
        )
        if builtin:
            assert (await building).mounts[0].recursive
        else:
            with pytest.raises(ContainerConfigError, match="not supported by the runtime"):
                await building
