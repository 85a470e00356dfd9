"""A pod's spec as a whole. Workloads validate their templates with it too."""

from __future__ import annotations

from volplane.api.core import Affinity, HostAlias, NodeAffinity, PodSpec, PodTemplateSpec, Toleration
from volplane.api.errors import Cause, forbidden, invalid, not_supported, required_value
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
    usable, causes = volumes(f"{path}.volumes", spec.volumes, pod)
    if spec.termination_grace_period_seconds is None:
        causes.append(required_value(f"{path}.terminationGracePeriodSeconds"))
    causes += containers(f"{path}.containers", spec.containers, usable)
    causes += init_containers(f"{path}.initContainers", spec.init_containers, spec.containers, usable)
    causes += ephemeral_containers(f"{path}.ephemeralContainers", spec, usable)
    if spec.host_network:
        causes += _host_network(path, spec, is_pod)
    causes += checks.one_of(f"{path}.restartPolicy", spec.restart_policy, RESTART_POLICIES)
    causes += checks.one_of(f"{path}.dnsPolicy", spec.dns_policy, DNS_POLICIES)
    causes += checks.labels(f"{path}.nodeSelector", spec.node_selector)
    causes += security.validate(path, spec)
    causes += _affinity(f"{path}.affinity", spec.affinity)
    causes += tolerations(f"{path}.tolerations", spec.tolerations)
    causes += _topology_spread(f"{path}.topologySpreadConstraints", spec)
    causes += _host_aliases(f"{path}.hostAliases", spec.host_aliases)
    return causes + _names(path, spec) + _gates(f"{path}.schedulingGates", spec)


def template(path: str, obj: PodTemplateSpec) -> list[Cause]:
    causes = checks.labels(f"{path}.labels", obj.metadata.labels)
    for key in obj.metadata.annotations:
        causes += checks.qualified_name(f"{path}.annotations", key.lower())
    causes += pod_spec(f"{path}.spec", obj.spec, is_pod=False)
    if obj.spec.ephemeral_containers:
        message = "ephemeral containers not allowed in pod template"
        causes.append(forbidden(f"{path}.spec.ephemeralContainers", message))
    return causes


def _names(path: str, spec: PodSpec) -> list[Cause]:
    causes: list[Cause] = []
    if spec.service_account_name:
        causes += checks.subdomain(f"{path}.serviceAccountName", spec.service_account_name)
    if spec.node_name:
        causes += checks.subdomain(f"{path}.nodeName", spec.node_name)
    if spec.active_deadline_seconds is not None:
        here = f"{path}.activeDeadlineSeconds"
        causes += checks.between(here, spec.active_deadline_seconds, 1, checks.MAX_INT32)
    if spec.hostname:
        causes += checks.label(f"{path}.hostname", spec.hostname)
    if spec.subdomain:
        causes += checks.label(f"{path}.subdomain", spec.subdomain)
    if spec.priority_class_name:
        causes += checks.subdomain(f"{path}.priorityClassName", spec.priority_class_name)
    if spec.runtime_class_name is not None:
        causes += checks.subdomain(f"{path}.runtimeClassName", spec.runtime_class_name)
    if spec.preemption_policy is not None:
        causes += checks.one_of(f"{path}.preemptionPolicy", spec.preemption_policy, PREEMPTION)
    return causes


def _host_network(path: str, spec: PodSpec, is_pod: bool) -> list[Cause]:
    message = "must match `containerPort` when `hostNetwork` is true"
    return [
        invalid(f"{path}.containers[{at}].ports[{index}].hostPort", port.host_port, message)
        for at, container in enumerate(spec.containers)
        for index, port in enumerate(container.ports)
        if (is_pod or port.host_port) and port.host_port != port.container_port
    ]


