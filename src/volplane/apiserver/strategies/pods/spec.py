"""A pod's spec as a whole. Workloads validate their templates with it too."""

from __future__ import annotations

from volplane.api.core import Affinity, HostAlias, NodeAffinity, PodSpec, PodTemplateSpec, Toleration
from volplane.api.errors import Cause, duplicate, forbidden, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods import security
from volplane.apiserver.strategies.pods.containers import containers, init_containers
from volplane.apiserver.strategies.pods.ephemeral import ephemeral_containers
from volplane.apiserver.strategies.pods.volumes import volumes

RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
PREEMPTION = ("Never", "PreemptLowerPriority")


def pod_spec(path: str, spec: PodSpec, *, pod: str = "", is_pod: bool = True) -> list[Cause]:
    """`pod` is the pod's name where it is known; `is_pod` is off for templates."""
    usable, wrong = volumes(f"{path}.volumes", spec.volumes, pod)
    if spec.termination_grace_period_seconds is None:
        wrong.append(required_value(f"{path}.terminationGracePeriodSeconds"))
    wrong += containers(f"{path}.containers", spec.containers, usable)
    wrong += init_containers(f"{path}.initContainers", spec.init_containers, spec.containers, usable)
    wrong += ephemeral_containers(f"{path}.ephemeralContainers", spec, usable)
    if spec.host_network:
        wrong += _host_network(path, spec, is_pod)
    wrong += checks.one_of(f"{path}.restartPolicy", spec.restart_policy, RESTART_POLICIES)
    wrong += checks.one_of(f"{path}.dnsPolicy", spec.dns_policy, DNS_POLICIES)
    wrong += checks.labels(f"{path}.nodeSelector", spec.node_selector)
    wrong += security.validate(path, spec)
    wrong += _affinity(f"{path}.affinity", spec.affinity)
    wrong += tolerations(f"{path}.tolerations", spec.tolerations)
    wrong += _topology_spread(f"{path}.topologySpreadConstraints", spec)
    wrong += _host_aliases(f"{path}.hostAliases", spec.host_aliases)
    return wrong + _names(path, spec) + _gates(f"{path}.schedulingGates", spec)


def template(path: str, obj: PodTemplateSpec) -> list[Cause]:
    wrong = checks.labels(f"{path}.labels", obj.metadata.labels)
    for key in obj.metadata.annotations:
        wrong += checks.qualified_name(f"{path}.annotations", key.lower())
    wrong += pod_spec(f"{path}.spec", obj.spec, is_pod=False)
    if obj.spec.ephemeral_containers:
        told = "ephemeral containers not allowed in pod template"
        wrong.append(forbidden(f"{path}.spec.ephemeralContainers", told))
    return wrong


def _names(path: str, spec: PodSpec) -> list[Cause]:
    wrong: list[Cause] = []
    if spec.service_account_name:
        wrong += checks.subdomain(f"{path}.serviceAccountName", spec.service_account_name)
    if spec.node_name:
        wrong += checks.subdomain(f"{path}.nodeName", spec.node_name)
    if spec.active_deadline_seconds is not None:
        here = f"{path}.activeDeadlineSeconds"
        wrong += checks.between(here, spec.active_deadline_seconds, 1, checks.MAX_INT32)
    if spec.hostname:
        wrong += checks.label(f"{path}.hostname", spec.hostname)
    if spec.subdomain:
        wrong += checks.label(f"{path}.subdomain", spec.subdomain)
    if spec.priority_class_name:
        wrong += checks.subdomain(f"{path}.priorityClassName", spec.priority_class_name)
    if spec.runtime_class_name is not None:
        wrong += checks.subdomain(f"{path}.runtimeClassName", spec.runtime_class_name)
    if spec.preemption_policy is not None:
        wrong += checks.one_of(f"{path}.preemptionPolicy", spec.preemption_policy, PREEMPTION)
    return wrong


def _host_network(path: str, spec: PodSpec, is_pod: bool) -> list[Cause]:
    told = "must match `containerPort` when `hostNetwork` is true"
    return [
        invalid(f"{path}.containers[{at}].ports[{index}].hostPort", port.host_port, told)
        for at, container in enumerate(spec.containers)
        for index, port in enumerate(container.ports)
        if (is_pod or port.host_port) and port.host_port != port.container_port
    ]


