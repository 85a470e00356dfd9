"""A cluster on which upstream's programs run as pods, as they are deployed.

Each has its own service account with the roles that upstream ships for it, in-cluster configuration, and the
driver's socket on the node. The programs themselves are those of the machine: a container runs over its root.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support import peers
from tests.support.up import VOLPLANE, Stuck, Up, wait_until
from volplane.controllers import manager

NODE = "worker-1"
HOSTPATH = "hostpath.csi.k8s.io"
KUBELET = "/var/lib/kubelet"
PATIENCE = 110.0  # seconds, on a machine that is busy with other tests
RBAC = "rbac.authorization.k8s.io"
ITSELF = {  # what a program is told of its pod
    "NODE_NAME": "spec.nodeName",
    "POD_NAME": "metadata.name",
    "NAMESPACE": "metadata.namespace",
}
DATA = f"{KUBELET}/csi-hostpath-data"  # where the host-path driver has its volumes
BUILT_IN = "volplane/"  # images that are coroutines of the node


class PeerCluster:
    """`up` with what a test of peers says to it."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.programs: list[tuple[str, str]] = []  # (namespace, pod)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # --- programs

    def roles(self, name: str, *files: str) -> None:
        for manifest in peers.manifests(name, *files):
            self.up.kubectl("apply", "-f", str(manifest))

    def definitions(self) -> None:
        """The kinds of snapshots from upstream's own definitions, in place of ours."""
        ours = [crd["metadata"]["name"] for crd in self.up.items("crd")]
        self.delete("crd", *(name for name in ours if name.endswith("snapshot.storage.k8s.io")))
        for manifest in peers.manifests("snapshot-controller", "config/crd/*snapshot*.yaml"):
            self.up.kubectl("apply", "-f", str(manifest))
        for kind in ("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"):
            name = f"crd/{kind}.snapshot.storage.k8s.io"
            self.up.kubectl("wait", "--for=condition=Established", name, f"--timeout={PATIENCE:.0f}s")

    def hostpath(
        self,
        *flags: str,
        driver: str = HOSTPATH,
        node: str = NODE,
        data: str = DATA,
        attach: bool = True,
    ) -> None:
        """Upstream's host-path driver on a node, registered by upstream's registrar where there is one."""
        self.apply(csi_driver(driver, attachRequired=attach))
        plugin = container(
            "hostpathplugin",
            [
                f"--drivername={driver}",
                "--endpoint=unix:///csi/csi.sock",
                "--nodeid=$(NODE_NAME)",
                f"--enable-attach={str(attach).lower()}",
                "-v=5",
                *flags,
            ],
            mounts={"/csi": "socket", KUBELET: "kubelet", "/csi-data-dir": "data", "/dev": "dev"},
            privileged=True,
        )
        register = container(
            theirs_or_ours("csi-node-driver-registrar"),
            [
                "--csi-address=/csi/csi.sock",
                f"--kubelet-registration-path={socket(driver)}",
                "--plugin-registration-path=/registration",
            ],
            mounts={"/csi": "socket", "/registration": "registration"},
        )
        volumes = {
            "socket": plugin_directory(driver),
            "kubelet": KUBELET,
            "registration": f"{KUBELET}/plugins_registry",
            "data": data,
            "dev": "/dev",
        }
        self.run(f"{driver.partition('.')[0]}-{node}", [plugin, register], volumes, node=node)
        self.wait(f"{driver} is registered", lambda: driver in self._drivers(node))

    def _drivers(self, node: str) -> list[str]:
        return [driver["name"] for driver in self.up.get("csinode", node)["spec"].get("drivers") or []]

    def sidecar(
        self,
        program: str,
        driver: str,
        *flags: str,
        account: str = "default",
        name: str = "",
    ) -> None:
        """A program at a driver's socket: upstream's by its name, one of ours by its image."""
        arguments = ["--csi-address=/csi/csi.sock", *flags]
        made = container(program, arguments, mounts={"/csi": "socket"})
        self.run(
            name or program.removeprefix(BUILT_IN),
            [made],
            {"socket": plugin_directory(driver)},
            account=account,
        )

    def attacher(self, driver: str) -> None:
        """Upstream's where this machine has it, else ours; each with an account of its own."""
        self.account("csi-attacher", "volplane:external-attacher")
        self.sidecar(theirs_or_ours("csi-attacher"), driver, "-v=5", account="csi-attacher")

    def ours(self, role: str, driver: str, *flags: str, account: str) -> None:
        """One of our roles as a process, with a kubeconfig that has an account's token."""
        address = self.up.directory / "n" / "1" / "plugins" / driver / "csi.sock"
        arguments = [f"--kubeconfig={self._login(account)}", f"--csi-address={address}", *flags]
        with self._log(name := f"{role}-{driver}").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [VOLPLANE, role, *arguments], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _log(self, process: str) -> Path:
        return self.up.directory / f"{process}.log"

    def _login(self, account: str) -> str:
        admin = yaml.safe_load(Path(self.up.kubeconfig).read_text())
        asked = [peers.path("kubectl"), "--kubeconfig", self.up.kubeconfig, "create", "token", account]
        token = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        admin["users"] = [{"name": admin["users"][0]["name"], "user": {"token": token}}]
        path = self.up.directory / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(admin))
        path.chmod(0o600)
        return str(path)

    def account(self, name: str, *roles: str) -> None:
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        self.apply(thing("v1", "ServiceAccount", name))
        for role in roles:
            given = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
            binding = f"{name}-{role}"
            self.apply(thing(f"{RBAC}/v1", "ClusterRoleBinding", binding, subjects=[subject], roleRef=given))

    def snapshot_controller(self) -> None:
        made = container("snapshot-controller", ["-v=5"], mounts={})
        self.run("snapshot-controller", [made], {}, account="snapshot-controller", namespace="kube-system")

    def run(
        self,
        name: str,
        containers: list[dict[str, Any]],
        volumes: Mapping[str, str],
        *,
        account: str = "default",
        namespace: str = "default",
        node: str = NODE,
    ) -> None:
        self.apply(pod(name, containers, volumes, account=account, namespace=namespace, node=node))
        self.programs.append((namespace, name))
        self.wait(f"{name} runs", lambda: self._phase(name, namespace) == "Running")

    def _phase(self, name: str, namespace: str) -> str:
        phase: str = self.up.get("pod", name, "-n", namespace)["status"]["phase"]
        return phase

    # --- what a user says

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.up.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def claim(self, name: str, storage_class: str, size: str = "1Gi", **more: Any) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
            **more,
        }
        self.apply(thing("v1", "PersistentVolumeClaim", name, spec=spec))

    def bound(self, claim: str) -> Any:
        """The volume that a claim has got."""
        name = self.wait(
            f"claim {claim} is bound", lambda: self._bound(self.up.get("pvc", claim)) and self._volume(claim)
        )
        return self.up.get("pv", name)

    @staticmethod
    def _bound(claim: Any) -> bool:
        return bool(claim["status"].get("phase") == "Bound")

    def _volume(self, claim: str) -> str:
        name: str = self.up.get("pvc", claim)["spec"]["volumeName"]
        return name

    def pod(self, name: str, command: str, claims: Mapping[str, str], node: str = NODE, **more: Any) -> None:
        """A pod that does `command` with claims at their paths, and then stays."""
        self.apply(worker(name, command, claims, node, **more))
        self.wait(f"pod {name} is ready", lambda: self._is_ready(name))

    def _is_ready(self, name: str) -> bool:
        conditions = self.up.get("pod", name)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def delete(self, *what: str) -> None:
        self.up.kubectl("delete", *what, f"--timeout={PATIENCE:.0f}s")

    def gone(self, *what: str) -> None:
        self.wait(f"{' '.join(what)} is gone", lambda: not self.names(*what))

    def names(self, *what: str) -> list[str]:
        return self.up.kubectl("get", *what, "--ignore-not-found", "-o", "name").split()

    def wait(self, what: str, test: Callable[[], Any]) -> Any:
        try:
            return wait_until(what, test, PATIENCE)
        except Stuck as error:
            raise Stuck(f"{error}\n{self.diagnostics()}") from None

    def diagnostics(self) -> str:
        """What the programs and the events say, for whoever reads a failed test."""
        said = [self.up.kubectl("get", "events", "-A", check=False)]
        said += [self.up.kubectl("get", "pods,pvc,pv,volumeattachments", "-A", "-o", "wide", check=False)]
        for namespace, name in self.programs:
            logs = self.up.kubectl(
                "logs", name, "-n", namespace, "--all-containers", "--tail=40", check=False
            )
            said.append(f"--- {name}\n{logs}")
        for role in self.processes:
            lines = self._log(role).read_text(errors="replace").splitlines()
            said.append("\n".join((f"--- {role}", *lines[-40:])))
        return "\n".join(said)

    def restarted(self) -> list[str]:
        """Programs that did not live through it all in one go."""
        again = []
        for namespace, name in self.programs:
            reported = self.up.get("pod", name, "-n", namespace)["status"]["containerStatuses"]
            again += [
                f"{name}/{c['name']}" for c in reported if c["restartCount"] or "running" not in c["state"]
            ]
        return again + [role for role, process in self.processes.items() if process.poll() is not None]

    # --- the end

    def clean_up(self) -> None:
        """Users' things first, while the programs that can take them away still run."""
        for what in ("pod -l role=user", "volumesnapshot --all", "pvc --all"):
            self.up.kubectl(
                "delete", *what.split(), f"--timeout={PATIENCE:.0f}s", "--ignore-not-found", check=False
            )
        self.gone("pv")

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for role, process in self.processes.items():
            assert process.wait(60) == 0, f"{role} ended with {process.returncode}"


