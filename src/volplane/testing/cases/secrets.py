"""Secrets stay secret: they are neither in the driver's log and errors nor in what the cluster stores."""

from __future__ import annotations

from typing import Any

from volplane.csi import v1
from volplane.csi.outcome import CallError
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases.controller import UNKNOWN
from volplane.testing.cases.faults import run_lifecycle
from volplane.testing.runner import secret_forms
from volplane.testing.socket_env import WRITER, DriverSocket, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

MOST_LOG = 8 << 20  # bytes of a log that are searched
MIN_LENGTH = 8  # characters; a shorter secret may be a word that the driver writes anyway


@case(
    "secrets/not in logs and errors",
    "Secrets Requirements",
    "The values of secrets appear neither in the driver's log nor in the message of an error.",
    "secrets",
    "create",
)
async def not_leaked(env: SocketEnv) -> None:
    wanted = _forms_to_find(env)
    first, marks = env.tap.mark(), env.log_positions()
    await run_lifecycle(env, "CreateSnapshot" if env.capabilities.has("snapshot") else "")
    await _make_failing_calls(env)
    for call in env.tap.since(first):
        require(
            not any(form in call.message for form in wanted),
            f"the error of {call.method} ({call.code}) has the value of a secret: {call.message}",
        )
    for instance in env.instances:
        text = await env.host.call(instance.log_tail, MOST_LOG, marks.get(instance.name, 0))
        for line in text.splitlines():
            require(
                not any(form in line for form in wanted),
                f"the log of {instance.name} has the value of a secret: {line.strip()}",
            )


def _forms_to_find(env: SocketEnv) -> set[str]:
    values = [value for value in env.secrets.values() if len(value) >= MIN_LENGTH]
    if not values:
        raise NotSupported(f"no secret has {MIN_LENGTH} characters or more, which could be found")
    return {form for value in values for form in secret_forms(value)}


@case(
    "secrets/not in contexts",
    "CreateVolume",
    "The volume and publish contexts have no secrets: a cluster stores both as plain text.",
    "secrets",
    "provision",
)
async def not_in_contexts(env: SocketEnv) -> None:
    wanted = _forms_to_find(env)
    volume = await env.create()
    published = await volume.attach(env.nodes[0])
    for method, name, context in (
        ("CreateVolume", "volume_context", volume.made.volume_context),
        ("ControllerPublishVolume", "publish_context", published),
    ):
        for key, value in context.items():
            require(
                not any(form in value for form in wanted),
                f"{name}[{key!r}] has the value of a secret",
                section=method,
            )


async def _make_failing_calls(env: SocketEnv) -> None:
    """Calls with secrets that fail, for their error messages."""
    node, volume = env.nodes[0], VolumeUnderTest(env, env.create_request(env.new_name()), WRITER)
    volume.made = v1.Volume(volume_id=UNKNOWN)
    publish = volume.mount_request(node, volume.target(node), readonly=env.is_read_only)
    calls: list[tuple[DriverSocket, str, Any]] = [(node, "NodePublishVolume", publish)]
    if env.capabilities.has("provision"):
        source = v1.VolumeContentSource(snapshot={"snapshot_id": UNKNOWN})
        creations = [env.create_request(""), env.create_request(env.new_name(), size=1 << 62)]
        if env.capabilities.has("snapshot"):
            creations.append(env.create_request(env.new_name(), source=source))
        calls += [(env.controller, "CreateVolume", request) for request in creations]
    if env.capabilities.has("snapshot"):
        request = v1.CreateSnapshotRequest(
            source_volume_id=UNKNOWN, name=env.new_name("snapshot"), secrets=env.secrets
        )
        calls.append((env.controller, "CreateSnapshot", request))
    if env.capabilities.has("attach"):
        calls.append((env.controller, "ControllerPublishVolume", volume.publish_request(node)))
    if env.capabilities.has("stage"):
        calls.append((node, "NodeStageVolume", volume.stage_request(node)))
    for remote, method, wanted in calls:
        try:
            reply = await remote.call_once(method, wanted)
        except CallError:
            continue
        if method == "CreateVolume":
            made = VolumeUnderTest(env, wanted, WRITER)
            made.made = reply.volume
            env.volumes.append(made)