def _host_aliases(path: str, aliases: tuple[HostAlias, ...]) -> list[Cause]:
    """They are written into /etc/hosts as they are: a line break or a blank would make lines of their own."""
    wrong: list[Cause] = []
    for at, alias in enumerate(aliases):
        wrong += checks.ip(f"{path}[{at}].ip", alias.ip)
        for index, name in enumerate(alias.hostnames):
            wrong += checks.subdomain(f"{path}[{at}].hostnames[{index}]", name)
    return wrong


def _affinity(path: str, affinity: Affinity | None) -> list[Cause]:
    if affinity is None:
        return []
    wrong = _node_affinity(f"{path}.nodeAffinity", affinity.node_affinity)
    for word, pods in (
        ("podAffinity", affinity.pod_affinity),
        ("podAntiAffinity", affinity.pod_anti_affinity),
    ):
        for at, term in enumerate(pods.required_during_scheduling_ignored_during_execution if pods else ()):
            here = f"{path}.{word}.requiredDuringSchedulingIgnoredDuringExecution[{at}]"
            wrong += checks.label_selector(f"{here}.labelSelector", term.label_selector)
            if not term.topology_key:
                wrong.append(required_value(f"{here}.topologyKey", "can not be empty"))
    return wrong


def _node_affinity(path: str, affinity: NodeAffinity | None) -> list[Cause]:
    if affinity is None:
        return []
    wrong: list[Cause] = []
    needed = affinity.required_during_scheduling_ignored_during_execution
    if needed is not None:
        wrong += checks.node_selector(f"{path}.requiredDuringSchedulingIgnoredDuringExecution", needed)
    for at, term in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        here = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{at}]"
        if not 1 <= term.weight <= 100:
            wrong.append(invalid(f"{here}.weight", term.weight, "must be in the range 1-100"))
        wrong += checks.node_term(f"{here}.preference", term.preference)
    return wrong


def tolerations(path: str, given: tuple[Toleration, ...]) -> list[Cause]:
    wrong: list[Cause] = []
    for at, toleration in enumerate(given):
        wrong += _toleration(f"{path}[{at}]", toleration)
    return wrong


def _toleration(path: str, toleration: Toleration) -> list[Cause]:
    wrong = checks.qualified_name(f"{path}.key", toleration.key) if toleration.key else []
    operator = f"{path}.operator"
    if not toleration.key and toleration.operator != "Exists":
        told = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        wrong.append(invalid(operator, toleration.operator, told))
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        told = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        wrong.append(invalid(f"{path}.effect", toleration.effect, told))
    if toleration.operator in ("", "Equal"):
        words = checks.label_value_problems(toleration.value)
        wrong += [invalid(operator, toleration.value, ";".join(words))] if words else []
    elif toleration.operator == "Exists":
        if toleration.value:
            told = "value must be empty when `operator` is 'Exists'"
            wrong.append(invalid(operator, toleration.value, told))
    else:
        wrong.append(not_supported(operator, toleration.operator, ("Equal", "Exists")))
    if toleration.effect and toleration.effect not in EFFECTS:
        wrong.append(not_supported(f"{path}.effect", toleration.effect, EFFECTS))
    return wrong


def _topology_spread(path: str, spec: PodSpec) -> list[Cause]:
    wrong: list[Cause] = []
    for at, constraint in enumerate(spec.topology_spread_constraints):
        here = f"{path}[{at}]"
        if constraint.max_skew <= 0:
            wrong.append(invalid(f"{here}.maxSkew", constraint.max_skew, "must be greater than zero"))
        if not constraint.topology_key:
            wrong.append(required_value(f"{here}.topologyKey", "can not be empty"))
        choices = ("DoNotSchedule", "ScheduleAnyway")
        if constraint.when_unsatisfiable not in choices:
            wrong.append(not_supported(f"{here}.whenUnsatisfiable", constraint.when_unsatisfiable, choices))
        wrong += checks.label_selector(f"{here}.labelSelector", constraint.label_selector)
    return wrong


def _gates(path: str, spec: PodSpec) -> list[Cause]:
    wrong: list[Cause] = []
    seen: set[str] = set()
    for at, gate in enumerate(spec.scheduling_gates):
        wrong += checks.qualified_name(f"{path}[{at}]", gate.name)
        if gate.name in seen:
            wrong.append(duplicate(f"{path}[{at}]", gate.name))
        seen.add(gate.name)
    return wrong
