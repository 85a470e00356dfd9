"""PodSpec, in pods and in the templates of workloads."""

from __future__ import annotations

from volplane.api.core import Affinity, HostAlias, NodeAffinity, PodSpec, PodTemplateSpec, Toleration
from volplane.api.errors import Causes, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods import security
from volplane.apiserver.strategies.pods.containers import containers, init_containers
from volplane.apiserver.strategies.pods.ephemeral import ephemeral_containers
from volplane.apiserver.strategies.pods.stop_signals import stop_signals
from volplane.apiserver.strategies.pods.volumes import image_references, volumes

RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
PREEMPTION = ("Never", "PreemptLowerPriority")


def pod_spec(path: str, spec: PodSpec, *, pod: str = "", is_pod: bool = True) -> Causes:
    """`pod`: the pod's name, if known. `is_pod`: False for templates."""
    usable, causes = volumes(f"{path}.volumes", spec.volumes, pod)
    yield from causes
    if is_pod:
        yield from image_references(f"{path}.volumes", spec.volumes)
    if spec.termination_grace_period_seconds is None:
        yield required_value(f"{path}.terminationGracePeriodSeconds")
    yield from containers(f"{path}.containers", spec.containers, usable)
    yield from init_containers(f"{path}.initContainers", spec.init_containers, spec.containers, usable)
    yield from ephemeral_containers(f"{path}.ephemeralContainers", spec, usable)
    yield from stop_signals(path, spec)
    if spec.host_network:
        yield from _host_network(path, spec, is_pod)
    yield from checks.one_of(f"{path}.restartPolicy", spec.restart_policy, RESTART_POLICIES)
    yield from checks.one_of(f"{path}.dnsPolicy", spec.dns_policy, DNS_POLICIES)
    yield from checks.labels(f"{path}.nodeSelector", spec.node_selector)
    yield from security.validate(path, spec)
    yield from _affinity(f"{path}.affinity", spec.affinity)
    yield from tolerations(f"{path}.tolerations", spec.tolerations)
    yield from _topology_spread(f"{path}.topologySpreadConstraints", spec)
    yield from _host_aliases(f"{path}.hostAliases", spec.host_aliases)
    yield from _names(path, spec)
    yield from _gates(f"{path}.schedulingGates", spec)


def template(path: str, obj: PodTemplateSpec) -> Causes:
    yield from checks.labels(f"{path}.labels", obj.metadata.labels)
    for key in obj.metadata.annotations:
        yield from checks.qualified_name(f"{path}.annotations", key.lower())
    yield from pod_spec(f"{path}.spec", obj.spec, is_pod=False)
    if obj.spec.ephemeral_containers:
        message = "ephemeral containers not allowed in pod template"
        yield forbidden(f"{path}.spec.ephemeralContainers", message)


def _names(path: str, spec: PodSpec) -> Causes:
    if spec.service_account_name:
        yield from checks.subdomain(f"{path}.serviceAccountName", spec.service_account_name)
    if spec.node_name:
        yield from checks.subdomain(f"{path}.nodeName", spec.node_name)
    if spec.active_deadline_seconds is not None:
        here = f"{path}.activeDeadlineSeconds"
        yield from checks.between(here, spec.active_deadline_seconds, 1, checks.MAX_INT32)
    if spec.hostname:
        yield from checks.label(f"{path}.hostname", spec.hostname)
    if spec.subdomain:
        yield from checks.label(f"{path}.subdomain", spec.subdomain)
    if spec.priority_class_name:
        yield from checks.subdomain(f"{path}.priorityClassName", spec.priority_class_name)
    if spec.runtime_class_name is not None:
        yield from checks.subdomain(f"{path}.runtimeClassName", spec.runtime_class_name)
    if spec.preemption_policy is not None:
        yield from checks.one_of(f"{path}.preemptionPolicy", spec.preemption_policy, PREEMPTION)