def theirs_or_ours(program: str) -> str:
    """Upstream's where this machine has it."""
    return program if peers.find(program) is not None else f"{BUILT_IN}{program}"


def without_snapshot_controller() -> list[str]:
    """Two of them would answer the same snapshots."""
    ours = [f"-{name}" for name in manager.CONTROLLERS if "snapshot" in name]
    return [f"--controllers={','.join(('*', *ours))}"]


@contextmanager
def run_peer_cluster(*arguments: str, nodes: int = 1) -> Iterator[PeerCluster]:
    with Up(*arguments, nodes=nodes) as up:
        cluster = PeerCluster(up)
        try:
            yield cluster
            cluster.clean_up()
        finally:
            cluster.stop()
    assert up.leftovers() == {}


# --- objects


def plugin_directory(driver: str) -> str:
    return f"{KUBELET}/plugins/{driver}"


def socket(driver: str) -> str:
    return f"{plugin_directory(driver)}/csi.sock"


def thing(api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **fields}


def container(
    program: str, arguments: Sequence[str], *, mounts: Mapping[str, str], privileged: bool = False
) -> dict[str, Any]:
    """Upstream's program by its name, or one of our images."""
    ours = program.startswith(BUILT_IN)
    image = program if ours else f"upstream/{program}:{peers.version(program)}"
    command = {} if ours else {"command": [peers.path(program)]}
    # It may lie below a home directory, and containers do not see those.
    brought = (
        [] if ours else [{"name": f"program-{program}", "mountPath": peers.path(program), "readOnly": True}]
    )
    spread = {"mountPropagation": "Bidirectional"} if privileged else {}
    return {
        "name": program.removeprefix(BUILT_IN),
        "image": image,
        "args": list(arguments),
        "env": [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in ITSELF.items()],
        "securityContext": {"privileged": privileged},
        "volumeMounts": [
            {"name": volume, "mountPath": path, **(spread if path == KUBELET else {})}
            for path, volume in mounts.items()
        ]
        + brought,
        **command,
    }


