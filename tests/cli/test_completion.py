"""Verbs, options, kinds and names in a shell, completed by bash and by kubectl themselves."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.controllers import objects
from tests.support import peers
from tests.support.https_apiserver import https_apiserver
from tests.support.up import BIN, VOLPLANE
from volplane.api.core import Namespace
from volplane.api.meta import ObjectMeta, Resource

BASH = """
source <({volplane} completion bash)
COMP_WORDS=({words}) COMP_CWORD={place}
_volplane_completion {volplane}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


async def complete(*words: str, env: dict[str, str] | None = None) -> list[str]:
    """What bash offers for the last of the words."""
    quoted = " ".join(map(shlex.quote, (VOLPLANE, *words)))
    script = BASH.format(volplane=VOLPLANE, words=quoted, place=len(words))
    return (await _run(["bash", "-c", script], env or {})).split()


async def complete_in_kubectl(*words: str) -> list[str]:
    """What kubectl offers, and the number that tells the shell what to do."""
    command = [peers.path("kubectl"), "__complete", "volplane", *words]
    return [line.partition("\t")[0] for line in (await _run(command, {})).splitlines()]


async def _run(command: list[str], env: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, errors.decode()
    assert b"Traceback" not in errors, errors.decode()
    return output.decode()


async def test_verbs_and_options() -> None:
    assert await complete("st") == ["status", "stop", "start", "states"]
    assert await complete("explain", "--ku") == ["--kubeconfig"]
    assert await complete("explain", "pvc/x", "-o", "") == ["text", "json"]
    assert "--no-color" in await complete("--no")
    assert await complete("service", "") == ["install", "uninstall"]
    assert await complete("export", "l") == ["logs"]
    assert await complete("service", "install", "--un") == ["--unit-dir"]


async def test_kinds_are_completed_without_a_cluster(tmp_path: Path) -> None:
    nowhere = {"HOME": str(tmp_path), "KUBECONFIG": ""}
    kinds = ["node/", "pod/", "pv/", "pvc/", "volumeattachment/", "volumesnapshot/"]
    assert await complete("explain", "", env=nowhere) == kinds
    assert await complete("explain", "pv", env=nowhere) == ["pv/", "pvc/"]
    assert await complete("explain", "pvc", env=nowhere) == ["pvc/"]
    assert await complete("explain", "pvc/", env=nowhere) == []
    assert await complete("journey", "", env=nowhere) == ["pod/", "pv/", "pvc/"]


@pytest.mark.peer("kubectl")
async def test_names_are_those_of_the_chosen_cluster_and_namespace(tmp_path: Path) -> None:
    stored: list[Resource] = [
        *(objects.claim("data-0"), objects.claim("data-1"), objects.claim("logs")),
        *(objects.node("worker-1"), objects.node("worker-2")),
        Namespace(metadata=ObjectMeta(name="team")),
        objects.claim("theirs", metadata={"namespace": "team"}),
    ]
    async with https_apiserver() as server:
        for each in stored:
            await server.client.create(each)
        there = ("--kubeconfig", server.kubeconfig)
        assert await complete("explain", *there, "pvc/d") == ["pvc/data-0", "pvc/data-1"]
        assert await complete("explain", *there, "pvc") == ["pvc/data-0", "pvc/data-1", "pvc/logs"]
        assert await complete("explain", *there, "-n", "team", "pvc/") == ["pvc/theirs"]
        assert await complete("journey", *there, "-n", "te") == ["team"]
        assert await complete("world", *there, "") == ["attachdetach", "node/worker-1", "node/worker-2"]
        assert await complete("plugins", *there, "node/worker-2") == ["node/worker-2"]
        config = {"KUBECONFIG": server.kubeconfig}
        assert await complete("explain", "pvc/l", env=config) == ["pvc/logs"]
        assert await complete_in_kubectl("explain", *there, "pvc/l") == ["pvc/logs", ":4"]
        assert await complete_in_kubectl("explain", *there, "pv") == ["pv/", "pvc/", ":6"]
        assert await complete_in_kubectl("explain", "--kubeconfig", "") == [":0"]
        assert await complete_in_kubectl("wor") == ["world", ":4"]


async def test_contexts_clusters_and_users_are_those_of_the_kubeconfig(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        yaml.safe_dump(
            {
                "contexts": [{"name": "dev"}, {"name": "prod"}],
                "clusters": [{"name": "east", "cluster": {}}],
                "users": [{"name": "me", "user": {}}],
            }
        )
    )
    env = {"KUBECONFIG": str(config)}
    assert await complete("explain", "--context", "", env=env) == ["dev", "prod"]
    assert await complete("explain", "--cluster", "e", env=env) == ["east"]
    assert await complete("explain", "--user", "", env=env) == ["me"]
    assert await complete("doctor", "--user", "", env=env) == ["me"]
    assert await complete("import", "--cluster", "", env=env) == ["east"]
    assert await complete("export", "objects", "--context", "p", env=env) == ["prod"]


async def test_names_of_clusters_on_this_machine(tmp_path: Path) -> None:
    for name in ("dev", "test"):
        directory = tmp_path / f".volplane-{name}"
        directory.mkdir()
        (directory / "up.lock").touch()
    env = {"HOME": str(tmp_path)}
    assert await complete("status", "--name", "", env=env) == ["dev", "test"]
    assert await complete("service", "uninstall", "--name", "d", env=env) == ["dev"]
    assert await complete("export", "logs", "--name", "t", env=env) == ["test"]


async def test_a_credential_plugin_is_not_asked_for_input(tmp_path: Path) -> None:
    """It would compete with the user's shell for the terminal."""
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\nreadlink /proc/self/fd/0 > {tmp_path}/input\nexit 1\n")
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    user["exec"]["interactiveMode"] = "IfAvailable"
    config = tmp_path / "config"
    config.write_text(
        yaml.safe_dump(
            {
                "current-context": "dev",
                "contexts": [{"name": "dev", "context": {"cluster": "east", "user": "me"}}],
                "clusters": [{"name": "east", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "me", "user": user}],
            }
        )
    )
    assert await complete("explain", "pvc/", env={"KUBECONFIG": str(config)}) == []
    assert (tmp_path / "input").read_text() == "/dev/null\n"
