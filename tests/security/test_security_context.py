"""Security contexts: validation, what a container gets, what a node refuses, and what the kernel enforces."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NodeEnv, node_env, read, write
from volplane.api import kinds
from volplane.api.core import Pod
from volplane.apiserver import strategies
from volplane.node.containers import seccomp
from volplane.node.containers.base import DEFAULT_CAPABILITIES
from volplane.node.options import NodeOptions
from volplane.node.pods.environment import ContainerConfigError
from volplane.node.pods.security_context import (
    CAPABILITIES,
    NO_APP_ARMOR,
    NO_APP_ARMOR_SUPPORT,
    ContainerSecurity,
    check_pod,
    check_user,
    find_sandbox_problem,
    resolve_security,
)
from volplane.rules import sysctls

RULES = strategies.of(kinds.of(Pod))
CALL: Any = None  # these rules do not depend on the request
RUNTIME_DEFAULT = {"type": "RuntimeDefault"}


def pod(context: dict[str, Any] | None = None, *, meta: dict[str, Any] | None = None, **spec: Any) -> Pod:
    """A pod whose one container has this security context."""
    main: dict[str, Any] = {"name": "c", "image": "i", "command": ["true"]}
    if context is not None:
        main["securityContext"] = context
    data = {"metadata": {"name": "p", **(meta or {})}, "spec": {"containers": [main], **spec}}
    made: Pod = RULES.defaults(msgspec.convert(data, Pod))
    return made


def sysctl(name: str) -> dict[str, Any]:
    return {"sysctls": [{"name": name, "value": "1"}]}


# --- what the API server accepts

HERE = "spec.containers[0].securityContext"
POD = "spec.securityContext"
INVALID = {
    "escalation of a privileged container": (
        pod({"privileged": True, "allowPrivilegeEscalation": False}),
        HERE,
        "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
    ),
    "escalation with SYS_ADMIN": (
        pod({"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": False}),
        HERE,
        "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
    ),
    "user": (pod({"runAsUser": -1}), f"{HERE}.runAsUser", "must be between 0 and 2147483647, inclusive"),
    "group": (pod({"runAsGroup": 1 << 31}), f"{HERE}.runAsGroup", "must be between 0 and 2147483647"),
    "proc": (pod({"procMount": "All"}), f"{HERE}.procMount", 'supported values: "Default", "Unmasked"'),
    "proc of the host's users": (
        pod({"procMount": "Unmasked"}),
        f"{HERE}.procMount",
        "`hostUsers` must be false to use `Unmasked`",
    ),
    "seccomp type": (
        pod({"seccompProfile": {"type": "Default"}}),
        f"{HERE}.seccompProfile.type",
        'supported values: "Localhost", "RuntimeDefault", "Unconfined"',
    ),
    "seccomp without type": (
        pod(securityContext={"seccompProfile": {}}),
        f"{POD}.seccompProfile.type",
        "Required value: type is required when seccompProfile is set",
    ),
    "seccomp file missing": (
        pod(securityContext={"seccompProfile": {"type": "Localhost"}}),
        f"{POD}.seccompProfile.localhostProfile",
        "must be set when seccomp type is Localhost",
    ),
    "seccomp file elsewhere": (
        pod({"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}),
        f"{HERE}.seccompProfile.localhostProfile",
        "must not contain '..'",
    ),
    "seccomp file out of place": (
        pod({"seccompProfile": {"type": "Unconfined", "localhostProfile": "x"}}),
        f"{HERE}.seccompProfile.localhostProfile",
        "can only be set when seccomp type is Localhost",
    ),
    "app armor": (
        pod({"appArmorProfile": {"type": "x"}}),
        f"{HERE}.appArmorProfile.type",
        'supported values: "Localhost", "RuntimeDefault", "Unconfined"',
    ),
    "app armor padded": (
        pod({"appArmorProfile": {"type": "Localhost", "localhostProfile": " x"}}),
        f"{HERE}.appArmorProfile.localhostProfile",
        "must not be padded with whitespace",
    ),
    "sysctl name": (
        pod(securityContext=sysctl("a b")),
        f"{POD}.sysctls[0].name",
        "must have at most 253 characters and match regex",
    ),
    "sysctl twice": (
        pod(securityContext={"sysctls": [*sysctl("a.b")["sysctls"], *sysctl("a.b")["sysctls"]]}),
        f"{POD}.sysctls[1].name",
        "Duplicate value",
    ),
    "sysctl of the host's network": (
        pod(securityContext=sysctl("net.ipv4.tcp_rmem"), hostNetwork=True),
        f"{POD}.sysctls[0].name",
        "may not be specified when 'hostNetwork' is true",
    ),
    "groups policy": (
        pod(securityContext={"supplementalGroupsPolicy": "x"}),
        f"{POD}.supplementalGroupsPolicy",
        'supported values: "Merge", "Strict"',
    ),
    "user namespace with the host's": (
        pod(hostUsers=False, hostPID=True),
        "spec.hostPID",
        "when `hostUsers` is false",
    ),
    "windows options": (
        pod({"windowsOptions": {"runAsUserName": "u"}}, os={"name": "linux"}),
        f"{HERE}.windowsOptions",
        "windows options cannot be set for a linux pod",
    ),
    "linux fields": (
        pod({"readOnlyRootFilesystem": True}, os={"name": "windows"}),
        f"{HERE}.readOnlyRootFilesystem",
        "cannot be set for a windows pod",
    ),
    "operating system": (pod(os={"name": "plan9"}), "spec.os", 'supported values: "linux", "windows"'),
    "alias without an address": (
        pod(hostAliases=[{"ip": "10.0.0.1\n6.6.6.6 kubernetes", "hostnames": ["a"]}]),
        "spec.hostAliases[0].ip",
        "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    ),
    "alias with lines of its own": (
        pod(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a", "b\n6.6.6.6 kubernetes"]}]),
        "spec.hostAliases[0].hostnames[1]",
        "a lowercase RFC 1123 subdomain must consist of",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_upstream_refuses_is_refused(case: str) -> None:
    obj, field, reported = INVALID[case]
    causes = list(RULES.validate_create(CALL, obj))
    found = next((cause for cause in causes if cause.field == field), None)
    assert found is not None, causes
    assert reported in found.message


def test_what_upstream_accepts_is_accepted() -> None:
    good = pod(
        {
            "allowPrivilegeEscalation": False,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
            "procMount": "Unmasked",
            "seccompProfile": {"type": "Localhost", "localhostProfile": "dir/file.json"},
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "x"},
        },
        hostUsers=False,
        securityContext={**sysctl("net/ipv4/tcp_rmem"), "supplementalGroupsPolicy": "Strict"},
        hostAliases=[{"ip": "010.0.0.1", "hostnames": ["a.b"]}, {"ip": "2001:db8::1", "hostnames": ["c"]}],
    )
    assert list(RULES.validate_create(CALL, good)) == []


# --- what a container gets


def resolve(
    context: dict[str, Any] | None = None, *, seccomp_default: bool = False, **spec: Any
) -> ContainerSecurity:
    made = pod(context, **spec)
    return resolve_security(made, made.spec.containers[0], seccomp_default=seccomp_default)


def capabilities(**asked_for: list[str]) -> set[str]:
    return set(resolve({"capabilities": asked_for}).effective_capabilities)


USUAL = set(DEFAULT_CAPABILITIES)


def test_capabilities_are_added_to_and_dropped_from_the_usual_set() -> None:
    assert resolve().capabilities is None
    assert capabilities(add=["NET_ADMIN"]) == USUAL | {"CAP_NET_ADMIN"}
    assert capabilities(add=["cap_sys_time"]) == USUAL | {"CAP_SYS_TIME"}
    assert capabilities(drop=["CHOWN", "CAP_KILL"]) == USUAL - {"CAP_CHOWN", "CAP_KILL"}
    assert capabilities(drop=["ALL"]) == set()
    assert capabilities(add=["NET_BIND_SERVICE"], drop=["all"]) == {"CAP_NET_BIND_SERVICE"}
    assert capabilities(add=["ALL"]) == set(CAPABILITIES)
    assert capabilities(add=["ALL"], drop=["SYS_ADMIN"]) == set(CAPABILITIES) - {"CAP_SYS_ADMIN"}
    assert set(resolve({"privileged": True}).effective_capabilities) == set(CAPABILITIES)


def test_an_unknown_capability_is_refused() -> None:
    with pytest.raises(ContainerConfigError, match=r'unknown capability "CAP_FLY" in .*add$'):
        capabilities(add=["FLY"])
    with pytest.raises(ContainerConfigError, match=r"drop$"):
        capabilities(drop=["CAP_FLY"])


def test_a_container_counts_more_than_its_pod() -> None:
    shared = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 1, "runAsGroup": 2}
    own = {"seccompProfile": {"type": "Unconfined"}, "runAsUser": 0}
    got = resolve(own, securityContext=shared)
    assert (got.seccomp, got.user, got.group) == ("Unconfined", 0, 2)
    assert resolve(securityContext=shared).seccomp == "RuntimeDefault"


def test_seccomp_is_off_unless_the_node_says_otherwise() -> None:
    assert resolve().seccomp == "Unconfined"
    assert resolve(seccomp_default=True).seccomp == "RuntimeDefault"
    assert resolve({"seccompProfile": {"type": "Unconfined"}}, seccomp_default=True).seccomp == "Unconfined"
    privileged = {"privileged": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert resolve(privileged, seccomp_default=True).seccomp == "Unconfined"


def test_the_other_fields_arrive_as_they_are() -> None:
    got = resolve(
        {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "procMount": "Unmasked"},
        securityContext={
            **sysctl("net/ipv4/tcp_syncookies"),
            "supplementalGroups": [5, 6],
            "fsGroup": 7,
            "supplementalGroupsPolicy": "Strict",
        },
    )
    assert (got.no_new_privs, got.readonly_root, got.proc_mount) == (True, True, "Unmasked")
    assert got.sysctls == {"net.ipv4.tcp_syncookies": "1"}
    dotted = resolve(securityContext=sysctl("net.ipv4.conf.eth0/1.forwarding"))
    assert dotted.sysctls == {"net/ipv4/conf/eth0.1/forwarding": "1"}
    assert got.groups == (5, 6, 7)
    usual = resolve()
    assert (usual.no_new_privs, usual.readonly_root, usual.proc_mount) == (False, False, "Default")


def test_who_must_not_be_root_needs_a_user() -> None:
    made = pod({"runAsNonRoot": True})
    with pytest.raises(ContainerConfigError, match="container has runAsNonRoot and image will run as root"):
        check_user(made, made.spec.containers[0])


# --- what a node refuses


def check_refusal(made: Pod, *patterns: str) -> tuple[str, str] | None:
    refusal = check_pod(made, sysctls.allow(patterns))
    return (refusal.reason, refusal.message) if refusal else None


def test_sysctls_that_are_not_safe_are_refused_unless_the_node_allows_them() -> None:
    for name in sysctls.SAFE:
        assert check_refusal(pod(securityContext=sysctl(name))) is None
    unsafe = pod(securityContext=sysctl("kernel.msgmax"))
    reported = ("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted')
    assert check_refusal(unsafe) == reported
    assert check_refusal(unsafe, "kernel.shm*") == reported
    assert check_refusal(unsafe, "kernel.msg*") is None
    assert check_refusal(unsafe, "kernel.msgmax") is None
    assert check_refusal(pod(securityContext=sysctl("net/core/somaxconn")), "net.*") is None
    shared = pod(securityContext=sysctl("kernel.shm_rmid_forced"), hostIPC=True)
    assert check_refusal(shared) == (
        "SysctlForbidden",
        'forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host ipc enabled',
    )


def test_a_node_cannot_allow_sysctls_of_the_whole_machine() -> None:
    with pytest.raises(ValueError, match="--allowed-unsafe-sysctls: the sysctl 'vm'"):
        NodeOptions(allowed_unsafe_sysctls=("vm",))
    with pytest.raises(ValueError, match="must have at most 253 characters"):
        NodeOptions(allowed_unsafe_sysctls=("kernel msg",))


def test_app_armor_profiles_are_refused_where_they_cannot_be_enforced() -> None:
    reported = ("AppArmor", f"Cannot enforce AppArmor: {NO_APP_ARMOR}")
    assert check_refusal(pod({"appArmorProfile": {"type": "RuntimeDefault"}})) == reported
    assert check_refusal(pod(securityContext={"appArmorProfile": {"type": "RuntimeDefault"}})) == reported
    annotation = {"container.apparmor.security.beta.kubernetes.io/c": "localhost/x"}
    assert check_refusal(pod(meta={"annotations": annotation})) == reported
    assert check_refusal(pod({"appArmorProfile": {"type": "Unconfined"}})) is None
    overridden = pod(
        {"appArmorProfile": {"type": "Unconfined"}},
        securityContext={"appArmorProfile": {"type": "RuntimeDefault"}},
    )
    assert check_refusal(overridden) is None


def test_pods_for_another_system_and_user_namespaces_are_refused() -> None:
    assert check_refusal(pod(os={"name": "windows"})) == (
        "PodOSNotSupported",
        "Failed to admit pod as the OS field doesn't match node OS",
    )
    assert check_refusal(pod(os={"name": "linux"})) is None
    assert "no user namespaces" in find_sandbox_problem(pod(hostUsers=False), as_processes=True)
    assert "no user namespaces" in find_sandbox_problem(pod(hostUsers=False), as_processes=False)
    for given in (pod(hostUsers=True), pod()):
        assert find_sandbox_problem(given, as_processes=True) == ""


SHARED = "shareProcessNamespace is true, and each container of this node sees its own processes only: "
SANDBOX = (
    'failed to get sandbox runtime: runtimeClassName is "gvisor", and this node has no container runtime: '
)
ELSEWHERE = "remove it, or run the pod on a node with a container runtime"


def test_shared_processes_and_runtime_classes_need_a_container_runtime() -> None:
    for asked, refusal in (
        (pod(shareProcessNamespace=True), SHARED + ELSEWHERE),
        (pod(runtimeClassName="gvisor"), SANDBOX + ELSEWHERE),
        (pod(shareProcessNamespace=False, runtimeClassName=""), ""),
    ):
        assert find_sandbox_problem(asked, as_processes=True) == refusal
        assert find_sandbox_problem(asked, as_processes=False) == ""


async def _status(here: NodeEnv) -> Any:
    return (await here.client.get(Pod, "app", "default")).status


@pytest.mark.root
async def test_a_pod_with_a_forbidden_sysctl_fails_and_says_why() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(securityContext=sysctl("kernel.msgmax"))
        await here.wait_for_phase("Failed")
        status = await _status(here)
        assert status.reason == "SysctlForbidden"
        assert status.container_statuses == ()  # kubectl would show those instead of the reason
        assert status.message == 'Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted'
        await here.wait_for_event('forbidden sysctl: "kernel.msgmax" not allowlisted')
        await here.delete()
        await here.wait_for_phase("gone")


@pytest.mark.root
async def test_a_pod_that_wants_a_user_namespace_gets_no_sandbox() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(hostUsers=False, container={"image": "i", "command": ["/bin/true"]})
        reported = await here.wait_for_event("user namespaces")
        assert reported.startswith("Failed to create pod sandbox: hostUsers is false")
        assert await here.phase() == "Pending"


@pytest.mark.root
@pytest.mark.parametrize(
    ("asked", "refusal"),
    [({"shareProcessNamespace": True}, SHARED), ({"runtimeClassName": "gvisor"}, SANDBOX)],
    ids=["processes", "runtime class"],
)
async def test_a_pod_that_needs_a_container_runtime_starts_no_process_without_one(
    asked: dict[str, Any], refusal: str
) -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(**asked, container={"image": "i", "command": ["/bin/true"]})
        reported = await here.wait_for_event(refusal)
        assert reported == f"Failed to create pod sandbox: {refusal}{ELSEWHERE}"
        assert await here.phase() == "Pending"
        assert here.role is not None
        assert not await here.role.runtimes.states()
        await here.delete()
        await here.wait_for_phase("gone")


@pytest.mark.root
async def test_a_pod_of_built_in_images_runs_whatever_processes_it_shares() -> None:
    async with node_env() as here:
        await here.start()
        await here.pod(shareProcessNamespace=True, hostNetwork=True)
        await here.wait_until_ready()


@pytest.mark.root
@pytest.mark.parametrize("host_pid", [False, True])
async def test_an_ephemeral_container_sees_the_processes_of_another_one_only_with_host_pid(
    host_pid: bool,
) -> None:
    debugger = {"name": "debug", "image": "i", "command": ["/bin/true"], "targetContainerName": "main"}
    async with node_env() as here:
        await here.start()
        await here.pod(hostNetwork=True, hostPID=host_pid)
        await here.wait_until_ready()
        patch = {"spec": {"ephemeralContainers": [debugger]}}
        await here.client.patch(Pod, "app", "default", merge=patch, subresource="ephemeralcontainers")
        if not host_pid:
            reported = await here.wait_for_event("targetContainerName is")
            assert reported == (
                'Error: targetContainerName is "main", and each container of this node sees its own '
                "processes only: leave it out, or run the pod on a node with a container runtime"
            )
            (refused,) = (await _status(here)).ephemeral_container_statuses
            assert refused.state.waiting.reason == "CreateContainerError"
            return

        async def has_ended() -> bool:
            (found,) = (await _status(here)).ephemeral_container_statuses or (None,)
            return found is not None and found.state.terminated is not None

        await until(has_ended, here.timeout)


@pytest.mark.root
@pytest.mark.parametrize("context", ["sysctl", "app armor"])
async def test_a_status_that_says_that_a_pod_has_begun_admits_it_nowhere(context: str) -> None:
    asked_for = sysctl("kernel.msgmax") if context == "sysctl" else {"appArmorProfile": RUNTIME_DEFAULT}
    began = "2026-01-02T03:04:05Z"
    reported = {"name": "main", "containerID": "process://x", "image": "i", "imageID": "", "restartCount": 0}
    main = {**reported, "ready": True, "state": {"running": {"startedAt": began}}}
    async with node_env() as here:
        await here.pod(securityContext=asked_for)
        status = {"phase": "Running", "startTime": began, "containerStatuses": [main]}
        await here.client.patch(Pod, "app", "default", merge={"status": status}, subresource="status")
        await here.start()
        await here.wait_for_phase("Failed")
        assert (await _status(here)).reason == ("SysctlForbidden" if context == "sysctl" else "AppArmor")
        await here.wait_for_event("forbidden sysctl" if context == "sysctl" else "Cannot enforce AppArmor")


@pytest.mark.root
async def test_an_ephemeral_container_with_an_app_armor_profile_is_refused_and_its_pod_runs_on() -> None:
    bad = {
        "name": "bad",
        "image": "i",
        "command": ["/bin/true"],
        "securityContext": {"appArmorProfile": RUNTIME_DEFAULT},
    }
    async with node_env() as here:
        await here.start()
        await here.pod(hostNetwork=True)  # beside a built-in image, so in the node's network
        await here.wait_until_ready()
        patch = {"spec": {"ephemeralContainers": [bad]}}
        await here.client.patch(Pod, "app", "default", merge=patch, subresource="ephemeralcontainers")
        reported = await here.wait_for_event("Cannot enforce AppArmor")
        assert reported == f"Error: Cannot enforce AppArmor: {NO_APP_ARMOR_SUPPORT}"
        (refusal,) = (await _status(here)).ephemeral_container_statuses
        assert refusal.state.waiting.reason == "CreateContainerError"
        await here.stop()
        await here.start()

        async def runs_again() -> bool:
            (main,) = (await _status(here)).container_statuses
            return bool(main.restart_count and main.ready)

        await until(runs_again, here.timeout)


REFUSED_CONTAINERS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown capability": (
        {"capabilities": {"add": ["FLY"]}},
        'unknown capability "CAP_FLY" in securityContext.capabilities.add',
    ),
    "missing profile": (
        {"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}},
        'seccomp/none.json": No such file or directory',
    ),
}


@pytest.mark.root
@pytest.mark.parametrize("case", REFUSED_CONTAINERS)
@pytest.mark.parametrize("place", ["containers", "initContainers", "ephemeralContainers"])
async def test_a_container_that_cannot_be_confined_is_not_started(case: str, place: str) -> None:
    context, reported = REFUSED_CONTAINERS[case]
    bad = {"name": "bad", "image": "i", "command": ["/bin/true"], "securityContext": context}
    async with node_env() as here:
        await here.start()
        if place == "containers":
            await here.pod(container=bad)
        elif place == "initContainers":
            await here.pod(initContainers=[bad])
        else:  # beside a built-in image, so in the node's network
            await here.pod(hostNetwork=True)
            await here.wait_until_ready()
            patch = {"spec": {"ephemeralContainers": [bad]}}
            await here.client.patch(Pod, "app", "default", merge=patch, subresource="ephemeralcontainers")
        assert (await here.wait_for_event(reported)).startswith("Error: ")
        status = await _status(here)
        statuses = (
            *status.init_container_statuses,
            *status.container_statuses,
            *status.ephemeral_container_statuses,
        )
        waiting = next(s.state.waiting for s in statuses if s.name == "bad")
        assert waiting.reason == "CreateContainerError"
        assert reported in waiting.message


@pytest.mark.root
async def test_a_container_that_makes_device_nodes_cannot_follow_mounts_of_the_machine() -> None:
    bad = {
        "name": "bad",
        "image": "i",
        "command": ["/bin/true"],
        "securityContext": {"capabilities": {"add": ["MKNOD"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer"}],
    }
    async with node_env() as here:
        await here.start()
        await here.pod(container=bad, volumes=[{"name": "data", "emptyDir": {}}])
        reported = await here.wait_for_event("MKNOD")
        assert reported.startswith('Error: volume mount "data" of container "bad" has mountPropagation')
        (status,) = (await _status(here)).container_statuses
        assert status.state.waiting is not None
        assert status.state.waiting.reason == "CreateContainerError"


@pytest.mark.root
async def test_built_in_images_run_whatever_limits_their_manifests_ask_for() -> None:
    usual = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    async with node_env() as here:
        await here.start()
        await here.pod(container={"securityContext": usual})
        await here.wait_until_ready()


# --- what the kernel reports of a running container

STATUS = "grep -E '^(Uid|Groups|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"


async def run(here: NodeEnv, script: str, context: dict[str, Any], **spec: Any) -> dict[str, str]:
    """What a container with this security context prints, as `key: value` lines."""
    main = {"image": "busybox", "command": ["/bin/sh", "-c", script], "securityContext": context}
    made = await here.pod(container=main, restartPolicy="Never", **spec)

    async def has_ended() -> bool:
        return await here.phase() in ("Succeeded", "Failed")

    await until(has_ended, here.timeout)
    path = here.paths.real(here.paths.log_file("default", "app", made.uid, "main", 0))
    lines = [line.split(" ", 3)[3] for line in read(path).splitlines()]
    await here.delete(grace=0)
    await here.wait_for_phase("gone")
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def capability_names(mask: str) -> set[str]:
    return {name for number, name in enumerate(CAPABILITIES) if int(mask, 16) >> number & 1}


@pytest.mark.root
async def test_a_container_has_the_capabilities_that_are_left() -> None:
    async with node_env() as here:
        await here.start()
        reported = await run(here, STATUS, {})
        assert capability_names(reported["CapEff"]) == capability_names(reported["CapBnd"]) == USUAL
        assert (reported["NoNewPrivs"], reported["Seccomp"]) == ("0", "0")
        reported = await run(here, STATUS, {"capabilities": {"add": ["NET_ADMIN"], "drop": ["CHOWN"]}})
        assert capability_names(reported["CapBnd"]) == USUAL - {"CAP_CHOWN"} | {"CAP_NET_ADMIN"}
        reported = await run(here, STATUS, {"capabilities": {"drop": ["ALL"]}})
        assert capability_names(reported["CapEff"]) == capability_names(reported["CapBnd"]) == set()
        reported = await run(here, STATUS, {"runAsUser": 1000, "capabilities": {"add": ["NET_ADMIN"]}})
        assert capability_names(reported["CapEff"]) == set()


@pytest.mark.root
async def test_no_privileges_are_gained_and_calls_are_filtered() -> None:
    script = f"{STATUS}; unshare -m true 2>/dev/null && echo unshare: yes || echo unshare: no"
    default = {"seccompProfile": {"type": "RuntimeDefault"}}
    admin = {"capabilities": {"add": ["SYS_ADMIN"]}}
    async with node_env() as here:
        await here.start()
        reported = await run(here, script, {"allowPrivilegeEscalation": False, "runAsUser": 1000, **default})
        assert (reported["NoNewPrivs"], reported["Seccomp"], reported["Uid"].split()[0]) == ("1", "2", "1000")
        # Who has the capability is let through by the default profile, and not by one that forbids the call.
        assert (await run(here, script, {**default, **admin}))["unshare"] == "yes"
        profiles = here.paths.real(here.paths.seccomp)
        os.mkdir(profiles)
        rule = {"names": ["unshare"], "action": "SCMP_ACT_ERRNO"}
        write(f"{profiles}/own.json", json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
        own = {"seccompProfile": {"type": "Localhost", "localhostProfile": "own.json"}}
        reported = await run(here, script, {**own, **admin})
        assert (reported["Seccomp"], reported["NoNewPrivs"], reported["unshare"]) == ("2", "0", "no")
        assert (await run(here, script, admin))["unshare"] == "yes"


@pytest.mark.root
async def test_a_node_may_filter_all_containers() -> None:
    async with node_env() as here:
        await here.start(seccomp_default=True)
        assert (await run(here, STATUS, {}))["Seccomp"] == "2"
        assert (await run(here, STATUS, {"seccompProfile": {"type": "Unconfined"}}))["Seccomp"] == "0"
        assert (await run(here, STATUS, {"privileged": True}))["Seccomp"] == "0"


@pytest.mark.root
async def test_a_read_only_root_cannot_be_written_and_volumes_can() -> None:
    script = """
    for file in /root-file /etc/file /usr/file /data/file; do
        (echo x > $file) 2>/dev/null && echo $file: yes || echo $file: no
    done
    """
    volume: dict[str, Any] = {
        "volumes": [{"name": "data", "emptyDir": {}}],
        "mounts": [{"name": "data", "mountPath": "/data"}],
    }
    async with node_env() as here:
        await here.start()
        reported = await run(here, script, {"readOnlyRootFilesystem": True}, **volume)
        assert reported == {"/root-file": "no", "/etc/file": "no", "/usr/file": "no", "/data/file": "yes"}
        reported = await run(here, script, {}, **volume)
        assert set(reported.values()) == {"yes"}


@pytest.mark.root
async def test_sysctls_are_set_for_the_pod_alone() -> None:
    before = read("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    script = (
        "echo port: $(cat /proc/sys/net/ipv4/ip_unprivileged_port_start); "
        "echo shm: $(cat /proc/sys/kernel/shm_rmid_forced)"
    )
    context = {
        "sysctls": [
            {"name": "net/ipv4/ip_unprivileged_port_start", "value": "81"},
            {"name": "kernel.shm_rmid_forced", "value": "1"},
        ]
    }
    async with node_env() as here:
        await here.start()
        reported = await run(here, script, {}, securityContext=context)
        assert reported == {"port": "81", "shm": "1"}
    assert read("/proc/sys/net/ipv4/ip_unprivileged_port_start") == before


@pytest.mark.root
async def test_sysctls_of_a_network_that_is_the_nodes_are_not_set() -> None:
    async with node_env() as here:
        await here.start(pod_network="host")
        context = sysctl("net.ipv4.ip_unprivileged_port_start")
        await here.pod(container={"image": "i", "command": ["/bin/true"]}, securityContext=context)
        await here.wait_for_event("cannot be set: the pod shares the network of its node")


@pytest.mark.root
async def test_an_ephemeral_container_is_confined_as_any_other() -> None:
    context = {
        "capabilities": {"drop": ["ALL"]},
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    debugger = {
        "name": "debug",
        "image": "busybox",
        "command": ["/bin/sh", "-c", STATUS],
        "securityContext": context,
    }
    async with node_env() as here:
        await here.start()
        made = await here.pod(hostNetwork=True)  # it is beside a built-in image
        await here.wait_until_ready()
        patch = {"spec": {"ephemeralContainers": [debugger]}}
        await here.client.patch(Pod, "app", "default", merge=patch, subresource="ephemeralcontainers")

        async def has_ended() -> bool:
            statuses = (await _status(here)).ephemeral_container_statuses
            return bool(statuses and statuses[0].state.terminated)

        await until(has_ended, here.timeout)
        path = here.paths.real(here.paths.log_file("default", "app", made.uid, "debug", 0))
        log = read(path)
        assert "CapBnd:\t0000000000000000" in log
        assert "NoNewPrivs:\t1" in log
        assert "Seccomp:\t2" in log


# --- seccomp, asked of the kernel

TRY = """
import base64, ctypes, errno, json, os, socket, sys
program = base64.b64decode(sys.stdin.read())
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
held = ctypes.create_string_buffer(program)
filter = Program(len(program) // 8, ctypes.cast(held, ctypes.c_void_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0
def call(number, *arguments):
    ctypes.set_errno(0)
    code = libc.syscall(number, *map(ctypes.c_long, arguments))
    return "ok" if code >= 0 else errno.errorcode[ctypes.get_errno()]
def open_socket(family):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]
NUMBERS = json.loads(sys.argv[1])
print(json.dumps({
    "getpid": call(NUMBERS["getpid"]),
    "unshare": call(NUMBERS["unshare"], 0),
    "clone3": call(NUMBERS["clone3"], 0, 0),
    "add_key": call(NUMBERS["add_key"], 0, 0, 0, 0, 0),
    "personality": call(NUMBERS["personality"], 0xFFFFFFFF),
    "odd personality": call(NUMBERS["personality"], 0x40000),
    "clone": call(NUMBERS["clone"], 0x20200, 0, 0, 0, 0),  # CLONE_NEWNS | CLONE_FS, which exclude each other
    "vsock": open_socket(40),
    "unix": open_socket(1),
    "child": os.waitpid(os.spawnv(os.P_NOWAIT, "/bin/true", ["true"]), 0)[1],
    "seccomp": next(l.split()[1] for l in open("/proc/self/status") if l.startswith("Seccomp:")),
}))
"""


def run_under(program: str) -> dict[str, Any]:
    library = seccomp._library()
    names = ("getpid", "unshare", "clone3", "add_key", "personality", "clone")
    numbers = {name: library.seccomp_syscall_resolve_name(name.encode()) for name in names}
    done = subprocess.run(
        [sys.executable, "-c", TRY, json.dumps(numbers)],
        input=program,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported


def test_the_default_profile_lets_programs_run_and_keeps_them_from_new_namespaces() -> None:
    reported = run_under(seccomp.compile_default(DEFAULT_CAPABILITIES))
    assert reported == {
        "getpid": "ok",
        "unshare": "EPERM",
        "clone3": "ENOSYS",
        "add_key": "EPERM",
        "personality": "ok",
        "odd personality": "EPERM",
        "clone": "EPERM",
        "vsock": "EPERM",
        "unix": "ok",
        "child": 0,
        "seccomp": "2",
    }


def test_who_has_a_capability_may_make_its_calls() -> None:
    reported = run_under(seccomp.compile_default((*DEFAULT_CAPABILITIES, "CAP_SYS_ADMIN")))
    assert reported["unshare"] == "ok"
    assert reported["clone"] == "EINVAL"
    assert reported["clone3"] != "ENOSYS"
    assert reported["add_key"] == "EPERM"


def test_a_profile_of_the_node_is_applied(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    rules = [
        {"names": ["unshare", "no_such_call"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28},
        {"name": "add_key", "action": "SCMP_ACT_ERRNO", "excludes": {"caps": ["CAP_CHOWN"]}},
        {
            "names": ["personality"],
            "action": "SCMP_ACT_ERRNO",
            "args": [{"index": 0, "value": 0x40000, "op": "SCMP_CMP_EQ"}],
            "includes": {"minKernel": "4.8", "caps": ["CAP_CHOWN"]},
        },
    ]
    file.write_text(
        json.dumps(
            {
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64"],
                "syscalls": rules,
            }
        )
    )
    reported = run_under(seccomp.compile_file(str(file), ("CAP_CHOWN",)))
    assert reported["unshare"] == "ENOSPC"
    assert reported["add_key"] != "EPERM"
    assert (reported["personality"], reported["odd personality"]) == ("ok", "EPERM")


BAD_PROFILES = {
    "no JSON": "{",
    "no default": "{}",
    "unknown action": '{"defaultAction": "SCMP_ACT_MAYBE"}',
    "unknown field": '{"defaultAction": "SCMP_ACT_ALLOW", "sycalls": []}',
    "unknown architecture": '{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_Z80"]}',
    "flags": '{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG"]}',
    "argument out of range": '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": '
    '"SCMP_ACT_ERRNO", "args": [{"index": 9, "value": 0, "op": "SCMP_CMP_EQ"}]}]}',
}


@pytest.mark.parametrize("case", BAD_PROFILES)
def test_a_profile_that_cannot_be_understood_is_refused(case: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(BAD_PROFILES[case])
    with pytest.raises(seccomp.SeccompCompileError):
        seccomp.compile_file(str(file), ())


def test_compiled_filters_are_whole_instructions_that_the_kernel_takes() -> None:
    for capability_names in ((), DEFAULT_CAPABILITIES, CAPABILITIES):
        program = base64.b64decode(seccomp.compile_default(capability_names))
        assert program
        assert len(program) % 8 == 0
        assert len(program) // 8 <= seccomp.MOST_INSTRUCTIONS


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "LIBRARY", "libseccomp.so.0")
    seccomp._library.cache_clear()
    try:
        with pytest.raises(seccomp.SeccompCompileError, match="install the package libseccomp2"):
            seccomp.compile_profile(seccomp.runtime_default(), ())
    finally:
        seccomp._library.cache_clear()
