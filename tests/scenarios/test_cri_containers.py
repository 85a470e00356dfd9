"""Pods with a container runtime: all kinds of containers, their limits, probes, logs, devices and mounts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.support.cri import image
from tests.support.cri.cluster import CriUp, make_claim, make_container, make_pod, mount_claim
from tests.support.cri.containerd import Containerd
from tests.support.cri.registry import Registry
from tests.support.kubectl import Kubectl, programs

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "crictl"), pytest.mark.slow]

SIGNALS = ("USR1", "USR2", "37", "TERM")
LOG_SIZE = 64 << 10  # the least that the node accepts


@pytest.fixture(scope="module")
def up(containerd: Containerd) -> Iterator[CriUp]:
    limits = ("--container-log-max-size", f"{LOG_SIZE}", "--container-log-max-files", "3")
    cluster = CriUp(containerd, *limits, nodes=1)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


@pytest.fixture
def name(up: CriUp, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for a pod, which is deleted in the end."""
    made = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:50].strip("-")
    yield made
    up.kubectl("delete", "pod", made, "--ignore-not-found", "--timeout=60s")


@pytest.fixture(scope="module")
def kubectl(up: CriUp, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    return Kubectl(programs()[-1], up.kubeconfig, tmp_path_factory.mktemp("home"), "default")


# --- kinds of containers


def test_init_containers_run_in_order_and_a_sidecar_stays(up: CriUp, name: str) -> None:
    shared = [{"name": "shared", "mountPath": "/shared"}]

    def append(text: str) -> tuple[str, ...]:
        return "sh", "-c", f"echo {text} >> /shared/lines"

    sidecar = "echo sidecar >> /shared/lines; touch /shared/up; exec sleep infinity"
    up.run_pod(
        name,
        "sh", "-c", "echo main >> /shared/lines; exec sleep infinity",
        container={"volumeMounts": shared},
        volumes=[{"name": "shared", "emptyDir": {}}],
        initContainers=[
            make_container(*append("first"), name="first", volumeMounts=shared),
            make_container(
                "sh", "-c", sidecar,
                name="sidecar",
                restartPolicy="Always",
                volumeMounts=shared,
                startupProbe={"exec": {"command": ["test", "-e", "/shared/up"]}, "periodSeconds": 1},
            ),
            make_container(*append("second"), name="second", volumeMounts=shared),
        ],
    )  # fmt: skip
    up.wait(
        "main has written",
        lambda: up.exec(name, "cat", "/shared/lines").split() == ["first", "sidecar", "second", "main"],
    )
    assert up.find_state(name, "first")["terminated"]["reason"] == "Completed"
    assert "running" in up.find_state(name, "sidecar")


def test_a_failed_init_container_is_repeated_and_its_pod_waits(up: CriUp, name: str) -> None:
    up.apply(make_pod(name, initContainers=[make_container("sh", "-c", "exit 3", name="fails")]))
    up.wait("it was repeated", lambda: up.find_status(name, "fails")["restartCount"] >= 1)
    last = up.find_status(name, "fails")["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (3, "Error")
    assert up.find_state(name)["waiting"]["reason"] == "PodInitializing"


def test_an_ephemeral_container_sees_the_processes_of_its_target(
    up: CriUp, kubectl: Kubectl, name: str
) -> None:
    up.run_pod(name, "sleep", "4321")
    debug = ("debug", name, "--image=busybox", "--target=main", "-c", "debugger", "--")
    kubectl(*debug, "sh", "-c", "ps; cat /proc/1/cmdline")
    up.wait("it has ended", lambda: "terminated" in up.find_state(name, "debugger"))
    assert "sleep 4321" in up.kubectl("logs", name, "-c", "debugger")


def test_the_handler_of_the_runtime_class_runs_the_pod(up: CriUp) -> None:
    for handler in up.runtime.handlers:
        kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
        up.apply(json.dumps({**kind, "metadata": {"name": handler}, "handler": handler}))
        up.run_pod(f"with-{handler}", runtimeClassName=handler)
        (sandbox,) = up.list_sandboxes("--label", f"io.kubernetes.pod.name=with-{handler}")
        assert sandbox["runtimeHandler"] == handler
        assert up.exec(f"with-{handler}", "echo", handler) == f"{handler}\n"
        up.kubectl("delete", "pod", f"with-{handler}")


def test_an_unknown_handler_is_told(up: CriUp, name: str) -> None:
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    up.apply(json.dumps({**kind, "metadata": {"name": "kata"}, "handler": "kata"}))
    up.apply(make_pod(name, runtimeClassName="kata"))
    message = up.wait_event(name, "FailedCreatePodSandBox", "kata")
    assert "no runtime for" in message


# --- probes, hooks, ends


def test_a_container_that_is_not_alive_is_restarted(up: CriUp, name: str) -> None:
    alive = {"exec": {"command": ["test", "-e", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 1}
    command = "touch /tmp/alive; exec sleep infinity"
    up.run_pod(name, "sh", "-c", command, container={"livenessProbe": alive})
    up.exec(name, "rm", "/tmp/alive")
    up.wait("it was restarted", lambda: up.find_status(name)["restartCount"] == 1)
    up.wait_event(name, "Unhealthy", "Liveness probe failed")
    up.wait_ready(name)
    assert up.exec(name, "ls", "/tmp") == "alive\n"  # a restart begins with the image's files


def test_http_probes_reach_the_pods_address(up: CriUp, name: str) -> None:
    ready = {"httpGet": {"path": "/index.html", "port": 80}, "periodSeconds": 1}
    nginx = {"image": "nginx", "command": ["nginx", "-g", "daemon off;"], "readinessProbe": ready}
    up.apply(make_pod(name, container=nginx))
    up.wait_ready(name)
    up.exec(name, "rm", "/usr/share/nginx/html/index.html")
    up.wait_event(name, "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 404")


def test_the_termination_message_and_exit_code_are_in_the_status(up: CriUp, name: str) -> None:
    command = ("sh", "-c", "echo why it ended > /dev/termination-log; exit 7")
    up.apply(make_pod(name, *command, restartPolicy="Never"))
    up.wait("it has failed", lambda: up.phase(name) == "Failed")
    ended = up.find_state(name)["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (7, "Error", "why it ended\n")


def test_a_command_that_does_not_exist_is_told(up: CriUp, name: str) -> None:
    up.apply(make_pod(name, "/no/such/program", restartPolicy="Never"))
    up.wait("it has failed", lambda: up.phase(name) == "Failed")
    ended = up.find_state(name)["terminated"]
    assert ended["reason"] in ("StartError", "ContainerCannotRun")
    assert "/no/such/program" in ended["message"]


@pytest.mark.parametrize("kind", ["containerd", "newer_containerd"])
def test_the_stop_signal_is_that_of_the_container_or_of_its_image(
    kind: str, registry: Registry, request: pytest.FixtureRequest
) -> None:
    """Debian's containerd does not know the signal of a container: the node sends it."""
    registry.push(structs.replace(image.busybox(), stop_signal="SIGUSR2"), "library/signals:1")
    traps = "; ".join(f"trap 'echo {name} > /dev/termination-log; exit 0' {name}" for name in SIGNALS)
    script = ("sh", "-c", f"{traps}; while :; do sleep 0.1; done")
    cases = {"": "USR2", "SIGUSR1": "USR1", "SIGRTMIN+3": "37"}
    cluster = CriUp(request.getfixturevalue(kind), nodes=1)
    with cluster:
        for number, signal in enumerate(cases):
            lifecycle = {"lifecycle": {"stopSignal": signal}} if signal else {}
            made = json.loads(
                make_pod(
                    f"pod-{number}",
                    *script,
                    container={"image": "signals:1", **lifecycle},
                    os={"name": "linux"},
                    terminationGracePeriodSeconds=20,
                )
            )
            made["metadata"]["finalizers"] = ["example.com/read-status"]
            cluster.apply(json.dumps(made))
        for number in range(len(cases)):
            cluster.wait_ready(f"pod-{number}")
        cluster.kill()  # the signal is known after a restart, too
        cluster.start()
        cluster.kubectl("delete", "pods", "--all", "--wait=false")
        for number, told in enumerate(cases.values()):
            ended = wait_for_end(cluster, f"pod-{number}")
            assert (ended["exitCode"], ended["message"]) == (0, f"{told}\n")
            cluster.kubectl("patch", "pod", f"pod-{number}", "-p", '{"metadata": {"finalizers": null}}')
    assert cluster.leftovers() == {}


def wait_for_end(up: CriUp, pod: str) -> Any:
    return up.wait("it has ended", lambda: up.find_state(pod).get("terminated"), 15)


def test_too_much_memory_is_an_oom_kill(up: CriUp, name: str) -> None:
    limit = {"limits": {"memory": "16Mi"}}
    command = ("sh", "-c", "a=x; while true; do a=$a$a; done")
    up.apply(make_pod(name, *command, container={"resources": limit}, restartPolicy="Never"))
    up.wait("it has failed", lambda: up.phase(name) == "Failed")
    ended = up.find_state(name)["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


# --- limits and rights


def test_limits_are_those_of_the_cgroup(up: CriUp, name: str) -> None:
    limits = {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
    up.run_pod(name, container={"resources": limits})
    assert up.get("pod", name)["status"]["qosClass"] == "Burstable"
    id = up.find_status(name)["containerID"].removeprefix("containerd://")
    resources = json.loads(up.runtime.crictl("inspect", id))["info"]["runtimeSpec"]["linux"]["resources"]
    assert resources["memory"]["limit"] == 64 << 20
    assert resources["cpu"]["quota"] * 2 == resources["cpu"]["period"]
    assert resources["cpu"]["shares"] == 256


def test_usage_is_that_of_the_runtime(up: CriUp, name: str) -> None:
    up.run_pod(name, "sh", "-c", "while true; do :; done")
    path = "/api/v1/nodes/worker-1/proxy"

    def find_usage() -> Any:
        pods = json.loads(up.kubectl("get", "--raw", f"{path}/stats/summary"))["pods"]
        found = [c for pod in pods if pod["podRef"]["name"] == name for c in pod["containers"]]
        return [c for c in found if c["cpu"].get("usageCoreNanoSeconds", 0) > 10**8]

    (usage,) = up.wait("its CPU time is counted", find_usage)
    assert (usage["name"], usage["memory"]["workingSetBytes"] > 0) == ("main", True)
    own = f'{{container="main",namespace="default",pod="{name}"}}'
    metrics = up.kubectl("get", "--raw", f"{path}/metrics/resource")
    assert f"container_cpu_usage_seconds_total{own}" in metrics
    assert f"container_memory_working_set_bytes{own}" in metrics


def test_the_security_context_is_enforced(up: CriUp, name: str) -> None:
    context = {
        "runAsUser": 1234,
        "runAsGroup": 2345,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    up.run_pod(
        name,
        container={"securityContext": context, "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        volumes=[{"name": "v", "emptyDir": {}}],
        securityContext={"fsGroup": 3456, "supplementalGroups": [4567]},
    )
    assert up.exec(name, "id", "-u").strip() == "1234"
    assert set(up.exec(name, "id", "-G").split()) == {"2345", "3456", "4567"}
    status = dict(line.split(":", 1) for line in up.exec(name, "cat", "/proc/1/status").splitlines())
    assert int(status["CapBnd"], 16) == 1 << 10  # CAP_NET_BIND_SERVICE
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"
    refused = up.kubectl("exec", name, "--", "touch", "/file", check=False)
    assert "Read-only file system" in refused
    up.exec(name, "touch", "/v/file")


def test_a_privileged_pod_may_mount_and_shares_it_with_the_machine(
    up: CriUp, name: str, tmp_path: Path
) -> None:
    """A node plugin's way: Bidirectional mounts below the node's own directory."""
    place = up.directory / "n" / "1" / "plugins" / "shared-mounts"
    path = "/var/lib/kubelet/plugins/shared-mounts"
    volume = {"name": "plugins", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    mount = {"name": "plugins", "mountPath": "/plugins", "mountPropagation": "Bidirectional"}
    up.run_pod(
        name,
        container={"securityContext": {"privileged": True}, "volumeMounts": [mount]},
        volumes=[volume],
    )
    up.exec(name, "sh", "-c", "mkdir /plugins/m && mount -t tmpfs tmpfs /plugins/m && echo in > /plugins/m/f")
    assert (place / "m" / "f").read_text() == "in\n"
    up.exec(name, "umount", "/plugins/m")
    assert list((place / "m").iterdir()) == []


def mount_read_only(name: str, wish: str) -> dict[str, Any]:
    """Fields of a pod that mounts a directory with a mount below it."""
    place = {"name": "d", "mountPath": "/d", "readOnly": True, "recursiveReadOnly": wish}
    directory = {"path": f"/var/lib/kubelet/{name}", "type": "DirectoryOrCreate"}
    return {"container": {"volumeMounts": [place]}, "volumes": [{"name": "d", "hostPath": directory}]}


@pytest.mark.parametrize("kind", ["containerd", "newer_containerd"])
def test_a_mount_is_said_to_be_recursively_read_only_where_it_is(
    kind: str, request: pytest.FixtureRequest
) -> None:
    runtime = request.getfixturevalue(kind)
    with CriUp(runtime, nodes=1) as cluster:
        below = cluster.directory / "n" / "1" / "recursive" / "below"
        below.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", below], check=True)
        try:
            for wish in ("IfPossible", "Enabled"):
                cluster.apply(make_pod(wish.lower(), **mount_read_only("recursive", wish)))
            check_recursive_mounts(cluster)
        finally:
            cluster.kubectl("delete", "pods", "--all", "--timeout=60s")
            subprocess.run(["umount", below], check=True)


def find_recursive(up: CriUp, pod: str) -> str:
    """recursiveReadOnly in the status of the pod's mount at /d."""
    mounts = {each["mountPath"]: each for each in up.find_status(pod)["volumeMounts"]}
    told: str = mounts["/d"]["recursiveReadOnly"]
    return told


def check_recursive_mounts(up: CriUp) -> None:
    up.wait_ready("ifpossible")
    assert find_recursive(up, "ifpossible") == ("Enabled" if up.runtime.newer else "Disabled")
    tried = up.kubectl("exec", "ifpossible", "--", "touch", "/d/below/file", check=False)
    told = up.get("node", "worker-1")["status"].get("runtimeHandlers", [])
    if up.runtime.newer:
        assert "Read-only file system" in tried
        assert any(each["features"]["recursiveReadOnlyMounts"] for each in told)
        up.wait_ready("enabled")
        assert find_recursive(up, "enabled") == "Enabled"
        return
    assert tried == ""
    assert told == []
    why = 'volume "d" requested recursive read-only mode, but it is not supported by the runtime'
    up.wait_event("enabled", "Failed", why)
    waiting = up.find_state("enabled")["waiting"]
    assert (waiting["reason"], waiting["message"]) == ("CreateContainerConfigError", why)


# --- what a container finds


def test_names_and_addresses_are_the_pods(up: CriUp, name: str) -> None:
    fields = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    up.run_pod(
        name,
        container={"env": fields},
        hostAliases=[{"ip": "10.1.2.3", "hostnames": ["database"]}],
        dnsPolicy="None",
        dnsConfig={
            "nameservers": ["10.9.8.7"],
            "searches": ["example.com"],
            "options": [{"name": "ndots", "value": "2"}],
        },
    )
    address = up.get("pod", name)["status"]["podIP"]
    assert up.exec(name, "sh", "-c", "echo $POD_IP $POD_NAME $(hostname)").split() == [address, name, name]
    assert address in up.exec(name, "ip", "address")
    hosts = [line.split() for line in up.exec(name, "cat", "/etc/hosts").splitlines()]
    assert [address, name] in hosts
    assert ["10.1.2.3", "database"] in hosts
    resolv = up.exec(name, "cat", "/etc/resolv.conf").splitlines()
    assert resolv == ["search example.com", "nameserver 10.9.8.7", "options ndots:2"]


def test_host_namespaces_are_the_machines(up: CriUp, name: str) -> None:
    up.run_pod(name, hostNetwork=True, hostPID=True)
    status = up.get("pod", name)["status"]
    assert status["podIP"] == status["hostIP"]
    assert up.runtime.bridge in up.exec(name, "ip", "link")
    assert "containerd" in up.exec(name, "ps")


def test_containers_of_a_pod_may_share_their_processes(up: CriUp, name: str) -> None:
    other = make_container("sleep", "5432", name="other")
    own = make_container("sleep", "infinity")
    up.apply(make_pod(name, shareProcessNamespace=True, containers=[own, other]))
    up.wait_ready(name)
    assert "sleep 5432" in up.exec(name, "ps", container="main")


def test_a_raw_block_device_is_in_the_container(up: CriUp, name: str) -> None:
    up.apply(make_claim("raw", volumeMode="Block"))
    volumes = mount_claim("raw", "")["volumes"]
    up.run_pod(
        name,
        container={"volumeDevices": [{"name": "data", "devicePath": "/dev/disk"}]},
        volumes=volumes,
    )
    up.exec(name, "sh", "-c", "echo on the disk | dd of=/dev/disk bs=512 count=1 conv=sync,fsync")
    assert up.exec(name, "head", "-n", "1", "/dev/disk") == "on the disk\n"
    up.kubectl("delete", "pod", name)
    up.run_pod(
        name,
        container={"volumeDevices": [{"name": "data", "devicePath": "/dev/again"}]},
        volumes=volumes,
    )
    assert up.exec(name, "head", "-n", "1", "/dev/again") == "on the disk\n"
    up.kubectl("delete", "pod", name)
    up.kubectl("delete", "pvc", "raw")


# --- exec, attach, logs


def test_a_terminal_has_the_size_of_its_user(up: CriUp, kubectl: Kubectl, name: str) -> None:
    up.run_pod(name)
    with kubectl.terminal("exec", "-it", name, "--", "sh") as terminal:
        # The runtime starts the shell before it has the size, as for any other kubelet.
        terminal.type("until stty size; do sleep 0.1; done; exit 5\n")
        terminal.until("30 100")
        assert terminal.wait() == 5


def test_attach_speaks_to_the_container(up: CriUp, kubectl: Kubectl, name: str) -> None:
    command = ("sh", "-c", "while read line; do echo got $line; done; sleep infinity")
    up.run_pod(name, *command, container={"stdin": True, "tty": True})
    with kubectl.terminal("attach", "-it", name) as terminal:
        terminal.type("hello\n")
        terminal.until("got hello")


def test_logs_are_rotated_and_read_as_one(up: CriUp, name: str) -> None:
    lines = 600  # of 400 characters: several files
    text = "x" * 400
    count = f"echo $i {text}; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 1"
    command = f"i=0; while [ $i -lt {lines} ]; do {count}; done; exec sleep infinity"
    up.run_pod(name, "sh", "-c", command)
    wanted = f"{lines - 1} {text}"
    up.wait("all is written", lambda: up.kubectl("logs", name, "--tail=1") == f"{wanted}\n", 90)
    shown = [int(line.split()[0]) for line in up.kubectl("logs", name).splitlines()]
    assert shown == list(range(shown[0], lines))  # whole lines, in order, the oldest may be gone
    uid = up.get("pod", name)["metadata"]["uid"]
    logs = up.directory / "n" / "1" / "logs" / f"default_{name}_{uid}" / "main"
    up.wait("the log is rotated", lambda: len(list(logs.iterdir())) > 1)
    assert len(list(logs.iterdir())) <= 3


def test_the_log_of_the_attempt_before_is_kept(up: CriUp, name: str) -> None:
    command = ("sh", "-c", "echo attempt; [ -e /d/again ] && exec sleep infinity; touch /d/again")
    mount = [{"name": "d", "mountPath": "/d"}]
    up.apply(
        make_pod(name, *command, container={"volumeMounts": mount}, volumes=[{"name": "d", "emptyDir": {}}])
    )
    up.wait("it was restarted", lambda: up.find_status(name)["restartCount"] == 1)
    up.wait_ready(name)
    assert up.kubectl("logs", name, "--previous") == "attempt\n"
    # The dead container is kept for its log, and no more of them.
    found = up.list_cri_containers("--label", f"io.kubernetes.pod.name={name}")
    assert sorted(each["metadata"].get("attempt", 0) for each in found) in ([1], [0, 1])


# --- Services


def test_pods_find_services_and_each_other_by_name(up: CriUp) -> None:
    up.apply(make_service("web", {"port": 80, "targetPort": 8080}))
    up.apply(make_service("peers", {"port": 8080}, clusterIP="None"))
    page = "mkdir -p /www; hostname -f > /www/index.html; exec httpd -f -p 8080 -h /www"
    for name in ("web-0", "web-1"):
        up.run_pod(name, "sh", "-c", page, hostname=name, subdomain="peers")
    up.kubectl("label", "pods", "web-0", "web-1", "set=web")
    full = "web-1.peers.default.svc.cluster.local"
    address = up.get("pod", "web-1")["status"]["podIP"]
    # Other programs of this image resolve names, and addresses, too, with libraries that it lacks.
    up.wait("web-1 has a name", lambda: f"Address: {address}\n" in up.exec("web-0", "nslookup", full))
    own = up.get("service", "web")["spec"]["clusterIP"]
    assert f"Address: {own}\n" in up.exec("web-0", "nslookup", "web.default.svc.cluster.local")
    heard = fetch_from(up, "web-0", f"http://{own}", times=20)
    assert set(heard.split()) == {f"web-{number}.peers.default.svc.cluster.local" for number in (0, 1)}
    up.kubectl("delete", "pod", "web-0", "web-1", "--grace-period=1")


def make_service(name: str, port: dict[str, Any], **spec: Any) -> str:
    body = {"selector": {"set": "web"}, "ports": [port], **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body})


def fetch_from(up: CriUp, pod: str, url: str, *, times: int) -> str:
    """Pages as a process in the pod's network sees them."""
    (container,) = up.list_cri_containers("--label", f"io.kubernetes.pod.name={pod}", "--state", "Running")
    process = json.loads(up.runtime.crictl("inspect", container["id"]))["info"]["pid"]
    get = (
        "import urllib.request as r\n"
        f"for _ in range({times}): print(r.urlopen({url!r}, timeout=30).read().decode())"
    )
    command = ["nsenter", "--target", str(process), "--net", sys.executable, "-c", get]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
