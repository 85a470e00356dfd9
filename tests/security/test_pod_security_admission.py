"""Pod Security admission: every check of the standards, the labels of a namespace, and the messages."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.https_apiserver import key_directory
from volplane import apiserver
from volplane.api.core import Pod
from volplane.apiserver.podsecurity.policy import LevelVersion, read_policy
from volplane.apiserver.podsecurity.standards import evaluate
from volplane.client import kubeconfig
from volplane.store.memory import MemoryStore

PREFIX = "pod-security.kubernetes.io/"
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(name: str = "c", *, image: str = "i", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "command": ["true"], "securityContext": SAFE, **more}


def safe(**changed: Any) -> dict[str, Any]:
    return container(securityContext={**SAFE, **changed})


def pod(name: str = "p", annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": [container()], **spec},
    }


def violations(level: str, data: dict[str, Any], version: str = "latest") -> str:
    made = msgspec.convert(data, Pod)
    return ", ".join(map(str, evaluate(LevelVersion(level, version), made.metadata, made.spec)))


BASELINE = {
    "app armor": (
        pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
        'forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined")',
    ),
    "app armor of a container": (
        pod(containers=[safe(appArmorProfile={"type": "Unconfined"})]),
        'forbidden AppArmor profile (container "c" must not set AppArmor profile type to "Unconfined")',
    ),
    "app armor by annotation": (
        pod(annotations={"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}),
        "forbidden AppArmor profile (annotation must not set AppArmor profile type to "
        '"container.apparmor.security.beta.kubernetes.io/c="unconfined"")',
    ),
    "host namespaces": (
        pod(hostNetwork=True, hostPID=True, hostIPC=True),
        "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
    ),
    "host ports": (
        pod(
            containers=[container(ports=[{"containerPort": 80, "hostPort": 8080}])],
            initContainers=[container("i", ports=[{"containerPort": 1, "hostPort": 9}])],
        ),
        'hostPort (containers "i", "c" use hostPorts 8080, 9)',
    ),
    "host of a probe": (
        pod(containers=[container(livenessProbe={"httpGet": {"port": 1, "host": "h"}})]),
        'probe or lifecycle host (container "c" uses probe or lifecycle host "h")',
    ),
    "hosts of hooks": (
        pod(
            containers=[
                container(
                    lifecycle={
                        "preStop": {"tcpSocket": {"port": 1, "host": "b"}},
                        "postStart": {"httpGet": {"port": 1, "host": "a"}},
                    }
                )
            ]
        ),
        'probe or lifecycle host (container "c" uses probe or lifecycle hosts "a", "b")',
    ),
    "privileged": (
        pod(containers=[safe(privileged=True)]),
        'privileged (container "c" must not set securityContext.privileged=true)',
    ),
    "proc mount": (
        pod(containers=[safe(procMount="Unmasked")]),
        'procMount (container "c" must not set securityContext.procMount to "Unmasked")',
    ),
    "selinux": (
        pod(
            securityContext={"seLinuxOptions": {"type": "spc_t", "user": "u"}},
            containers=[safe(seLinuxOptions={"role": "r"})],
        ),
        'seLinuxOptions (pod and container "c" set forbidden securityContext.seLinuxOptions: type "spc_t"; '
        "user may not be set; role may not be set)",
    ),
    "seccomp": (
        pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        'seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")',
    ),
    "sysctls": (
        pod(
            securityContext={
                "sysctls": [
                    {"name": "kernel.msgmax", "value": "1"},
                    {"name": "net.ipv4.tcp_rmem", "value": "1 2 3"},
                    {"name": "net.core.somaxconn", "value": "1"},
                ]
            }
        ),
        "forbidden sysctls (kernel.msgmax, net.core.somaxconn)",
    ),
    "host process": (
        pod(
            securityContext={"windowsOptions": {"hostProcess": True}},
            containers=[safe(windowsOptions={"hostProcess": True})],
        ),
        'hostProcess (pod and container "c" must not set securityContext.windowsOptions.hostProcess=true)',
    ),
}
# Checks with different messages in the restricted and the baseline level, as (spec, baseline, restricted).
BOTH = {
    "capabilities": (
        pod(containers=[safe(capabilities={"add": ["NET_ADMIN", "CAP_CHOWN"], "drop": ["ALL"]})]),
        'non-default capabilities (container "c" must not include "CAP_CHOWN", "NET_ADMIN" in '
        "securityContext.capabilities.add)",
        'unrestricted capabilities (container "c" must not include "CAP_CHOWN", "NET_ADMIN" in '
        "securityContext.capabilities.add)",
    ),
    "host path": (
        pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}, {"name": "e", "emptyDir": {}}]),
        'hostPath volumes (volume "v")',
        'restricted volume types (volume "v" uses restricted volume type "hostPath")',
    ),
}
RESTRICTED = {
    "privilege escalation": (
        pod(containers=[safe(allowPrivilegeEscalation=None)]),
        'allowPrivilegeEscalation != false (container "c" must set '
        "securityContext.allowPrivilegeEscalation=false)",
    ),
    "capabilities that stay": (
        pod(
            containers=[safe(capabilities=None)],
            initContainers=[container("i", securityContext={**SAFE, "capabilities": {"add": ["CHOWN"]}})],
        ),
        'unrestricted capabilities (containers "i", "c" must set securityContext.capabilities.drop=["ALL"]; '
        'container "i" must not include "CHOWN" in securityContext.capabilities.add)',
    ),
    "volume types": (
        pod(
            volumes=[
                {"name": "n", "nfs": {"server": "s", "path": "/"}},
                {"name": "g", "gitRepo": {"repository": "r"}},
                {"name": "s", "secret": {"secretName": "s"}},
            ]
        ),
        'restricted volume types (volumes "n", "g" use restricted volume types "gitRepo", "nfs")',
    ),
    "root allowed": (
        pod(securityContext={"runAsNonRoot": False}, containers=[safe(runAsNonRoot=False)]),
        'runAsNonRoot != true (pod and container "c" must not set securityContext.runAsNonRoot=false)',
    ),
    "root not forbidden": (
        pod(containers=[safe(runAsNonRoot=None)]),
        'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)',
    ),
    "root asked for": (
        pod(securityContext={"runAsUser": 0}),
        "runAsUser=0 (pod must not set runAsUser=0)",
    ),
    "seccomp not set": (
        pod(containers=[safe(seccompProfile=None)]),
        'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to '
        '"RuntimeDefault" or "Localhost")',
    ),
}


@pytest.mark.parametrize("case", BASELINE)
def test_what_baseline_forbids_is_forbidden_by_restricted_too(case: str) -> None:
    data, reported = BASELINE[case]
    assert violations("baseline", data) == violations("restricted", data) == reported
    assert violations("privileged", data) == ""


@pytest.mark.parametrize("case", BOTH)
def test_a_stricter_check_stands_in_for_the_weaker_one(case: str) -> None:
    data, weaker, stricter = BOTH[case]
    assert violations("baseline", data) == weaker
    assert violations("restricted", data) == stricter


@pytest.mark.parametrize("case", RESTRICTED)
def test_what_restricted_forbids_is_allowed_by_baseline(case: str) -> None:
    data, reported = RESTRICTED[case]
    assert violations("baseline", data) == ""
    assert violations("restricted", data) == reported


def test_a_pod_that_keeps_to_the_rules_violates_no_version_of_them() -> None:
    for minor in range(40):
        assert violations("restricted", pod(), f"v1.{minor}") == "", minor


def test_several_findings_come_in_the_order_of_their_ids() -> None:
    bare = pod(hostPID=True, containers=[container(securityContext={"privileged": True})])
    words = [part.split(" (")[0] for part in violations("restricted", bare).split("), ")]
    assert words == [
        "host namespaces",
        "privileged",
        "allowPrivilegeEscalation != false",
        "unrestricted capabilities",
        "runAsNonRoot != true",
        "seccompProfile",
    ]


def sysctl(name: str) -> dict[str, Any]:
    return pod(securityContext={"sysctls": [{"name": name, "value": "1"}]})


VERSIONS = {
    "a sysctl": (sysctl("net.ipv4.ip_local_reserved_ports"), 26, 27),
    "a sysctl of tcp": (sysctl("net.ipv4.tcp_fin_timeout"), 28, 29),
    "buffers of tcp": (sysctl("net.ipv4.tcp_wmem"), 31, 32),
    "a type of SELinux": (
        pod(securityContext={"seLinuxOptions": {"type": "container_engine_t"}}),
        30,
        31,
    ),
    "proc in a user namespace": (pod(hostUsers=False, containers=[safe(procMount="Unmasked")]), 34, 35),
}


@pytest.mark.parametrize("case", VERSIONS)
def test_what_an_older_version_forbids_may_be_allowed_later(case: str) -> None:
    data, last_forbidden, first_allowed = VERSIONS[case]
    assert violations("baseline", data, f"v1.{last_forbidden}") != ""
    assert violations("baseline", data, f"v1.{first_allowed}") == ""


def test_checks_count_from_the_version_that_has_them() -> None:
    assert violations("baseline", BASELINE["host of a probe"][0], "v1.33") == ""
    assert violations("restricted", RESTRICTED["root asked for"][0], "v1.22") == ""
    assert violations("restricted", RESTRICTED["privilege escalation"][0], "v1.7") == ""
    annotated = pod(annotations={"seccomp.security.alpha.kubernetes.io/pod": "unconfined"})
    assert "forbidden annotation" in violations("baseline", annotated, "v1.18")
    assert violations("baseline", annotated, "v1.19") == ""


def test_a_windows_pod_need_not_set_what_only_linux_has() -> None:
    bare = pod(os={"name": "windows"}, containers=[container(securityContext={"runAsNonRoot": True})])
    assert violations("restricted", bare) == ""
    assert violations("restricted", bare, "v1.24") != ""


def test_root_of_a_user_namespace_is_allowed_by_restricted() -> None:
    root = pod(hostUsers=False, containers=[safe(runAsUser=0, runAsNonRoot=None)])
    assert violations("restricted", root) == ""
    assert violations("restricted", root, "v1.34") != ""
    unmasked = pod(hostUsers=False, containers=[safe(procMount="Unmasked")])
    assert violations("restricted", unmasked).startswith("procMount")


def test_what_is_enforced_is_warned_of_unless_the_namespace_says_otherwise() -> None:
    policy = read_policy({f"{PREFIX}enforce": "baseline", f"{PREFIX}enforce-version": "v1.30"})
    assert str(policy.warn) == "baseline:v1.30"
    policy = read_policy({f"{PREFIX}enforce": "restricted", f"{PREFIX}warn": "privileged"})
    assert str(policy.warn) == "privileged:latest"
    assert read_policy({}).allows_all


# --- the server


class Api:
    def __init__(self, server: Any) -> None:
        self.server = server
        self.http = kubeconfig.load(server.kubeconfig, server=server.url)._http

    async def send(
        self, method: str, path: str, body: Any = None, type: str = "json"
    ) -> tuple[int, Any, list[str]]:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"content-type": f"application/{type}"}
        got = await self.http.request(method, path, headers=headers, body=data, timeout=60.0)
        return got.status, json.loads(got.body), got.headers.all("warning")

    async def namespace(self, name: str, **labels: str) -> tuple[int, Any, list[str]]:
        named = {PREFIX + key.replace("_", "-"): value for key, value in labels.items()}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": named}}
        answer = await self.send("POST", "/api/v1/namespaces", body)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        await self.send("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
        return answer

    async def relabel(self, name: str, **labels: str) -> tuple[int, Any, list[str]]:
        named = {PREFIX + key.replace("_", "-"): value for key, value in labels.items()}
        body = {"metadata": {"labels": named}}
        return await self.send("PATCH", f"/api/v1/namespaces/{name}", body, "merge-patch+json")

    async def pod(self, namespace: str, body: Any) -> tuple[int, Any, list[str]]:
        return await self.send("POST", f"/api/v1/namespaces/{namespace}/pods", body)


@asynccontextmanager
async def serving(audit: str = "") -> AsyncIterator[Api]:
    store = MemoryStore()
    server = await apiserver.run(
        apiserver.ApiServerOptions(data_dir=key_directory(), audit_log_path=audit), store
    )
    api = Api(server)
    try:
        yield api
    finally:
        await api.http.close()
        await server.close(0)
        await store.close()


PRIVILEGED = pod(containers=[container(securityContext={"privileged": True})])


async def test_a_pod_that_violates_the_level_of_its_namespace_is_refused() -> None:
    async with serving() as api:
        await api.namespace("a", enforce="restricted")
        code, reported, warnings = await api.pod(
            "a", pod("x", containers=[safe(allowPrivilegeEscalation=None)])
        )
        assert (code, reported["reason"], warnings) == (403, "Forbidden", [])
        assert reported["message"] == (
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": '
            'allowPrivilegeEscalation != false (container "c" must set '
            "securityContext.allowPrivilegeEscalation=false)"
        )
        assert (await api.pod("a", pod("y")))[0] == 201
        generated = {**PRIVILEGED, "metadata": {"generateName": "gen-"}}
        code, reported, _ = await api.pod("a", generated)
        assert code == 403
        assert reported["message"].startswith('pods "gen-')


async def test_a_namespace_without_labels_allows_everything() -> None:
    async with serving() as api:
        await api.namespace("a")
        assert await api.namespace("b", enforce="privileged")
        for name in ("a", "b", "kube-system"):
            await api.send(
                "POST",
                f"/api/v1/namespaces/{name}/serviceaccounts",
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}},
            )
            code, _, warnings = await api.pod(name, PRIVILEGED)
            assert (code, warnings) == (201, [])


def make_templated(kind: str) -> tuple[str, dict[str, Any]]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": PRIVILEGED["spec"]}
    job = {"metadata": template["metadata"], "spec": {**template["spec"], "restartPolicy": "Never"}}
    selected = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    spec: dict[str, Any]
    match kind:
        case "Job":
            group, spec = "batch/v1", {"template": job}
        case "CronJob":
            group, spec = "batch/v1", {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": job}}}
        case "ReplicationController":
            group, spec = "v1", {"selector": {"a": "b"}, "template": template}
        case "StatefulSet":
            group, spec = "apps/v1", {**selected, "serviceName": "s"}
        case _:
            group, spec = "apps/v1", selected
    body: dict[str, Any] = {"apiVersion": group, "kind": kind, "metadata": {"name": "w"}, "spec": spec}
    if kind == "PodTemplate":
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "w"}, "template": template}
        group = "v1"
    return ("/api/v1" if group == "v1" else f"/apis/{group}"), body


async def test_what_makes_pods_is_accepted_with_a_warning() -> None:
    kinds = [
        "Deployment",
        "StatefulSet",
        "DaemonSet",
        "ReplicaSet",
        "Job",
        "CronJob",
        "ReplicationController",
        "PodTemplate",
    ]
    async with serving() as api:
        await api.namespace("a", enforce="baseline", enforce_version="v1.30")
        for kind in kinds:
            root, body = make_templated(kind)
            code, reported, warnings = await api.send("POST", f"{root}/namespaces/a/{kind.lower()}s", body)
            assert code == 201, reported
            assert warnings == [
                '299 - "would violate PodSecurity \\"baseline:v1.30\\": privileged (container \\"c\\" must '
                'not set securityContext.privileged=true)"'
            ], kind


async def test_warn_lets_the_pod_in() -> None:
    async with serving() as api:
        await api.namespace("a", warn="baseline")
        code, _, warnings = await api.pod("a", PRIVILEGED)
        assert code == 201
        assert len(warnings) == 1
        assert 'would violate PodSecurity \\"baseline:latest\\": privileged' in warnings[0]


async def test_audit_writes_what_was_violated_into_the_audit_log(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    async with serving(str(log)) as api:
        await api.namespace("a", audit="baseline", enforce="privileged")
        code, _, warnings = await api.pod("a", PRIVILEGED)
        assert (code, warnings) == (201, [])
    events = [json.loads(line) for line in log.read_text().splitlines()]
    notes = next(e["annotations"] for e in events if e["objectRef"]["resource"] == "pods")
    assert notes[f"{PREFIX}enforce-policy"] == "privileged:latest"
    assert notes[f"{PREFIX}audit-violations"].startswith(
        'would violate PodSecurity "baseline:latest": privileged (container "c"'
    )


async def test_labels_that_say_nothing_sensible_are_refused() -> None:
    async with serving() as api:
        code, reported, _ = await api.namespace("a", enforce="strict", warn_version="1.30")
        assert (code, reported["reason"]) == (422, "Invalid")
        assert reported["message"] == (
            'Namespace "a" is invalid: [metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: '
            '"strict": must be one of privileged, baseline, restricted, '
            "metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: "
            '"1.30": must be "latest" or "v1.x"]'
        )
        assert (await api.namespace("b"))[0] == 201
        code, reported, _ = await api.relabel("b", enforce="baseline", enforce_version="v2.0")
        assert code == 422
        assert 'must be "latest" or "v1.x"' in reported["message"]
        assert (await api.relabel("b", enforce="baseline", enforce_version="v1.99"))[0] == 200


async def test_raising_the_level_names_the_pods_that_are_there_already() -> None:
    async with serving() as api:
        await api.namespace("a")
        for name in ("p1", "p2", "p3"):
            await api.pod("a", {**PRIVILEGED, "metadata": {"name": name}})
        await api.pod("a", pod("host", hostPID=True))
        await api.pod("a", pod("good"))
        code, _, warnings = await api.relabel("a", enforce="baseline")
        assert code == 200
        assert warnings == [
            '299 - "existing pods in namespace \\"a\\" violate the new PodSecurity enforce level '
            '\\"baseline:latest\\""',
            '299 - "host: host namespaces"',
            '299 - "p1 (and 2 other pods): privileged"',
        ]
        assert (await api.relabel("a", enforce="privileged"))[2] == []
        assert (await api.relabel("a", other="x"))[2] == []


async def test_an_update_that_runs_nothing_new_is_allowed() -> None:
    async with serving() as api:
        await api.namespace("a")
        await api.pod("a", PRIVILEGED)
        await api.relabel("a", enforce="baseline")
        path = "/api/v1/namespaces/a/pods/p"
        patch = "strategic-merge-patch+json"
        assert (await api.send("PATCH", path, {"metadata": {"labels": {"x": "y"}}}, patch))[0] == 200
        assert (await api.send("PATCH", f"{path}/status", {"status": {"message": "m"}}, patch))[0] == 200
        code, reported, _ = await api.send(
            "PATCH", path, {"spec": {"containers": [{"name": "c", "image": "other"}]}}, patch
        )
        assert code == 403
        assert 'violates PodSecurity "baseline:latest": privileged' in reported["message"]


async def test_a_debugging_container_is_checked_and_cannot_bring_a_pod_level_of_its_own() -> None:
    async with serving() as api:
        await api.namespace("a")
        await api.pod("a", pod(containers=[safe(runAsNonRoot=None)]))
        await api.relabel("a", enforce="restricted")
        path = "/api/v1/namespaces/a/pods/p"
        good = {**container("d"), "securityContext": SAFE}
        _, held, _ = await api.send("GET", path)
        held["spec"]["securityContext"] = {"runAsNonRoot": True}  # which a debugging container cannot set
        held["spec"]["ephemeralContainers"] = [good]
        code, reported, _ = await api.send("PUT", f"{path}/ephemeralcontainers", held)
        assert code == 403, reported
        assert 'pod or container "c" must set securityContext.runAsNonRoot=true' in reported["message"]
        await api.namespace("b", enforce="restricted")
        await api.pod("b", pod())
        path = "/api/v1/namespaces/b/pods/p/ephemeralcontainers"
        patch = "strategic-merge-patch+json"
        bad = {**good, "securityContext": {**SAFE, "privileged": True, "allowPrivilegeEscalation": None}}
        code, reported, _ = await api.send("PATCH", path, {"spec": {"ephemeralContainers": [bad]}}, patch)
        assert code == 403
        assert 'privileged (container "d"' in reported["message"]
        code, reported, _ = await api.send("PATCH", path, {"spec": {"ephemeralContainers": [good]}}, patch)
        assert code == 200, reported


@pytest.mark.peer("kubectl")
async def test_kubectl_shows_the_warning_and_the_refusal(tmp_path: Path) -> None:
    async with serving() as api:
        await api.namespace("a", enforce="baseline")
        _, body = make_templated("Deployment")
        assert "Warning: would violate PodSecurity" in await _kubectl(api, tmp_path, body)
        reported = await _kubectl(api, tmp_path, PRIVILEGED)
        assert 'pods "p" is forbidden: violates PodSecurity "baseline:latest": privileged' in reported


async def _kubectl(api: Api, home: Path, body: Any) -> str:
    process = await asyncio.create_subprocess_exec(
        "kubectl",
        "create",
        "-n",
        "a",
        "-f",
        "-",
        env={**os.environ, "KUBECONFIG": str(api.server.kubeconfig), "HOME": str(home)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate(json.dumps(body).encode())
    return output.decode()
