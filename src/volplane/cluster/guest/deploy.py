"""How a driver that was brought is deployed: the objects that an author would write by hand.

A driver and the sidecars that its capabilities call for share a pod and a socket. The subtle thing is the
state: `$STATE_DIR` is a directory of its node, `$SHARED_DIR` one that all nodes see, as if a network had it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import structs

from volplane.api.core import Secret
from volplane.api.meta import Resource
from volplane.api.names import sanitize_driver
from volplane.api.snapshot import VolumeGroupSnapshotClass
from volplane.cluster.apply import typed
from volplane.cluster.grants import bind_leases, bind_sidecar
from volplane.cluster.guest import sight
from volplane.cluster.guest.command import FIELDS, MODE, PATHS, SHARED, SOCKET, STATE, for_manifest
from volplane.cluster.guest.model import Command, Facts, Guest, Shape, shape
from volplane.cluster.readiness import Expected, Workload

KUBELET = "/var/lib/kubelet"
FIRST_NODE = "worker-1"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
DEFAULT_SNAPSHOT_CLASS = "snapshot.storage.kubernetes.io/is-default-class"
DEFAULT_GROUP_CLASS = "groupsnapshot.storage.kubernetes.io/is-default-class"
HEALTH = 9808  # upstream's default; where several nodes of a machine want it, each finds its own
LIVENESS = {
    "httpGet": {"path": "/healthz", "port": HEALTH},
    "initialDelaySeconds": 10,
    "timeoutSeconds": 3,
    "periodSeconds": 10,
    "failureThreshold": 5,
}
GRACE = 5  # seconds for a driver that is asked to end
Thing = dict[str, Any]


def manifests(
    guest: Guest, facts: Facts, *, shared: str = "", default: bool = True, node: str = FIRST_NODE
) -> list[Resource]:
    """Everything that the driver needs in a cluster, in the order to create it.

    `shared` is the directory behind $SHARED_DIR; `default`: its class serves claims that name none; `node` is
    where a driver runs that has one node only.
    """
    where = shape(guest, facts)
    namespace = namespace_of(facts)
    things: list[Thing] = [
        _thing("v1", "Namespace", namespace),
        _thing("v1", "ServiceAccount", "driver", namespace),
    ]
    sidecars = sorted(_sidecars(guest, facts, where))
    things += [bind_sidecar(f"{namespace}-{name}", namespace, "driver", name) for name in sidecars]
    if sidecars:
        things.append(bind_leases("driver-leases", namespace, "driver"))
    made = [typed(thing) for thing in things]
    made += [_in(namespace, secret) for secret in guest.secrets]
    made.append(guest.driver or typed(_driver(facts)))
    made += _classes(guest, facts, where, default=default, node=node)
    made += guest.objects
    layout = _Layout(guest, facts, where, namespace, shared or f"{KUBELET}/csi-shared/{facts.name}", node)
    made += [typed(thing) for thing in layout.workloads()]
    return made


def expected(guest: Guest, facts: Facts, nodes: Sequence[str], *, node: str = FIRST_NODE) -> Expected:
    """What is to be seen when it is ready to work."""
    where = shape(guest, facts)
    namespace = namespace_of(facts)
    controller = Workload("Deployment", namespace, "controller")
    if where is Shape.ONE_NODE:
        return Expected(facts.name, (node,), Workload("StatefulSet", namespace, "driver"))
    central = where is Shape.CENTRAL and _central(guest, facts)
    return Expected(facts.name, tuple(nodes), controller if central else None)


def namespace_of(facts: Facts) -> str:
    return sanitize_driver(facts.name.lower()).strip("-")


def _central(guest: Guest, facts: Facts) -> bool:
    return guest.controller is not None and "CONTROLLER_SERVICE" in facts.plugin


def _in(namespace: str, secret: Secret) -> Secret:
    if secret.namespace:
        return secret
    return structs.replace(secret, metadata=structs.replace(secret.metadata, namespace=namespace))


# --- what the API must know of it


def _driver(facts: Facts) -> Thing:
    node_only = "CONTROLLER_SERVICE" not in facts.plugin
    spec: Thing = {
        "attachRequired": facts.attaches,
        "podInfoOnMount": node_only,  # an inline volume is known by its pod alone
        # A driver that sets the group itself says so by a capability, and then nobody else does.
        "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Persistent", "Ephemeral"] if node_only else ["Persistent"],
        "storageCapacity": _publishes_capacity(facts),
    }
    return _thing("storage.k8s.io/v1", "CSIDriver", facts.name, spec=spec)


def _publishes_capacity(facts: Facts) -> bool:
    """Room matters to the scheduler only where places differ."""
    return facts.provisions and facts.constrained and "GET_CAPACITY" in facts.controller


def _classes(guest: Guest, facts: Facts, where: Shape, *, default: bool, node: str) -> list[Resource]:
    made: list[Resource] = list(guest.classes)
    if not guest.classes and facts.provisions:
        made.append(typed(_class(facts, where, default=default, node=node)))
    made += guest.snapshot_classes
    if not guest.snapshot_classes and facts.snapshots:
        marked = {"annotations": {DEFAULT_SNAPSHOT_CLASS: "true"}}
        thing = _thing("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", facts.name)
        thing["metadata"] |= marked
        made.append(typed(thing | {"driver": facts.name, "deletionPolicy": "Delete"}))
    if facts.groups and not any(isinstance(own, VolumeGroupSnapshotClass) for own in guest.objects):
        thing = _thing("groupsnapshot.storage.k8s.io/v1beta2", "VolumeGroupSnapshotClass", facts.name)
        thing["metadata"]["annotations"] = {DEFAULT_GROUP_CLASS: "true"}
        made.append(typed(thing | {"driver": facts.name, "deletionPolicy": "Delete"}))
    return made


def _class(facts: Facts, where: Shape, *, default: bool, node: str) -> Thing:
    thing = _thing("storage.k8s.io/v1", "StorageClass", facts.name)
    if default:
        thing["metadata"]["annotations"] = {DEFAULT_CLASS: "true"}
    thing |= {
        "provisioner": facts.name,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer" if facts.constrained else "Immediate",
        "allowVolumeExpansion": facts.expands and (where is not Shape.PER_NODE or facts.expands_on_nodes),
    }
    if where is Shape.ONE_NODE and facts.constrained:
        # Pods go where the driver is: no other node has its topology.
        me = {facts.asked_as, facts.node_id} - {""}
        keys = [key for key, value in facts.topology.items() if value in me]
        terms = [{"key": key, "values": [node]} for key in keys]
        if terms:
            thing["allowedTopologies"] = [{"matchLabelExpressions": terms}]
        else:  # where its node is, the volume itself must tell
            thing["volumeBindingMode"] = "Immediate"
    return thing


# --- the pods


def _sidecars(guest: Guest, facts: Facts, where: Shape) -> dict[str, list[str]]:
    """The sidecars that the driver's capabilities and its CSIDriver call for, with their flags."""
    each = where is Shape.PER_NODE
    made: dict[str, list[str]] = {}
    if facts.provisions:
        made["provisioner"] = ["--extra-create-metadata", "--timeout=60s"]
        if each:
            made["provisioner"] += ["--node-deployment", "--strict-topology", "--immediate-topology=false"]
        if _publishes_capacity(facts):
            level = 2 if where is Shape.CENTRAL else 1
            made["provisioner"] += ["--enable-capacity", f"--capacity-ownerref-level={level}"]
    # Who says that volumes are attached and attaches none still needs somebody who notes it. Such a one asks
    # nobody either.
    if facts.attaches or _notes_attachments(guest):
        made["attacher"] = ["--timeout=60s", *(["--leader-election"] if each else [])]
    # A resizer asks one controller for all volumes: it cannot look after those of its node alone. Where nodes
    # grow them by themselves it asks nobody, and any one of them may lead.
    if facts.expands_on_nodes or ((facts.expands or facts.modifies) and not each):
        made["resizer"] = ["--timeout=60s", *(["--leader-election"] if facts.expands_on_nodes else [])]
    if facts.snapshots:
        made["snapshotter"] = ["--extra-create-metadata", *(["--node-deployment"] if each else [])]
        if facts.groups:
            made["snapshotter"].append("--feature-gates=CSIVolumeGroupSnapshot=true")
    return made


