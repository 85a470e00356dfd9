"""kubectl on pods: logs, exec, cp, port-forward, drain, rollouts."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.kubectl import Kubectl
from tests.support.up import wait_until

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

# Counts until it is stopped, so that the log has a first line, more lines, and an end.
COUNTING = 'i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo "line $i"; sleep 0.1; done; echo the end'
SERVING = (
    "import http.server, sys\n"
    "class Hello(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'hello ' + self.path.encode())\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Hello).serve_forever()\n"
)


STREAMS = ("stdin", "stdinOnce", "tty")


def pod(name: str, *command: str, **spec: object) -> str:
    streams = {key: spec.pop(key) for key in STREAMS if key in spec}
    container = {"name": "main", "image": "busybox", "command": list(command), **streams}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }
    return json.dumps(body)


def deployment(name: str, replicas: int, *command: str) -> str:
    template = json.loads(pod(name, *command))
    del template["apiVersion"], template["kind"], template["metadata"]["name"]
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }
    return json.dumps(body)


def start_pod(kubectl: Kubectl, name: str, *command: str, **spec: object) -> str:
    kubectl.apply(pod(name, *command, **spec))
    ready = kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    assert ready == f"pod/{name} condition met\n"
    return name


@pytest.fixture(scope="module")
def sleeper(kubectl: Kubectl) -> str:
    return start_pod(kubectl, "sleeper", "sleep", "infinity")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- logs


def test_logs_are_followed_to_the_end(kubectl: Kubectl) -> None:
    counter = start_pod(kubectl, "counter", "sh", "-c", COUNTING, restartPolicy="Never")
    wait_until("it has spoken", lambda: kubectl("logs", counter).startswith("line 1\n"))
    with kubectl.start("logs", "-f", counter) as lines:
        assert lines.line() == "line 1"
        lines.until("line 5")
        kubectl("exec", counter, "--", "touch", "/tmp/stop")
        lines.until("the end")
        assert lines.wait() == 0
    assert kubectl("logs", counter, "--tail=1") == "the end\n"
    stamped = kubectl("logs", counter, "--tail=1", "--timestamps")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z the end\n", stamped)
    assert kubectl("logs", "-l", f"app={counter}", "--tail=1") == "the end\n"
    assert len(kubectl("logs", counter, "--limit-bytes=10")) == 10


def test_logs_of_what_has_none(kubectl: Kubectl, sleeper: str) -> None:
    assert 'pods "missing" not found' in kubectl.fails("logs", "missing")
    output = kubectl.fails("logs", sleeper, "-c", "other")
    assert "container other is not valid for pod sleeper" in output
    output = kubectl.fails("logs", sleeper, "--previous")
    assert 'previous terminated container "main" in pod "sleeper" not found' in output


def test_logs_of_the_life_before(kubectl: Kubectl) -> None:
    kubectl.apply(pod("again", "sh", "-c", "echo life; sleep 0.3; exit 3"))
    restarts = ".status.containerStatuses[0].restartCount"
    wait_until("it starts again", lambda: kubectl.value(restarts, "pod", "again") not in ("", "0"), 60)
    assert kubectl("logs", "again", "--previous") == "life\n"
    ended = ".status.containerStatuses[0].lastState.terminated.exitCode"
    assert kubectl.value(ended, "pod", "again") == "3"
    kubectl("delete", "pod", "again")


# --- exec, cp, port-forward, attach, run


def test_exec_brings_output_errors_and_exit_codes(kubectl: Kubectl, sleeper: str) -> None:
    assert kubectl("exec", sleeper, "--", "echo", "hello") == "hello\n"
    done = kubectl.run("exec", sleeper, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr == "err\ncommand terminated with exit code 7\n"
    assert "exit code 127" in kubectl.fails("exec", sleeper, "--", "/no/such/program", code=127)
    assert "not found" in kubectl.fails("exec", "missing", "--", "true")
    output = kubectl.fails("exec", sleeper, "-c", "other", "--", "true")
    assert "container other is not valid for pod sleeper" in output or "container not found" in output


def test_exec_takes_input_to_its_end(kubectl: Kubectl, sleeper: str) -> None:
    much = "".join(f"row {n}\n" for n in range(50_000))
    assert kubectl("exec", "-i", sleeper, "--", "cat", stdin=much) == much
    assert kubectl("exec", "-i", sleeper, "--", "wc", "-l", stdin=much).strip() == "50000"
    assert kubectl("exec", "-i", sleeper, "--", "head", "-1", stdin="first\nsecond\n") == "first\n"


def test_cp_both_ways(kubectl: Kubectl, sleeper: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree" / "deep"
    tree.mkdir(parents=True)
    (tree / "file").write_bytes(bytes(range(256)) * 4096)
    kubectl("cp", str(tmp_path / "tree"), f"{sleeper}:/tmp/tree")
    assert kubectl("exec", sleeper, "--", "wc", "-c", "/tmp/tree/deep/file").split()[0] == str(256 * 4096)
    kubectl("cp", f"{sleeper}:/tmp/tree", str(tmp_path / "back"))
    assert (tmp_path / "back" / "deep" / "file").read_bytes() == (tree / "file").read_bytes()
    packed = kubectl.run("exec", sleeper, "--", "tar", "cf", "-", "/tmp/none")
    assert "No such file or directory" in packed.stderr
    assert packed.returncode == 2

    def reports_missing_file() -> bool:
        missing = kubectl.run("cp", f"{sleeper}:/tmp/none", str(tmp_path / "none"))
        assert not (tmp_path / "none").exists()
        return "No such file or directory" in missing.stdout + missing.stderr

    # kubectl ends when the archive has ended, at times before it has printed what came with it.
    wait_until("kubectl cp says that there is no such file", reports_missing_file)


def test_port_forward_carries_many_requests(kubectl: Kubectl) -> None:
    port = free_port()
    # The interpreter itself: the environment's link to it may lie in /tmp, which a container has for itself.
    name = start_pod(kubectl, "server", os.path.realpath(sys.executable), "-c", SERVING, str(port))
    wait_until("it listens", lambda: _connects(kubectl, name, port), 60)
    with kubectl.start("port-forward", f"pod/{name}", f":{port}") as forward:
        here = int(re.search(r"127\.0\.0\.1:(\d+) -> ", forward.line())[1])  # type: ignore[index]
        for n in range(5):
            with urllib.request.urlopen(f"http://127.0.0.1:{here}/{n}", timeout=60) as answer:
                assert answer.read() == b"hello /%d" % n
    assert "not found" in kubectl.fails("port-forward", "pod/missing", "1:1")
    kubectl("delete", "pod", name)


def _connects(kubectl: Kubectl, pod: str, port: int) -> bool:
    """Test from inside the pod, which has its own loopback."""
    script = f"use IO::Socket::INET; exit !IO::Socket::INET->new('127.0.0.1:{port}')"
    return kubectl.run("exec", pod, "--", "perl", "-e", script).returncode == 0


def test_run_shows_the_output_and_cleans_up(kubectl: Kubectl) -> None:
    run = ("run", "once", "--image=busybox", "--restart=Never", "--rm", "-i", "--quiet", "--command")
    assert "hello" in kubectl(*run, "--", "echo", "hello")
    assert "not found" in kubectl.fails("get", "pod", "once")
    output = kubectl.fails("run", "Bad_Name", "--image=busybox")
    assert 'Invalid value: "Bad_Name"' in output


def test_run_gives_its_input_to_the_pod(kubectl: Kubectl) -> None:
    run = ("run", "eats", "--image=busybox", "--restart=Never", "--rm", "-i", "--quiet", "--command")
    text = "".join(f"row {n}\n" for n in range(2000))
    assert kubectl(*run, "--", "sh", "-c", "echo first; cat", stdin=text).startswith("first\n" + text)
    assert "terminated (Error)" in kubectl.fails(*run, "--", "sh", "-c", "cat; exit 3", stdin="x", code=3)


def test_attach_speaks_to_the_container(kubectl: Kubectl, sleeper: str) -> None:
    eater = start_pod(kubectl, "eater", "cat", stdin=True, stdinOnce=True, restartPolicy="Never")
    assert kubectl("attach", "-i", eater, stdin="one\ntwo\n") == "one\ntwo\n"
    wait_until("it had all it wanted", lambda: kubectl.value(".status.phase", "pod", eater) == "Succeeded")
    assert kubectl("logs", eater) == "one\ntwo\n"
    output = kubectl.fails("attach", "-i", eater, stdin="more")
    assert "cannot attach a container in a completed pod" in output
    output = kubectl.fails("attach", "-i", sleeper, stdin="words")
    assert 'container "main" was not started with stdin' in output


def test_attach_to_a_terminal(kubectl: Kubectl) -> None:
    shell = start_pod(kubectl, "shell", "sh", stdin=True, tty=True, restartPolicy="Never")
    with kubectl.terminal("attach", "-it", shell) as screen:
        screen.type("echo $((40 + 2)) $(tty)\n")
        screen.until("42 /dev/pts/0\r\n")
        screen.type("stty size\n")
        screen.until("30 100\r\n")
    # Whoever leaves leaves it as it is, and the next one finds it so.
    with kubectl.terminal("attach", "-it", shell) as screen:
        screen.type("echo again$((1 + 1))\n")
        screen.until("again2\r\n")
        screen.type("exit 0\n")
        assert screen.wait() == 0
    wait_until("it has ended", lambda: kubectl.value(".status.phase", "pod", shell) == "Succeeded")


# --- what happened


def test_events_of_a_pod(kubectl: Kubectl, sleeper: str) -> None:
    def reasons() -> set[str]:
        about = f"involvedObject.name={sleeper}"
        return set(kubectl("get", "events", "--field-selector", about, "-o", "jsonpath={..reason}").split())

    wait_until("its events", lambda: {"Scheduled", "Created", "Started"} <= reasons())
    table = kubectl("get", "events", "--sort-by=.lastTimestamp")
    assert table.splitlines()[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    described = kubectl("describe", "pod", sleeper)
    assert "Started container main" in described
    assert re.search(r"Status: +Running", described)
    if kubectl.minor >= 26:
        assert "Started container main" in kubectl("events", "--for", f"pod/{sleeper}")
        assert f"Pod/{sleeper}" in kubectl("events", "--types=Normal")


# --- nodes


def test_taints_are_set_seen_and_taken_away(kubectl: Kubectl) -> None:
    assert kubectl("taint", "node", "worker-2", "dedicated=disks:NoSchedule") == "node/worker-2 tainted\n"
    assert "dedicated=disks:NoSchedule" in kubectl("describe", "node", "worker-2")
    output = kubectl.fails("taint", "node", "worker-2", "dedicated=other:NoSchedule")
    assert "already has dedicated taint(s)" in output
    assert kubectl("taint", "node", "worker-2", "dedicated:NoSchedule-") == "node/worker-2 untainted\n"
    assert "not found" in kubectl.fails("taint", "node", "worker-2", "dedicated-")
    output = kubectl.fails("taint", "node", "worker-2", "a=b:Nonsense")
    assert "invalid taint effect: Nonsense" in output


def test_cordon_keeps_new_pods_away(kubectl: Kubectl) -> None:
    assert kubectl("cordon", "worker-2") == "node/worker-2 cordoned\n"
    assert kubectl("cordon", "worker-2") == "node/worker-2 already cordoned\n"
    assert "Ready,SchedulingDisabled" in kubectl("get", "node", "worker-2")
    selected = {"kubernetes.io/hostname": "worker-2"}
    kubectl.apply(pod("outside", "sleep", "infinity", nodeSelector=selected))
    reason = '.status.conditions[?(@.type=="PodScheduled")].reason'
    wait_until("it has no place", lambda: kubectl.value(reason, "pod", "outside") == "Unschedulable")
    assert kubectl("uncordon", "worker-2") == "node/worker-2 uncordoned\n"
    kubectl("wait", "--for=condition=Ready", "pod/outside", "--timeout=60s")
    assert kubectl.value(".spec.nodeName", "pod", "outside") == "worker-2"
    kubectl("delete", "pod", "outside")
    assert 'nodes "worker-9" not found' in kubectl.fails("cordon", "worker-9")


def test_drain_moves_pods_and_respects_budgets(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("moving", 2, "sleep", "infinity"))
    kubectl("rollout", "status", "deployment/moving", "--timeout=60s")
    start_pod(kubectl, "lonely", "sleep", "infinity", nodeName="worker-1")
    only = ("--pod-selector=app in (moving,lonely)", "--ignore-daemonsets", "--timeout=60s")
    output = kubectl.fails("drain", "worker-1", *only)
    assert "use --force to override" in output  # it would be lost
    drained = kubectl("drain", "worker-1", "--force", *only)
    assert drained.endswith("node/worker-1 drained\n") or drained.endswith("node/worker-1 evicted\n")
    assert "not found" in kubectl.fails("get", "pod", "lonely")
    kubectl("rollout", "status", "deployment/moving", "--timeout=60s")
    assert set(kubectl.value(".items[*].spec.nodeName", "pods", "-l", "app=moving").split()) == {"worker-2"}
    kubectl("uncordon", "worker-1")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "moving"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "moving"}}},
    }
    kubectl.apply(json.dumps(budget))
    wait_until("it is counted", lambda: kubectl.value(".status.currentHealthy", "pdb", "moving") == "2")
    refused = kubectl.run("drain", "worker-2", *only[:2], "--timeout=2s")
    assert refused.returncode == 1
    assert "Cannot evict pod as it would violate the pod's disruption budget." in refused.stderr
    kubectl("uncordon", "worker-2")
    kubectl("delete", "pdb,deployment", "moving")


# --- workloads


def test_rollouts_go_on_and_back(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("rolling", 2, "sleep", "infinity"))
    output = kubectl("rollout", "status", "deployment/rolling", "--timeout=60s")
    assert output.endswith('deployment "rolling" successfully rolled out\n')
    kubectl("set", "env", "deployment/rolling", "COLOUR=blue")
    kubectl("rollout", "status", "deployment/rolling", "--timeout=60s")
    pods = ("pods", "-l", "app=rolling", "--field-selector=status.phase=Running")
    colour = ".items[*].spec.containers[0].env[0].value"
    wait_until("all are blue", lambda: kubectl.value(colour, *pods).split() == ["blue", "blue"])
    history = kubectl("rollout", "history", "deployment/rolling")
    assert re.search(r"REVISION +CHANGE-CAUSE\n1 +<none>\n2 +<none>\n", history)
    assert kubectl("rollout", "undo", "deployment/rolling") == "deployment.apps/rolling rolled back\n"
    kubectl("rollout", "status", "deployment/rolling", "--timeout=60s")
    wait_until("none is", lambda: kubectl.value(colour, *pods) == "")
    assert kubectl("rollout", "restart", "deployment/rolling") == "deployment.apps/rolling restarted\n"
    kubectl("rollout", "status", "deployment/rolling", "--timeout=60s")
    assert "not found" in kubectl.fails("rollout", "status", "deployment/missing")
    kubectl("delete", "deployment", "rolling")


def test_scale_up_down_and_only_if(kubectl: Kubectl) -> None:
    kubectl.apply(deployment("scaled", 1, "sleep", "infinity"))
    assert kubectl("scale", "deployment/scaled", "--replicas=3") == "deployment.apps/scaled scaled\n"
    kubectl("rollout", "status", "deployment/scaled", "--timeout=60s")
    assert kubectl.value(".status.readyReplicas", "deployment", "scaled") == "3"
    output = kubectl.fails("scale", "deployment/scaled", "--replicas=5", "--current-replicas=2")
    assert "xpected replicas to be 2, was 3" in output
    kubectl("scale", "deployment/scaled", "--replicas=0")
    wait_until("all are gone", lambda: kubectl("get", "pods", "-l", "app=scaled", "-o", "name") == "")
    assert "not found" in kubectl.fails("scale", "deployment/missing", "--replicas=1")
    output = kubectl.fails("scale", "configmap/kube-root-ca.crt", "--replicas=1")
    assert "could not find the requested resource" in output
    kubectl("delete", "deployment", "scaled")


def test_a_claim_is_expanded_no_smaller(kubectl: Kubectl) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "disk"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl.apply(json.dumps(claim))
    wait_until("it is bound", lambda: kubectl.value(".status.phase", "pvc", "disk") == "Bound", 60)
    assert re.search(r"disk +Bound +pvc-\S+ +1Gi +RWO +standard", kubectl("get", "pvc", "disk"))
    claim["spec"]["resources"]["requests"]["storage"] = "512Mi"  # type: ignore[index]
    output = kubectl.fails("apply", "-f", "-", stdin=json.dumps(claim))
    assert "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity" in output
    kubectl("delete", "pvc", "disk")


def test_a_deleted_pod_is_gone_when_kubectl_returns(kubectl: Kubectl) -> None:
    start_pod(kubectl, "short", "sleep", "infinity")
    began = kubectl.value(".metadata.uid", "pod", "short")
    assert began
    assert kubectl("delete", "pod", "short").startswith('pod "short" deleted')
    assert "not found" in kubectl.fails("get", "pod", "short")
    start_pod(kubectl, "short", "sleep", "infinity")
    assert kubectl.value(".metadata.uid", "pod", "short") != began
    done = kubectl.run("delete", "pod", "short", "--force", "--grace-period=0")
    assert 'pod "short" force deleted' in done.stdout