def _host_aliases(path: str, aliases: tuple[HostAlias, ...]) -> list[Cause]:
    """They are written into /etc/hosts as they are: a line break or a blank would make lines of their own."""
    causes: list[Cause] = []
    for at, alias in enumerate(aliases):
        causes += checks.ip(f"{path}[{at}].ip", alias.ip)
        for index, name in enumerate(alias.hostnames):
            causes += checks.subdomain(f"{path}[{at}].hostnames[{index}]", name)
    return causes


def _affinity(path: str, affinity: Affinity | None) -> list[Cause]:
    if affinity is None:
        return []
    causes = _node_affinity(f"{path}.nodeAffinity", affinity.node_affinity)
    for word, pods in (
        ("podAffinity", affinity.pod_affinity),
        ("podAntiAffinity", affinity.pod_anti_affinity),
    ):
        for at, term in enumerate(pods.required_during_scheduling_ignored_during_execution if pods else ()):
            here = f"{path}.{word}.requiredDuringSchedulingIgnoredDuringExecution[{at}]"
            causes += checks.label_selector(f"{here}.labelSelector", term.label_selector)
            if not term.topology_key:
                causes.append(required_value(f"{here}.topologyKey", "can not be empty"))
    return causes


def _node_affinity(path: str, affinity: NodeAffinity | None) -> list[Cause]:
    if affinity is None:
        return []
    causes: list[Cause] = []
    needed = affinity.required_during_scheduling_ignored_during_execution
    if needed is not None:
        causes += checks.node_selector(f"{path}.requiredDuringSchedulingIgnoredDuringExecution", needed)
    for at, term in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        here = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{at}]"
        if not 1 <= term.weight <= 100:
            causes.append(invalid(f"{here}.weight", term.weight, "must be in the range 1-100"))
        causes += checks.node_term(f"{here}.preference", term.preference)
    return causes


def tolerations(path: str, given: tuple[Toleration, ...]) -> list[Cause]:
    return checks.each(path, given, _toleration)


def _toleration(path: str, toleration: Toleration) -> list[Cause]:
    causes = checks.qualified_name(f"{path}.key", toleration.key) if toleration.key else []
    operator = f"{path}.operator"
    if not toleration.key and toleration.operator != "Exists":
        message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        causes.append(invalid(operator, toleration.operator, message))
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        message = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        causes.append(invalid(f"{path}.effect", toleration.effect, message))
    if toleration.operator in ("", "Equal"):
        words = checks.label_value_problems(toleration.value)
        causes += [invalid(operator, toleration.value, ";".join(words))] if words else []
    elif toleration.operator == "Exists":
        if toleration.value:
            message = "value must be empty when `operator` is 'Exists'"
            causes.append(invalid(operator, toleration.value, message))
    else:
        causes.append(not_supported(operator, toleration.operator, ("Equal", "Exists")))
    causes += checks.choice(f"{path}.effect", toleration.effect or None, EFFECTS)
    return causes


def _topology_spread(path: str, spec: PodSpec) -> list[Cause]:
    causes: list[Cause] = []
    for at, constraint in enumerate(spec.topology_spread_constraints):
        here = f"{path}[{at}]"
        if constraint.max_skew <= 0:
            causes.append(invalid(f"{here}.maxSkew", constraint.max_skew, "must be greater than zero"))
        if not constraint.topology_key:
            causes.append(required_value(f"{here}.topologyKey", "can not be empty"))
        choices = ("DoNotSchedule", "ScheduleAnyway")
        if constraint.when_unsatisfiable not in choices:
            causes.append(not_supported(f"{here}.whenUnsatisfiable", constraint.when_unsatisfiable, choices))
        causes += checks.label_selector(f"{here}.labelSelector", constraint.label_selector)
    return causes


def _gates(path: str, spec: PodSpec) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for at, gate in enumerate(spec.scheduling_gates):
        causes += checks.qualified_name(f"{path}[{at}]", gate.name)
        causes += checks.unseen(f"{path}[{at}]", gate.name, seen)
    return causes
