"""Pods and workloads: defaults, admission, validation, updates."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import structs

from volplane.api import kinds
from volplane.api.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from volplane.api.core import Pod, ServiceAccount
from volplane.api.errors import Forbidden
from volplane.api.meta import Resource
from volplane.api.scheduling import PriorityClass
from volplane.apiserver import strategies
from volplane.apiserver.defaults import pull_policy
from volplane.apiserver.strategies.pods import PodStrategy, qos_class
from volplane.apiserver.strategies.pods.admission import TolerationSeconds
from volplane.apiserver.strategies.pods.stop_signals import STOP_SIGNALS
from volplane.apiserver.strategy import ApiCall, RequestUser
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.container_config import make_signal

KIND = kinds.of(Pod)
RULES = strategies.of(KIND)


class ListReader:
    def __init__(self, *objects: Resource) -> None:
        self.objects = objects

    async def get(self, type: Any, name: str, namespace: str = "") -> Any:
        return next((o for o in self.objects if isinstance(o, type) and o.name == name), None)

    async def list(self, type: Any, namespace: str = "") -> Sequence[Any]:
        return [o for o in self.objects if isinstance(o, type)]


def account(name: str = "default", **more: Any) -> ServiceAccount:
    return msgspec.convert({"metadata": {"name": name, "namespace": "default"}, **more}, ServiceAccount)


def call(*others: Resource, subresource: str = "") -> ApiCall:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return ApiCall("create", KIND, RequestUser("u"), ListReader(*others), now, "default", "p", subresource)


def pod(*containers: Any, **spec: Any) -> Pod:
    given = containers or ({"name": "c", "image": "nginx"},)
    data = {"metadata": {"name": "p"}, "spec": {"containers": list(given), **spec}}
    made: Pod = RULES.defaults(msgspec.convert(data, Pod))
    return made


def wire(obj: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(obj))


# Defaults


def test_the_divisor_is_always_written() -> None:
    """Otherwise a template that kubectl has read and put back would be another one."""
    limit = {"resource": "limits.cpu"}
    made = pod(
        {"name": "c", "image": "i", "env": [{"name": "CPU", "valueFrom": {"resourceFieldRef": limit}}]},
        volumes=[{"name": "v", "downwardAPI": {"items": [{"path": "cpu", "resourceFieldRef": limit}]}}],
    ).spec
    [variable], [volume] = made.containers[0].env, made.volumes
    assert wire(variable.value_from) == {"resourceFieldRef": {**limit, "divisor": "0"}}
    assert wire(volume.downward_api)["items"][0]["resourceFieldRef"] == {**limit, "divisor": "0"}


def test_every_stop_signal_of_the_api_is_one_of_a_runtime() -> None:
    assert len(STOP_SIGNALS["linux"]) == 65
    assert all(make_signal(name) for name in STOP_SIGNALS["linux"])
    for name in STOP_SIGNALS["linux"]:
        made = pod({"name": "c", "image": "i", "lifecycle": {"stopSignal": name}}, os={"name": "linux"})
        assert problems(made) == []
    assert make_signal("SIGNONE") == make_signal("") == v1.RUNTIME_DEFAULT


def test_a_template_may_leave_the_image_of_a_volume_open() -> None:
    volumes = [{"name": "v", "image": {"reference": "", "pullPolicy": "Always"}}]
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes},
    }
    assert problems(workload(Deployment, template=template)) == []


def test_the_defaults_of_a_pod() -> None:
    probe = {"httpGet": {"port": 80}}
    made = wire(
        pod(
            {"name": "c", "image": "nginx", "ports": [{"containerPort": 80}], "livenessProbe": probe},
            volumes=[
                {"name": "a"},
                {"name": "b", "secret": {"secretName": "s"}},
                {"name": "c", "hostPath": {"path": "/x"}},
                {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
                {"name": "e", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "x"}}]}},
            ],
        ).spec
    )
    assert made == {
        "volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "secret": {"secretName": "s", "defaultMode": 420}},
            {"name": "c", "hostPath": {"path": "/x", "type": ""}},
            {
                "name": "d",
                "projected": {
                    "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}],
                    "defaultMode": 420,
                },
            },
            {
                "name": "e",
                "downwardAPI": {
                    "items": [{"path": "n", "fieldRef": {"apiVersion": "v1", "fieldPath": "x"}}],
                    "defaultMode": 420,
                },
            },
        ],
        "containers": [
            {
                "name": "c",
                "image": "nginx",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "livenessProbe": {
                    "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
                    "timeoutSeconds": 1,
                    "periodSeconds": 10,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                },
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
    }


def test_defaults_change_nothing_the_second_time() -> None:
    made = pod({"name": "c", "image": "x:1"}, volumes=[{"name": "a"}])
    assert RULES.defaults(made) is made


def test_what_was_given_stays() -> None:
    made = pod(terminationGracePeriodSeconds=0, enableServiceLinks=False, serviceAccount="old").spec
    assert made.termination_grace_period_seconds == 0
    assert made.enable_service_links is False
    assert made.service_account_name == "old"


IMAGES = {
    "nginx": "Always",
    "nginx:latest": "Always",
    "nginx:1.25": "IfNotPresent",
    "registry:5000/nginx": "Always",
    "registry:5000/nginx:1": "IfNotPresent",
    "nginx@sha256:abc": "IfNotPresent",
    "": "IfNotPresent",
}


@pytest.mark.parametrize("image", IMAGES)
def test_the_pull_policy_follows_the_tag(image: str) -> None:
    assert pull_policy(image) == IMAGES[image]


def test_limits_become_requests() -> None:
    limits = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}
    [container] = pod({"name": "c", "image": "x", "resources": limits}).spec.containers
    assert container.resources.requests == {"cpu": "500m", "memory": "1Gi"}


def test_ports_on_the_host_network() -> None:
    made = pod({"name": "c", "image": "x", "ports": [{"containerPort": 80}]}, hostNetwork=True)
    assert made.spec.containers[0].ports[0].host_port == 80


QOS = [
    ({}, "BestEffort"),
    ({"requests": {"cpu": "1"}}, "Burstable"),
    ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
    ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ({"requests": {"ephemeral-storage": "1Gi"}}, "BestEffort"),
]


@pytest.mark.parametrize(("resources", "expected"), QOS)
def test_the_qos_class(resources: Any, expected: str) -> None:
    made = pod({"name": "c", "image": "x", "resources": resources})
    assert qos_class(made.spec) == expected
    assert RULES.prepare_create(call(), made).status.qos_class == expected


# Admission


async def test_a_pod_gets_its_account_and_token() -> None:
    made = await RULES.admit_create(call(account()), pod({"name": "c", "image": "x"}))
    assert (made.spec.service_account_name, made.spec.service_account) == ("default", "default")
    [volume] = made.spec.volumes
    assert volume.name.startswith("kube-api-access-")
    assert wire(volume.projected) == {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [
                        {
                            "path": "namespace",
                            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                        }
                    ]
                }
            },
        ],
        "defaultMode": 420,
    }
    [mount] = made.spec.containers[0].volume_mounts
    assert wire(mount) == {
        "name": volume.name,
        "readOnly": True,
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }


@pytest.mark.parametrize(
    ("given", "held", "mounted"),
    [
        ({}, {}, True),
        ({"automountServiceAccountToken": False}, {}, False),
        ({}, {"automountServiceAccountToken": False}, False),
        ({"automountServiceAccountToken": True}, {"automountServiceAccountToken": False}, True),
    ],
)
async def test_the_account_and_the_pod_decide_whether_the_token_is_mounted(
    given: Any, held: Any, mounted: bool
) -> None:
    made = await RULES.admit_create(call(account(**held)), pod(**given))
    assert bool(made.spec.volumes) is mounted


async def test_a_mount_at_the_same_path_replaces_the_token() -> None:
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    own = {"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": place}]}
    made = await RULES.admit_create(call(account()), pod(own, volumes=[{"name": "v"}]))
    assert [v.name for v in made.spec.volumes] == ["v"]


@pytest.mark.virtual
async def test_an_unknown_account_is_refused() -> None:
    for name in ("robot", "default"):
        with pytest.raises(Forbidden) as caught:
            await RULES.admit_create(call(), pod(serviceAccountName=name))
        assert caught.value.message == (
            f'pods "p" is forbidden: error looking up service account default/{name}: '
            f'serviceaccount "{name}" not found'
        )


async def test_the_accounts_pull_secrets() -> None:
    held = account(imagePullSecrets=[{"name": "s"}])
    made = await RULES.admit_create(call(held), pod())
    assert [s.name for s in made.spec.image_pull_secrets] == ["s"]


async def test_default_tolerations_for_failing_nodes() -> None:
    made = await RULES.admit_create(call(account()), pod())
    assert [(t.key, t.toleration_seconds) for t in made.spec.tolerations] == [
        ("node.kubernetes.io/not-ready", 300),
        ("node.kubernetes.io/unreachable", 300),
    ]
    everything = pod(tolerations=[{"operator": "Exists"}])
    assert len((await RULES.admit_create(call(account()), everything)).spec.tolerations) == 1


async def test_the_server_decides_how_long_pods_stay_on_failing_nodes() -> None:
    rules = PodStrategy(RULES.kind)
    rules.toleration_seconds = TolerationSeconds(not_ready=2, unreachable=0)
    made = await rules.admit_create(call(account()), pod())
    assert [t.toleration_seconds for t in made.spec.tolerations] == [2, 0]
    bare = structs.replace(made, spec=structs.replace(made.spec, tolerations=()))
    again = await rules.admit_update(call(account()), made, bare)
    assert [t.toleration_seconds for t in again.spec.tolerations] == [2, 0]


def priority(name: str, value: int, **more: Any) -> PriorityClass:
    return msgspec.convert({"metadata": {"name": name}, "value": value, **more}, PriorityClass)


@pytest.mark.parametrize(
    ("given", "classes", "expected"),
    [
        ("", (), ("", 0)),
        ("", (priority("usual", 5, globalDefault=True),), ("usual", 5)),
        ("high", (priority("high", 9),), ("high", 9)),
        ("system-node-critical", (), ("system-node-critical", 2000001000)),
    ],
)
async def test_priority(given: str, classes: Any, expected: tuple[str, int]) -> None:
    made = await RULES.admit_create(call(account(), *classes), pod(priorityClassName=given))
    assert (made.spec.priority_class_name, made.spec.priority) == expected
    assert made.spec.preemption_policy == "PreemptLowerPriority"


async def test_priorities_that_are_refused() -> None:
    with pytest.raises(Forbidden, match="no PriorityClass with name nope was found"):
        await RULES.admit_create(call(account()), pod(priorityClassName="nope"))
    with pytest.raises(Forbidden, match=r"the integer value of priority \(7\) must not be provided"):
        await RULES.admit_create(call(account()), pod(priority=7))


# Validation


def c(**more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "x", **more}


SPECS: dict[str, tuple[Pod, list[str]]] = {
    "fine": (pod(), []),
    "no containers": (
        structs.replace(pod(), spec=structs.replace(pod().spec, containers=())),
        ["spec.containers: Required value"],
    ),
    "no name, no image": (
        pod({"name": ""}),
        ["spec.containers[0].name: Required value", "spec.containers[0].image: Required value"],
    ),
    "two of a name": (pod(c(), c()), ['spec.containers[1].name: Duplicate value: "c"']),
    "an init container of the same name": (
        pod(initContainers=[c()]),
        ['spec.initContainers[0].name: Duplicate value: "c"'],
    ),
    "a probe on an init container": (
        pod(initContainers=[{"name": "i", "image": "x", "livenessProbe": {"exec": {"command": ["a"]}}}]),
        [
            "spec.initContainers[0].livenessProbe: Forbidden: "
            "may not be set for init containers without restartPolicy=Always"
        ],
    ),
    "a mount without volume": (
        pod(c(volumeMounts=[{"name": "v", "mountPath": "/a"}])),
        ['spec.containers[0].volumeMounts[0].name: Not found: "v"'],
    ),
    "two mounts in one place": (
        pod(c(volumeMounts=[{"name": "v", "mountPath": "/a"}] * 2), volumes=[{"name": "v"}]),
        ['spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/a": must be unique'],
    ),
    "a mount that climbs": (
        pod(c(volumeMounts=[{"name": "v", "mountPath": "/a", "subPath": "../b"}]), volumes=[{"name": "v"}]),
        ["spec.containers[0].volumeMounts.subPath: Invalid value: \"../b\": must not contain '..'"],
    ),
    "propagation without privilege": (
        pod(
            c(volumeMounts=[{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}]),
            volumes=[{"name": "v"}],
        ),
        [
            "spec.containers[0].volumeMounts.mountPropagation: Forbidden: "
            "Bidirectional mount propagation is available only to privileged containers"
        ],
    ),
    "a device that is no claim": (
        pod(c(volumeDevices=[{"name": "v", "devicePath": "/dev/x"}]), volumes=[{"name": "v"}]),
        [
            'spec.containers[0].volumeDevices[0].name: Invalid value: "v": '
            "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
        ],
    ),
    "a volume's name": (
        pod(volumes=[{"name": ""}]),
        ["spec.volumes[0].name: Required value"],
    ),
    "two volumes of a name": (
        pod(volumes=[{"name": "v"}, {"name": "v"}]),
        ['spec.volumes[1].name: Duplicate value: "v"'],
    ),
    "two sources": (
        pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
        ["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
    ),
    "flexVolume options": (
        pod(volumes=[{"name": "v", "flexVolume": {"driver": "d", "options": {"X.Kubernetes.io/a": "b"}}}]),
        [
            'spec.volumes[0].flexVolume.options[X.Kubernetes.io/a]: Invalid value: "X.Kubernetes.io/a": '
            "kubernetes.io and k8s.io namespaces are reserved"
        ],
    ),
    "an image volume without an image": (
        pod(volumes=[{"name": "v", "image": {"reference": ""}}]),
        ["spec.volumes[0].image.reference: Required value"],
    ),
    "a pull policy of an image volume": (
        pod(volumes=[{"name": "v", "image": {"reference": "a", "pullPolicy": "Sometimes"}}]),
        [
            'spec.volumes[0].image.pullPolicy: Unsupported value: "Sometimes": '
            'supported values: "Always", "IfNotPresent", "Never"'
        ],
    ),
    "a stop signal without an operating system": (
        pod(c(lifecycle={"stopSignal": "SIGUSR1"})),
        [
            "spec.containers[0].lifecycle.stopSignal: Forbidden: "
            "may not be set for containers with empty `spec.os.name`"
        ],
    ),
    "a stop signal of another operating system": (
        pod(c(lifecycle={"stopSignal": "SIGUSR1"}), os={"name": "windows"}),
        [
            'spec.containers[0].lifecycle.stopSignal: Unsupported value: "SIGUSR1": '
            'supported values: "SIGKILL", "SIGTERM"'
        ],
    ),
    "no claim name": (
        pod(volumes=[{"name": "v", "persistentVolumeClaim": {}}]),
        ["spec.volumes[0].persistentVolumeClaim.claimName: Required value"],
    ),
    "the claim of an ephemeral volume": (
        pod(
            volumes=[
                {
                    "name": "v",
                    "ephemeral": {
                        "volumeClaimTemplate": {
                            "spec": {
                                "accessModes": ["ReadWriteOnce"],
                                "resources": {"requests": {"storage": "1Gi"}},
                            }
                        }
                    },
                },
                {"name": "w", "persistentVolumeClaim": {"claimName": "p-v"}},
            ]
        ),
        [
            'spec.volumes[1].persistentVolumeClaim.claimName: Invalid value: "p-v": '
            "must not reference a PVC that gets created for an ephemeral volume"
        ],
    ),
    "only declining SELinux mounts can be said": (
        pod(securityContext={"seLinuxChangePolicy": "MountOption"}),
        [
            'spec.securityContext.seLinuxChangePolicy: Unsupported value: "MountOption": '
            'supported values: "Recursive"'
        ],
    ),
    "restart policy": (
        pod(restartPolicy="Sometimes"),
        [
            'spec.restartPolicy: Unsupported value: "Sometimes": '
            'supported values: "Always", "OnFailure", "Never"'
        ],
    ),
    "ports": (
        pod(c(ports=[{"containerPort": 70000}, {"name": "UPPER", "containerPort": 1}])),
        [
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: "
            "must be between 1 and 65535, inclusive",
            'spec.containers[0].ports[1].name: Invalid value: "UPPER": '
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ],
    ),
    "requests over limits": (
        pod(c(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})),
        [
            'spec.containers[0].resources.requests: Invalid value: "2": '
            "must be less than or equal to cpu limit of 1"
        ],
    ),
    "an unknown resource": (
        pod(c(resources={"requests": {"cups": "2"}})),
        [
            'spec.containers[0].resources.requests[cups]: Invalid value: "cups": '
            "must be a standard resource for containers"
        ],
    ),
    "two handlers": (
        pod(c(readinessProbe={"exec": {"command": ["a"]}, "tcpSocket": {"port": 80}})),
        ["spec.containers[0].readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
    ),
    "no handler": (
        pod(c(livenessProbe={})),
        ["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
    ),
    "a variable with two values": (
        pod(c(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}])),
        [
            'spec.containers[0].env[0].valueFrom: Invalid value: "": '
            "may not be specified when `value` is not empty"
        ],
    ),
    "a toleration for nothing": (
        pod(tolerations=[{"operator": "Equal"}]),
        [
            'spec.tolerations[0].operator: Invalid value: "Equal": '
            "operator must be Exists when `key` is empty, "
            'which means "match all values and all keys"'
        ],
    ),
    "a bad node selector": (
        pod(nodeSelector={"a b": "x"}),
        [
            'spec.nodeSelector: Invalid value: "a b": name part must consist of alphanumeric characters, '
            "'-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or "
            "'my.name',  or '123-abc', regex used for validation is "
            "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        ],
    ),
}


@pytest.mark.parametrize("situation", SPECS)
def test_validation_of_pods(situation: str) -> None:
    made, expected = SPECS[situation]
    assert [str(c) for c in RULES.validate_create(call(), made)] == expected


def changes(old: Pod, new: Pod) -> list[str]:
    return [str(c).partition("\n")[0] for c in RULES.validate_update(call(), old, new)]


FROZEN = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` "
    "(only additions to existing tolerations),`spec.terminationGracePeriodSeconds` "
    "(allow it to be set to 1 if it was previously negative)"
)
EXISTS = {"key": "a", "operator": "Exists", "effect": "NoExecute"}
UPDATES: dict[str, tuple[Pod, Pod, list[str]]] = {
    "nothing": (pod(), pod(), []),
    "the image": (pod(c(imagePullPolicy="Always")), pod(c(image="y", imagePullPolicy="Always")), []),
    "the command": (pod(c()), pod(c(command=["a"])), [FROZEN]),
    "the node": (pod(), pod(nodeName="n"), [FROZEN]),
    "one more container": (
        pod(c()),
        pod(c(), {"name": "d", "image": "x"}),
        ["spec.containers: Forbidden: pod updates may not add or remove containers"],
    ),
    "one more toleration": (pod(), pod(tolerations=[EXISTS]), []),
    "more patience": (
        pod(tolerations=[{**EXISTS, "tolerationSeconds": 1}]),
        pod(tolerations=[{**EXISTS, "tolerationSeconds": 2}]),
        [],
    ),
    "one toleration less": (
        pod(tolerations=[EXISTS]),
        pod(),
        ["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"],
    ),
    "a deadline": (pod(), pod(activeDeadlineSeconds=5), []),
    "a later deadline": (
        pod(activeDeadlineSeconds=5),
        pod(activeDeadlineSeconds=6),
        ["spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"],
    ),
    "no deadline any more": (
        pod(activeDeadlineSeconds=5),
        pod(),
        [
            "spec.activeDeadlineSeconds: Invalid value: null: "
            "must not update from a positive integer to nil value"
        ],
    ),
    "a gate opens": (pod(schedulingGates=[{"name": "a"}]), pod(), []),
    "a gate closes": (
        pod(),
        pod(schedulingGates=[{"name": "a"}]),
        [
            "spec.schedulingGates[0].name: Forbidden: "
            "only deletion is allowed, but found new scheduling gate 'a'"
        ],
    ),
}


@pytest.mark.parametrize("situation", UPDATES)
def test_updates_of_pods(situation: str) -> None:
    old, new, expected = UPDATES[situation]
    assert changes(old, new) == expected


def test_a_status_update_keeps_owners_and_qos_class() -> None:
    old = RULES.prepare_create(call(), pod())
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
    meta = msgspec.convert(
        {"name": "p", "ownerReferences": [owner], "labels": {"a": "b"}}, type(old.metadata)
    )
    report = structs.replace(
        old,
        metadata=meta,
        spec=structs.replace(old.spec, node_name="elsewhere"),
        status=structs.replace(old.status, phase="Running", qos_class="Guaranteed"),
    )
    made = RULES.prepare_status(call(subresource="status"), old, report)
    assert made.spec == old.spec
    assert made.metadata.owner_references == ()
    assert made.metadata.labels == {"a": "b"}
    assert (made.status.phase, made.status.qos_class) == ("Running", "BestEffort")


def test_a_terminated_container_stays_terminated() -> None:
    def status(**state: Any) -> Any:
        data = {"containerStatuses": [{"name": "c", "state": state}]}
        return msgspec.convert(data, type(pod().status))

    old = structs.replace(pod(restartPolicy="Never"), status=status(terminated={"exitCode": 0}))
    new = structs.replace(old, status=status(running={}))
    assert [str(c) for c in RULES.validate_status(call(), old, new)] == [
        "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
    ]
    assert list(RULES.validate_status(call(), structs.replace(old, spec=pod().spec), new)) == []


# Workloads


def workload(of: type[Any], **spec: Any) -> Any:
    base = {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [c()]}},
    }
    made = msgspec.convert({"metadata": {"name": "w"}, "spec": {**base, **spec}}, of)
    return strategies.of(kinds.of(of)).defaults(made)


def problems(obj: Any, old: Any = None) -> list[str]:
    rules = strategies.of(kinds.of(type(obj)))
    found = rules.validate_create(call(), obj) if old is None else rules.validate_update(call(), old, obj)
    return [str(c) for c in found]


def test_workload_defaults() -> None:
    deployment = workload(Deployment).spec
    assert (deployment.replicas, deployment.revision_history_limit) == (1, 10)
    assert deployment.progress_deadline_seconds == 600
    assert wire(deployment.strategy) == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert deployment.template.spec.restart_policy == "Always"
    assert deployment.template.spec.enable_service_links is None
    assert workload(Deployment, strategy={"type": "Recreate"}).spec.strategy.rolling_update is None
    daemons = workload(DaemonSet).spec.update_strategy
    assert wire(daemons) == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }
    stateful = workload(StatefulSet, serviceName="s").spec
    assert wire(stateful.persistent_volume_claim_retention_policy) == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    assert (stateful.pod_management_policy, stateful.update_strategy.rolling_update.partition) == (
        "OrderedReady",
        0,
    )
    for of in (Deployment, ReplicaSet, DaemonSet, StatefulSet):
        made = workload(of)
        assert strategies.of(kinds.of(of)).defaults(made) == made
        assert problems(made) == []


def test_validation_of_workloads() -> None:
    assert problems(workload(Deployment, selector=None)) == ["spec.selector: Required value"]
    assert problems(workload(Deployment, selector={"matchLabels": {"a": "c"}})) == [
        'spec.template.metadata.labels: Invalid value: {"a":"b"}: `selector` does not match template `labels`'
    ]
    assert problems(workload(Deployment, replicas=-1)) == [
        "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    ]
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [c()], "restartPolicy": "Never", "activeDeadlineSeconds": 1},
    }
    assert problems(workload(ReplicaSet, template=template)) == [
        'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"',
        "spec.template.spec.activeDeadlineSeconds: Forbidden: "
        "activeDeadlineSeconds in ReplicaSet is not Supported",
    ]
    zero = {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}
    assert problems(workload(Deployment, strategy=zero)) == [
        "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"
    ]
    assert problems(workload(DaemonSet, updateStrategy=zero)) == [
        "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"
    ]


def test_a_selector_never_changes() -> None:
    old = workload(Deployment)
    label = {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [c()]}}
    new = workload(Deployment, selector={"matchLabels": {"x": "y"}}, template=label)
    assert problems(new, old) == [
        'spec.selector: Invalid value: {"matchLabels":{"x":"y"}}: field is immutable'
    ]


def test_claims_of_a_stateful_set_can_be_mounted() -> None:
    mounts = c(volumeMounts=[{"name": "data", "mountPath": "/d"}])
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [mounts]}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"metadata": {"name": "data"}, "spec": spec}]
    made = workload(StatefulSet, template=template, volumeClaimTemplates=claims)
    assert problems(made) == []
    bare = workload(StatefulSet, template=template, volumeClaimTemplates=[{"metadata": {"name": "data"}}])
    assert problems(bare) == [
        "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required",
        "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
    ]
    moved = workload(StatefulSet, template=template, volumeClaimTemplates=claims, serviceName="other")
    [found] = problems(moved, made)
    assert found.startswith("spec: Forbidden: updates to statefulset spec for fields other than 'replicas'")