def pod(
    name: str,
    containers: list[dict[str, Any]],
    volumes: Mapping[str, str],
    *,
    account: str = "default",
    namespace: str = "default",
    node: str = NODE,
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "serviceAccountName": account,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "hostNetwork": True,
            "containers": containers,
            "volumes": [
                {"name": volume, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                for volume, path in volumes.items()
            ]
            + [
                {
                    "name": f"program-{made['name']}",
                    "hostPath": {"path": os.path.realpath(made["command"][0]), "type": "File"},
                }
                for made in containers
                if "command" in made
            ],
        },
    }


def worker(
    name: str, command: str, claims: Mapping[str, str], node: str = NODE, *, block: bool = False, **spec: Any
) -> dict[str, Any]:
    where: dict[str, list[dict[str, str]]] = {"volumeDevices" if block else "volumeMounts": []}
    for number, path in enumerate(claims):
        where["volumeDevices" if block else "volumeMounts"].append(
            {"name": f"v{number}", "devicePath" if block else "mountPath": path}
        )
    volumes = [
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}}
        for number, claim in enumerate(claims.values())
    ]
    work = {"name": "work", "image": "busybox", "command": ["sh", "-ec", command], **where}
    stay = {"name": "stay", "image": "busybox", "command": ["sleep", "infinity"], **where}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"role": "user"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "initContainers": [work],
            "containers": [stay],
            "volumes": volumes,
            **spec,
        },
    }


def csi_driver(name: str, **more: Any) -> dict[str, Any]:
    """As host-path's own manifests describe it."""
    modes = {"podInfoOnMount": True, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}
    return thing("storage.k8s.io/v1", "CSIDriver", name, spec={**modes, **more})


def storage_class(name: str, driver: str, **fields: Any) -> dict[str, Any]:
    return thing("storage.k8s.io/v1", "StorageClass", name, provisioner=driver, **fields)


def snapshot_class(name: str, driver: str) -> dict[str, Any]:
    return thing(
        "snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", name, driver=driver, deletionPolicy="Delete"
    )


def snapshot(name: str, claim: str, of: str) -> dict[str, Any]:
    spec = {"volumeSnapshotClassName": of, "source": {"persistentVolumeClaimName": claim}}
    return thing("snapshot.storage.k8s.io/v1", "VolumeSnapshot", name, spec=spec)


def from_snapshot(name: str) -> dict[str, Any]:
    return {"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}}


def from_claim(name: str) -> dict[str, Any]:
    return {"dataSource": {"kind": "PersistentVolumeClaim", "name": name}}