def _notes_attachments(guest: Guest) -> bool:
    return guest.driver is not None and guest.driver.spec.attach_required is not False


class _Layout:
    def __init__(
        self, guest: Guest, facts: Facts, where: Shape, namespace: str, shared: str, node: str
    ) -> None:
        self.guest, self.facts, self.where = guest, facts, where
        self.namespace, self.shared, self.node = namespace, shared, node

    def workloads(self) -> list[Thing]:
        if self.where is Shape.ONE_NODE:
            return [self._one_node()]
        each = self.where is Shape.PER_NODE
        found = [self._every_node(sidecars=each)]
        if not each and _central(self.guest, self.facts):
            found.insert(0, self._controller())
        return found

    def _controller(self) -> Thing:
        assert self.guest.controller is not None
        beside = [*self._beside(self._central()), self._liveness()]
        containers = [self._driver(self.guest.controller, "controller"), *beside]
        spec = self._pod(containers, self.guest.controller, {"emptyDir": {}})
        return self._workload(
            "Deployment", "controller", spec, {"replicas": 1, "strategy": {"type": "Recreate"}}
        )

    def _every_node(self, *, sidecars: bool) -> Thing:
        assert self.guest.node is not None
        everything = frozenset(_sidecars(self.guest, self.facts, self.where))
        beside = self._beside(everything if sidecars else everything - self._central())
        mode = "all" if sidecars else "node"
        containers = [self._driver(self.guest.node, mode), self._registrar(), *beside, self._liveness()]
        spec = self._pod(containers, self.guest.node, self._plugin())
        return self._workload("DaemonSet", "node", spec, {})

    def _one_node(self) -> Thing:
        assert self.guest.node is not None
        beside = [
            self._registrar(),
            *self._beside(_sidecars(self.guest, self.facts, self.where)),
            self._liveness(),
        ]
        containers = [self._driver(self.guest.node, "all"), *beside]
        spec = self._pod(containers, self.guest.node, self._plugin())
        spec["nodeSelector"] = {"kubernetes.io/hostname": self.node}
        return self._workload("StatefulSet", "driver", spec, {"replicas": 1, "serviceName": "driver"})

    def _workload(self, kind: str, name: str, pod: Thing, more: Thing) -> Thing:
        labels = {"app": name, "volplane/driver": self.facts.name}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"selector": {"matchLabels": labels}, "template": template, **more}
        thing = _thing("apps/v1", kind, name, self.namespace, spec=spec)
        thing["metadata"]["labels"] = labels
        return thing

    def _pod(self, containers: list[Thing], command: Command, socket: Thing) -> Thing:
        volumes = [
            {"name": "socket", **socket},
            {"name": "kubelet", "hostPath": {"path": KUBELET, "type": "Directory"}},
            {
                "name": "registration",
                "hostPath": {"path": f"{KUBELET}/plugins_registry", "type": "Directory"},
            },
            _directory("state", f"{KUBELET}/csi-data/{self.facts.name}"),
            _directory("shared", self.shared),
        ]
        brought = sight.hidden(command)
        volumes += [{"name": f"path-{n}", "hostPath": {"path": path}} for n, path in enumerate(brought)]
        return {
            "serviceAccountName": "driver",
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "terminationGracePeriodSeconds": GRACE,
            "tolerations": [{"operator": "Exists"}],
            "containers": containers,
            "volumes": volumes,
        }

    def _plugin(self) -> Thing:
        return {"hostPath": {"path": f"{KUBELET}/plugins/{self.facts.name}", "type": "DirectoryOrCreate"}}

    def _driver(self, command: Command, mode: str) -> Thing:
        fields = [_from_field(name, path) for name, path in FIELDS.items()]
        fixed = {**PATHS, MODE: mode}
        own = {name: for_manifest(value) for name, value in command.env.items()}
        env = [*fields, *({"name": n, "value": v} for n, v in {**fixed, **own}.items())]
        mounts = [
            {"name": "socket", "mountPath": "/csi"},
            {"name": "kubelet", "mountPath": KUBELET, "mountPropagation": "Bidirectional"},
            {"name": "state", "mountPath": STATE},
            {"name": "shared", "mountPath": SHARED},
        ]
        brought = sight.hidden(command)
        mounts += [{"name": f"path-{n}", "mountPath": path} for n, path in enumerate(brought)]
        return {
            "name": "driver",
            "image": f"localhost/{self.facts.name.lower()}",
            "command": [for_manifest(word) for word in command.argv],
            "workingDir": command.directory,
            "env": [e for e in env if e["name"] not in own or "value" in e],
            "livenessProbe": LIVENESS,
            "securityContext": {"privileged": True},
            "volumeMounts": mounts,
        }

    def _registrar(self) -> Thing:
        path = f"{KUBELET}/plugins/{self.facts.name}/csi.sock"
        flags = [f"--kubelet-registration-path={path}", "--plugin-registration-path=/registration"]
        made = self._sidecar(
            "node-driver-registrar", "volplane/csi-node-driver-registrar", "registrar", flags
        )
        made["volumeMounts"].append({"name": "registration", "mountPath": "/registration"})
        return made

    def _liveness(self) -> Thing:
        flags = [f"--health-port={HEALTH}"]
        return self._sidecar("liveness-probe", "volplane/livenessprobe", "liveness", flags)

    def _central(self) -> frozenset[str]:
        """Those that ask the controller. That its nodes grow volumes only the node service can tell."""
        apart = self.facts.expands_on_nodes and not self.guest.together
        return frozenset(_sidecars(self.guest, self.facts, self.where)) - ({"resizer"} if apart else set())

    def _beside(self, wanted: Collection[str]) -> list[Thing]:
        found = {n: f for n, f in _sidecars(self.guest, self.facts, self.where).items() if n in wanted}
        return [self._sidecar(f"csi-{n}", f"volplane/csi-{n}", n, flags) for n, flags in found.items()]

    def _sidecar(self, name: str, image: str, role: str, flags: list[str]) -> Thing:
        fields = {
            "POD_NAME": "metadata.name",
            "NAMESPACE": "metadata.namespace",
            "NODE_NAME": "spec.nodeName",
        }
        return {
            "name": name,
            "image": image,
            "args": [f"--csi-address={SOCKET}", *flags, *self.guest.sidecars.get(role, ())],
            "env": [_from_field(name, path) for name, path in fields.items()],
            "volumeMounts": [{"name": "socket", "mountPath": "/csi"}],
        }


def _from_field(name: str, path: str) -> Thing:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _directory(name: str, path: str) -> Thing:
    return {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}


def _thing(api_version: str, kind: str, name: str, namespace: str = "", **fields: Any) -> Thing:
    metadata: Thing = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
