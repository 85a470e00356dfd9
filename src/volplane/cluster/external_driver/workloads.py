"""The manifests of a user's driver: the objects that its author would otherwise write by hand.

A driver and the sidecars that its capabilities need share a pod and a socket. `$STATE_DIR` is a directory of
the node, `$SHARED_DIR` one that all nodes share, like a network file system.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import structs

from volplane.api.annotations import (
    DEFAULT_CLASS_ANNOTATION,
    DEFAULT_GROUP_SNAPSHOT_CLASS_ANNOTATION,
    DEFAULT_SNAPSHOT_CLASS_ANNOTATION,
)
from volplane.api.core import Secret
from volplane.api.labels import HOSTNAME_LABEL
from volplane.api.meta import Resource
from volplane.api.names import sanitize_driver
from volplane.api.snapshot import VolumeGroupSnapshotClass
from volplane.cluster.apply import parse_object
from volplane.cluster.external_driver import host_paths
from volplane.cluster.external_driver.caller_environment import SECRET
from volplane.cluster.external_driver.command import FIELDS, MODE, PATHS, SHARED, SOCKET, STATE, for_manifest
from volplane.cluster.external_driver.model import (
    Command,
    DeploymentShape,
    DiscoveredDriver,
    ExternalDriver,
    ImageCommand,
    resolve_shape,
)
from volplane.cluster.external_driver.sidecar_flags import find_flags
from volplane.cluster.readiness import ExpectedDriver, WorkloadRef
from volplane.cluster.sidecar_roles import bind_leases, bind_role, bind_sidecar

KUBELET = "/var/lib/kubelet"
FIRST_NODE = "worker-1"
HEALTH = 9808  # upstream's default; nodes on one machine use different ports if it is taken
LIVENESS = {
    "httpGet": {"path": "/healthz", "port": HEALTH},
    "initialDelaySeconds": 10,
    "timeoutSeconds": 3,
    "periodSeconds": 10,
    "failureThreshold": 5,
}
GRACE = 5  # seconds for a driver to stop
Manifest = dict[str, Any]


def build_manifests(
    external: ExternalDriver,
    facts: DiscoveredDriver,
    *,
    shared: str = "",
    default: bool = True,
    node: str = FIRST_NODE,
) -> list[Resource]:
    """All objects that the driver needs, in the order to create them.

    `shared`: the directory of $SHARED_DIR; `default`: make its class the default class; `node`: where a
    driver with the shape one-node runs.
    """
    where = resolve_shape(external, facts)
    namespace = namespace_of(facts)
    things: list[Manifest] = [
        _manifest("v1", "Namespace", namespace),
        _manifest("v1", "ServiceAccount", "driver", namespace),
    ]
    sidecars = sorted(find_flags(external, facts, where))
    things += [bind_sidecar(f"{namespace}-{name}", namespace, "driver", name) for name in sidecars]
    things += [bind_role(f"{namespace}-{role}", namespace, "driver", role) for role in external.cluster_roles]
    # Its roles are in manifests that are not here: it gets all rights, as when it was discovered.
    things.append(bind_role(f"{namespace}-driver", namespace, "driver", "cluster-admin"))
    if external.environment:
        data = {name: b64encode(value.encode()).decode() for name, value in external.environment.items()}
        things.append(_manifest("v1", "Secret", SECRET, namespace, data=data))
    if sidecars:
        things.append(bind_leases("driver-leases", namespace, "driver"))
    made = [parse_object(thing) for thing in things]
    made += [_with_namespace(namespace, secret) for secret in external.secrets]
    made.append(external.driver or parse_object(_driver(facts)))
    made += _classes(external, facts, where, default=default, node=node)
    made += external.objects
    layout = _WorkloadBuilder(
        external, facts, where, namespace, shared or f"{KUBELET}/csi-shared/{facts.name}", node
    )
    made += [parse_object(thing) for thing in layout.workloads()]
    return made


def expected_driver(
    external: ExternalDriver, facts: DiscoveredDriver, nodes: Sequence[str], *, node: str = FIRST_NODE
) -> ExpectedDriver:
    """What to wait for until the driver is ready."""
    where = resolve_shape(external, facts)
    namespace = namespace_of(facts)
    controller = WorkloadRef("Deployment", namespace, "controller")
    if where is DeploymentShape.ONE_NODE:
        return ExpectedDriver(facts.name, (node,), WorkloadRef("StatefulSet", namespace, "driver"), namespace)
    central = where is DeploymentShape.CENTRAL and _has_controller(external, facts)
    return ExpectedDriver(facts.name, tuple(nodes), controller if central else None, namespace)


def namespace_of(facts: DiscoveredDriver) -> str:
    return sanitize_driver(facts.name.lower()).strip("-")


def _has_controller(external: ExternalDriver, facts: DiscoveredDriver) -> bool:
    return external.controller is not None and "CONTROLLER_SERVICE" in facts.plugin


def _with_namespace(namespace: str, secret: Secret) -> Secret:
    if secret.namespace:
        return secret
    return structs.replace(secret, metadata=structs.replace(secret.metadata, namespace=namespace))


# --- CSIDriver and classes


def _driver(facts: DiscoveredDriver) -> Manifest:
    node_only = "CONTROLLER_SERVICE" not in facts.plugin
    spec: Manifest = {
        "attachRequired": facts.attaches,
        "podInfoOnMount": node_only,  # an inline volume is identified by its pod
        # A driver that applies fsGroup itself has VOLUME_MOUNT_GROUP, and then the kubelet does not.
        "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Persistent", "Ephemeral"] if node_only else ["Persistent"],
        "storageCapacity": facts.publishes_capacity,
    }
    return _manifest("storage.k8s.io/v1", "CSIDriver", facts.name, spec=spec)


def _classes(
    external: ExternalDriver, facts: DiscoveredDriver, where: DeploymentShape, *, default: bool, node: str
) -> list[Resource]:
    made: list[Resource] = list(external.classes)
    if not external.classes and facts.provisions:
        made.append(parse_object(_class(facts, where, default=default, node=node)))
    made += external.snapshot_classes
    if not external.snapshot_classes and facts.snapshots:
        marked = {"annotations": {DEFAULT_SNAPSHOT_CLASS_ANNOTATION: "true"}}
        thing = _manifest("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass", facts.name)
        thing["metadata"] |= marked
        made.append(parse_object(thing | {"driver": facts.name, "deletionPolicy": "Delete"}))
    if facts.groups and not any(isinstance(own, VolumeGroupSnapshotClass) for own in external.objects):
        thing = _manifest("groupsnapshot.storage.k8s.io/v1beta2", "VolumeGroupSnapshotClass", facts.name)
        thing["metadata"]["annotations"] = {DEFAULT_GROUP_SNAPSHOT_CLASS_ANNOTATION: "true"}
        made.append(parse_object(thing | {"driver": facts.name, "deletionPolicy": "Delete"}))
    return made


def _class(facts: DiscoveredDriver, where: DeploymentShape, *, default: bool, node: str) -> Manifest:
    thing = _manifest("storage.k8s.io/v1", "StorageClass", facts.name)
    if default:
        thing["metadata"]["annotations"] = {DEFAULT_CLASS_ANNOTATION: "true"}
    thing |= {
        "provisioner": facts.name,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer" if facts.has_topology else "Immediate",
        "allowVolumeExpansion": facts.expands
        and (where is not DeploymentShape.PER_NODE or facts.expands_on_nodes),
    }
    if where is DeploymentShape.ONE_NODE and facts.has_topology:
        # Pods must run where the driver is: no other node has its topology.
        me = {facts.asked_as, facts.node_id} - {""}
        keys = [key for key, value in facts.topology.items() if value in me]
        terms = [{"key": key, "values": [node]} for key in keys]
        if terms:
            thing["allowedTopologies"] = [{"matchLabelExpressions": terms}]
        else:  # the node is known only from the volume's topology
            thing["volumeBindingMode"] = "Immediate"
    return thing


# --- workloads


class _WorkloadBuilder:
    def __init__(
        self,
        external: ExternalDriver,
        facts: DiscoveredDriver,
        where: DeploymentShape,
        namespace: str,
        shared: str,
        node: str,
    ) -> None:
        self.external, self.facts, self.where = external, facts, where
        self.namespace, self.shared, self.node = namespace, shared, node

    def workloads(self) -> list[Manifest]:
        if self.where is DeploymentShape.ONE_NODE:
            return [self._one_node()]
        each = self.where is DeploymentShape.PER_NODE
        found = [self._every_node(sidecars=each)]
        if not each and _has_controller(self.external, self.facts):
            found.insert(0, self._controller())
        return found

    def _controller(self) -> Manifest:
        assert self.external.controller is not None
        beside = [*self._sidecar_containers(self._controller_sidecars()), self._liveness()]
        containers = [self._driver(self.external.controller, "controller"), *beside]
        spec = self._pod(containers, self.external.controller, {"emptyDir": {}})
        return self._workload(
            "Deployment", "controller", spec, {"replicas": 1, "strategy": {"type": "Recreate"}}
        )

    def _every_node(self, *, sidecars: bool) -> Manifest:
        assert self.external.node is not None
        everything = frozenset(find_flags(self.external, self.facts, self.where))
        beside = self._sidecar_containers(
            everything if sidecars else everything - self._controller_sidecars()
        )
        mode = "all" if sidecars else "node"
        containers = [self._driver(self.external.node, mode), self._registrar(), *beside, self._liveness()]
        spec = self._pod(containers, self.external.node, self._plugin())
        return self._workload("DaemonSet", "node", spec, {})

    def _one_node(self) -> Manifest:
        assert self.external.node is not None
        beside = [
            self._registrar(),
            *self._sidecar_containers(find_flags(self.external, self.facts, self.where)),
            self._liveness(),
        ]
        containers = [self._driver(self.external.node, "all"), *beside]
        spec = self._pod(containers, self.external.node, self._plugin())
        spec["nodeSelector"] = {HOSTNAME_LABEL: self.node}
        return self._workload("StatefulSet", "driver", spec, {"replicas": 1, "serviceName": "driver"})

    def _workload(self, kind: str, name: str, pod: Manifest, more: Manifest) -> Manifest:
        labels = {"app": name, "volplane/driver": self.facts.name}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"selector": {"matchLabels": labels}, "template": template, **more}
        thing = _manifest("apps/v1", kind, name, self.namespace, spec=spec)
        thing["metadata"]["labels"] = labels
        return thing

    def _pod(self, containers: list[Manifest], command: Command, socket: Manifest) -> Manifest:
        volumes = [
            {"name": "socket", **socket},
            {"name": "kubelet", "hostPath": {"path": KUBELET, "type": "Directory"}},
            {
                "name": "registration",
                "hostPath": {"path": f"{KUBELET}/plugins_registry", "type": "Directory"},
            },
            _directory("state", f"{KUBELET}/csi-data/{self.facts.name}"),
            _directory("shared", self.shared),
            {"name": "devices", "hostPath": {"path": "/dev", "type": "Directory"}},
        ]
        hidden = host_paths.hidden_paths(command)
        volumes += [{"name": f"path-{n}", "hostPath": {"path": path}} for n, path in enumerate(hidden)]
        if command.container is not None:
            volumes += [volume for volume, _ in self._image_volumes(command.container)]
        return {
            "serviceAccountName": "driver",
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "terminationGracePeriodSeconds": GRACE,
            "tolerations": [{"operator": "Exists"}],
            "containers": containers,
            "volumes": volumes,
        }

    def _plugin(self) -> Manifest:
        return {"hostPath": {"path": f"{KUBELET}/plugins/{self.facts.name}", "type": "DirectoryOrCreate"}}

    def _driver(self, command: Command, mode: str) -> Manifest:
        fields = [_from_field(name, path) for name, path in FIELDS.items()]
        fixed = {**PATHS, MODE: mode}
        own = {name: for_manifest(value) for name, value in command.env.items()}
        # The author's come last, also those with our names: a variable may refer to earlier ones only.
        values = {n: v for n, v in fixed.items() if n not in own} | own
        env = [*fields, *({"name": n, "value": v} for n, v in values.items())]
        mounts = [
            {"name": "socket", "mountPath": "/csi"},
            {"name": "kubelet", "mountPath": KUBELET, "mountPropagation": "Bidirectional"},
            {"name": "state", "mountPath": STATE},
            {"name": "shared", "mountPath": SHARED},
            {"name": "devices", "mountPath": "/dev"},
        ]
        hidden = host_paths.hidden_paths(command)
        mounts += [{"name": f"path-{n}", "mountPath": path} for n, path in enumerate(hidden)]
        words = [for_manifest(word) for word in command.argv]
        if (container := command.container) is not None:
            authors = [mount for _, mount in self._image_volumes(container)]
            taken = {mount["mountPath"] for mount in authors}
            mounts = [mount for mount in mounts if mount["mountPath"] not in taken] + authors
            entrypoint = [for_manifest(word) for word in container.entrypoint]
            start: Manifest = {"image": container.image, "args": words}
            start |= {"command": entrypoint} if entrypoint else {}
        else:
            start = {
                "image": f"localhost/{self.facts.name.lower()}",
                "command": words,
                "workingDir": command.directory,
            }
        return {
            "name": "driver",
            **start,
            "env": [e for e in env if e["name"] not in own or "value" in e],
            "envFrom": [{"secretRef": {"name": SECRET}}] if self.external.environment else [],
            "livenessProbe": LIVENESS,
            "securityContext": {"privileged": True},
            "volumeMounts": mounts,
        }

    def _image_volumes(self, container: ImageCommand) -> list[tuple[Manifest, Manifest]]:
        """What the container of the author's manifests mounts: a volume and its mount each."""
        places = [
            (path, f"{KUBELET}/csi-data/{self.facts.name}/{name}", "DirectoryOrCreate")
            for path, name in container.directories.items()
        ]
        places += [(path, source, "") for path, source in container.host_paths.items()]
        return [
            (
                {"name": f"own-{number}", "hostPath": {"path": source, "type": kind}},
                {"name": f"own-{number}", "mountPath": path},
            )
            for number, (path, source, kind) in enumerate(places)
        ]

    def _registrar(self) -> Manifest:
        path = f"{KUBELET}/plugins/{self.facts.name}/csi.sock"
        flags = [f"--kubelet-registration-path={path}", "--plugin-registration-path=/registration"]
        made = self._sidecar(
            "node-driver-registrar", "volplane/csi-node-driver-registrar", "registrar", flags
        )
        made["volumeMounts"].append({"name": "registration", "mountPath": "/registration"})
        return made

    def _liveness(self) -> Manifest:
        flags = [f"--health-port={HEALTH}"]
        return self._sidecar("liveness-probe", "volplane/livenessprobe", "liveness", flags)

    def _controller_sidecars(self) -> frozenset[str]:
        """The sidecars next to the controller. Only the node service reports that nodes expand volumes."""
        apart = self.facts.expands_on_nodes and not self.external.is_single_program
        found = frozenset(find_flags(self.external, self.facts, self.where))
        return found - ({"resizer"} if apart else set())

    def _sidecar_containers(self, wanted: Collection[str]) -> list[Manifest]:
        found = {n: f for n, f in find_flags(self.external, self.facts, self.where).items() if n in wanted}
        return [self._sidecar(f"csi-{n}", f"volplane/csi-{n}", n, flags) for n, flags in found.items()]

    def _sidecar(self, name: str, image: str, role: str, flags: list[str]) -> Manifest:
        fields = {
            "POD_NAME": "metadata.name",
            "NAMESPACE": "metadata.namespace",
            "NODE_NAME": "spec.nodeName",
        }
        return {
            "name": name,
            "image": image,
            "args": [f"--csi-address={SOCKET}", *flags, *self.external.sidecars.get(role, ())],
            "env": [_from_field(name, path) for name, path in fields.items()],
            "volumeMounts": [{"name": "socket", "mountPath": "/csi"}],
        }


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _directory(name: str, path: str) -> Manifest:
    return {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}


def _manifest(api_version: str, kind: str, name: str, namespace: str = "", **fields: Any) -> Manifest:
    metadata: Manifest = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