def _host_network(path: str, spec: PodSpec, is_pod: bool) -> Causes:
    message = "must match `containerPort` when `hostNetwork` is true"
    yield from [
        invalid(f"{path}.containers[{at}].ports[{index}].hostPort", port.host_port, message)
        for at, container in enumerate(spec.containers)
        for index, port in enumerate(container.ports)
        if (is_pod or port.host_port) and port.host_port != port.container_port
    ]


def _host_aliases(path: str, aliases: tuple[HostAlias, ...]) -> Causes:
    """Addresses and names go into /etc/hosts unchanged: a newline or space would inject entries."""
    for at, alias in enumerate(aliases):
        yield from checks.ip(f"{path}[{at}].ip", alias.ip)
        for index, name in enumerate(alias.hostnames):
            yield from checks.subdomain(f"{path}[{at}].hostnames[{index}]", name)


def _affinity(path: str, affinity: Affinity | None) -> Causes:
    if affinity is None:
        return
    yield from _node_affinity(f"{path}.nodeAffinity", affinity.node_affinity)
    for word, pods in (
        ("podAffinity", affinity.pod_affinity),
        ("podAntiAffinity", affinity.pod_anti_affinity),
    ):
        for at, term in enumerate(pods.required_during_scheduling_ignored_during_execution if pods else ()):
            here = f"{path}.{word}.requiredDuringSchedulingIgnoredDuringExecution[{at}]"
            yield from checks.label_selector(f"{here}.labelSelector", term.label_selector)
            if not term.topology_key:
                yield required_value(f"{here}.topologyKey", "can not be empty")


def _node_affinity(path: str, affinity: NodeAffinity | None) -> Causes:
    if affinity is None:
        return
    needed = affinity.required_during_scheduling_ignored_during_execution
    if needed is not None:
        yield from checks.node_selector(f"{path}.requiredDuringSchedulingIgnoredDuringExecution", needed)
    for at, term in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        here = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{at}]"
        if not 1 <= term.weight <= 100:
            yield invalid(f"{here}.weight", term.weight, "must be in the range 1-100")
        yield from checks.node_term(f"{here}.preference", term.preference)


def tolerations(path: str, given: tuple[Toleration, ...]) -> Causes:
    return checks.each(path, given, _toleration)


def _toleration(path: str, toleration: Toleration) -> Causes:
    if toleration.key:
        yield from checks.qualified_name(f"{path}.key", toleration.key)
    operator = f"{path}.operator"
    if not toleration.key and toleration.operator != "Exists":
        message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(operator, toleration.operator, message)
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        message = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid(f"{path}.effect", toleration.effect, message)
    if toleration.operator in ("", "Equal"):
        words = checks.label_value_problems(toleration.value)
        if words:
            yield invalid(operator, toleration.value, ";".join(words))
    elif toleration.operator == "Exists":
        if toleration.value:
            yield invalid(operator, toleration.value, "value must be empty when `operator` is 'Exists'")
    else:
        yield not_supported(operator, toleration.operator, ("Equal", "Exists"))
    yield from checks.choice(f"{path}.effect", toleration.effect or None, EFFECTS)


def _topology_spread(path: str, spec: PodSpec) -> Causes:
    for at, constraint in enumerate(spec.topology_spread_constraints):
        here = f"{path}[{at}]"
        if constraint.max_skew <= 0:
            yield invalid(f"{here}.maxSkew", constraint.max_skew, "must be greater than zero")
        if not constraint.topology_key:
            yield required_value(f"{here}.topologyKey", "can not be empty")
        choices = ("DoNotSchedule", "ScheduleAnyway")
        if constraint.when_unsatisfiable not in choices:
            yield not_supported(f"{here}.whenUnsatisfiable", constraint.when_unsatisfiable, choices)
        yield from checks.label_selector(f"{here}.labelSelector", constraint.label_selector)


def _gates(path: str, spec: PodSpec) -> Causes:
    seen: set[str] = set()
    for at, gate in enumerate(spec.scheduling_gates):
        yield from checks.qualified_name(f"{path}[{at}]", gate.name)
        yield from checks.not_duplicate(f"{path}[{at}]", gate.name, seen)
