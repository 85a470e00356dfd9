"""A `volplane up` whose nodes run containers with a container runtime, and short manifests for its pods."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.cri.containerd import Containerd
from tests.support.up import Up, environment

NODE_ROOT = "volplane.io/node-root"  # the label with the directory of the node


class CriUp(Up):
    def __init__(self, runtime: Containerd, *arguments: str, nodes: int = 2, **more: Any) -> None:
        super().__init__("--container-runtime-endpoint", runtime.endpoint, *arguments, nodes=nodes, **more)
        self.runtime = runtime

    # --- what the runtime has of this cluster

    def list_sandboxes(self, *arguments: str) -> list[Any]:
        return self._list("pods", "items", *arguments)

    def list_cri_containers(self, *arguments: str) -> list[Any]:
        return self._list("ps", "containers", "--all", *arguments)

    def _list(self, verb: str, member: str, *arguments: str) -> list[Any]:
        found = json.loads(self.runtime.crictl(verb, *arguments, "-o", "json"))[member] or []
        return [each for each in found if str(self.directory) in each["labels"].get(NODE_ROOT, "")]

    def list_containers(self) -> list[str]:
        """Containers and sandboxes, whether they run or not."""
        containers = [f"container of {describe_pod(each)}" for each in self.list_cri_containers()]
        return [*containers, *(f"sandbox of {describe_pod(each)}" for each in self.list_sandboxes())]

    def remove_containers(self) -> None:
        for sandbox in self.list_sandboxes():
            self.runtime.crictl("rmp", "--force", sandbox["id"], check=False)

    def leftovers(self) -> dict[str, list[str]]:
        containers = self.list_containers()
        return {**super().leftovers(), **({"containers": containers} if containers else {})}

    # --- what a user does

    def run_pod(self, name: str, *command: str, **spec: Any) -> None:
        """Start a pod of busybox and wait until it is ready."""
        self.apply(make_pod(name, *command, **spec))
        self.wait_ready(name)

    def wait_ready(self, pod: str) -> None:
        self.wait(f"pod {pod} is ready", lambda: is_ready(self.get("pod", pod)), 60)

    def exec(self, pod: str, *command: str, container: str = "") -> str:
        chosen = ("-c", container) if container else ()
        return self.kubectl("exec", pod, *chosen, "--", *command)

    def find_state(self, pod: str, container: str = "main") -> Any:
        """The state of a container, such as {"waiting": {"reason": …}}."""
        return self.find_status(pod, container).get("state", {})

    def find_status(self, pod: str, container: str = "main") -> Any:
        status = self.get("pod", pod)["status"]
        kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        return {c["name"]: c for kind in kinds for c in status.get(kind, [])}[container]

    def list_events(self, pod: str) -> list[tuple[str, str]]:
        """(reason, message) of all events of a pod, oldest first."""
        chosen = f"--field-selector=involvedObject.name={pod}"
        return [(e["reason"], e["message"]) for e in self.items("events", chosen)]

    def wait_event(self, pod: str, reason: str, text: str = "") -> str:
        """Wait for an event with a text, and return its message."""

        def find() -> str:
            found = self.list_events(pod)
            return next((message for why, message in found if why == reason and text in message), "")

        message: str = self.wait(f"{pod} has the event {reason} {text}", find, 60)
        return message

    @contextmanager
    def forward(self, pod: str, port: int) -> Iterator[str]:
        """The URL of a pod's port through `kubectl port-forward`."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            local = probe.getsockname()[1]
        command = [
            "kubectl",
            "--kubeconfig",
            self.kubeconfig,
            "port-forward",
            f"pod/{pod}",
            f"{local}:{port}",
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert b"Forwarding from" in line, line
            yield f"http://127.0.0.1:{local}"
        finally:
            process.kill()
            process.communicate()

    def fetch(self, pod: str, path: str = "/", port: int = 80) -> str:
        """A page of a pod's server, through `kubectl port-forward`."""
        with self.forward(pod, port) as url, urllib.request.urlopen(f"{url}{path}", timeout=30) as page:
            text: str = page.read().decode()
            return text


def describe_pod(found: Any) -> str:
    return f"pod {found['labels']['io.kubernetes.pod.name']} ({found['id']}, {found['state']})"


def is_ready(pod: Any) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def make_container(*command: str, name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox", **({"command": list(command)} if command else {}), **fields}


def make_pod(name: str, *command: str, container: Mapping[str, Any] = {}, **spec: Any) -> str:
    """A pod with one container of busybox, which sleeps unless it has another command."""
    own = make_container(*(command or ("sleep", "infinity")), **container)
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [own], **spec},
        }
    )


def make_claim(name: str, **spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "gp3",
                "resources": {"requests": {"storage": "1Gi"}},
                **spec,
            },
        }
    )


def mount_claim(claim: str, path: str) -> dict[str, Any]:
    """Fields of `make_pod` for a pod that mounts a claim."""
    return {
        "container": {"volumeMounts": [{"name": "data", "mountPath": path}]},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    }
