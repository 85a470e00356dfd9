"""Updates of a pod: images, a shorter deadline, additional tolerations, removed scheduling gates."""

from __future__ import annotations

from msgspec import structs

from volplane.api.annotations import MIRROR_POD_ANNOTATION
from volplane.api.core import Container, ContainerStatus, Pod, PodSpec
from volplane.api.errors import Causes, forbidden, invalid, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods.spec import tolerations

MUTABLE = (
    "`spec.containers[*].image`",
    "`spec.initContainers[*].image`",
    "`spec.activeDeadlineSeconds`",
    "`spec.tolerations` (only additions to existing tolerations)",
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
)


APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"


def validate_annotations(old: Pod, new: Pod) -> Causes:
    """The mirror pod and AppArmor annotations are immutable, also through subresources."""
    before, after = old.metadata.annotations, new.metadata.annotations
    for key in sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k)):
        done = "remove or update" if key in before else "add"
        path = f"metadata.annotations[{key}]"
        if key == MIRROR_POD_ANNOTATION:
            yield forbidden(path, f"may not {done} mirror pod annotation")
        elif key.startswith(APP_ARMOR):
            yield forbidden(path, f"may not {done} AppArmor annotations")


def validate(old: Pod, new: Pod) -> Causes:
    before, after = old.spec, new.spec
    for name in ("containers", "init_containers"):
        if len(getattr(before, name)) != len(getattr(after, name)):
            path = "spec.containers" if name == "containers" else "spec.initContainers"
            yield forbidden(path, "pod updates may not add or remove containers")
            return
    yield from _images("spec.containers", after.containers)
    yield from _images("spec.initContainers", after.init_containers)
    late = list(_deadline(before, after))
    if late:
        yield from late
        return
    yield from _tolerations(before, after)
    yield from _gates(before, after)
    rest = _restore_mutable_fields(before, after)
    if rest != before:
        message = f"pod updates may not change fields other than {','.join(MUTABLE)}"
        yield forbidden("spec", f"{message}\n{checks.difference(before, rest)}")


def _images(path: str, containers: tuple[Container, ...]) -> Causes:
    for at, container in enumerate(containers):
        if not container.image:
            yield required_value(f"{path}[{at}].image")
        elif container.image.strip() != container.image:
            message = "must not have leading or trailing whitespace"
            yield invalid(f"{path}[{at}].image", container.image, message)


def _deadline(before: PodSpec, after: PodSpec) -> Causes:
    path, held, given = (
        "spec.activeDeadlineSeconds",
        before.active_deadline_seconds,
        after.active_deadline_seconds,
    )
    if given is None:
        message = "must not update from a positive integer to nil value"
        if held is not None:
            yield invalid(path, None, message)
        return
    if held is not None and held < given:
        yield invalid(path, given, "must be less than or equal to previous value")
        return
    yield from checks.between(path, given, 0, checks.MAX_INT32)


def _tolerations(before: PodSpec, after: PodSpec) -> Causes:
    path = "spec.tolerations"
    given = {structs.replace(t, toleration_seconds=None) for t in after.tolerations}
    held = {structs.replace(t, toleration_seconds=None) for t in before.tolerations}
    if not held <= given:
        yield forbidden(path, "existing toleration can not be modified except its tolerationSeconds")
        return
    yield from tolerations(path, after.tolerations)


def _gates(before: PodSpec, after: PodSpec) -> Causes:
    held = {gate.name for gate in before.scheduling_gates}
    yield from [
        forbidden(
            f"spec.schedulingGates[{at}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.name}'",
        )
        for at, gate in enumerate(after.scheduling_gates)
        if gate.name not in held
    ]


def _restore_mutable_fields(before: PodSpec, after: PodSpec) -> PodSpec:
    """The new spec with the fields that may change set back, to find out whether others changed."""
    grace = after.termination_grace_period_seconds
    if grace == 1 and (before.termination_grace_period_seconds or 0) < 0:
        grace = before.termination_grace_period_seconds
    gated = bool(before.scheduling_gates)
    return structs.replace(
        after,
        containers=_restore_images(before.containers, after.containers),
        init_containers=_restore_images(before.init_containers, after.init_containers),
        active_deadline_seconds=before.active_deadline_seconds,
        scheduling_gates=before.scheduling_gates,
        tolerations=before.tolerations,
        termination_grace_period_seconds=grace,
        # A gated pod is not scheduled yet: its node selector may be narrowed.
        node_selector=before.node_selector
        if gated and _narrows_node_selector(before, after)
        else after.node_selector,
    )


def _narrows_node_selector(before: PodSpec, after: PodSpec) -> bool:
    return before.node_selector.items() <= after.node_selector.items()


def _restore_images(held: tuple[Container, ...], given: tuple[Container, ...]) -> tuple[Container, ...]:
    return tuple(structs.replace(new, image=old.image) for old, new in zip(held, given, strict=True))


def validate_ephemeral(old: Pod, new: Pod) -> Causes:
    """Ephemeral containers can be added, but not changed or removed."""
    path = "spec.ephemeralContainers"
    given = {container.name: container for container in new.spec.ephemeral_containers}
    for held in old.spec.ephemeral_containers:
        if held.name not in given:
            message = f'existing ephemeral containers "{held.name}" may not be removed\n'
            yield forbidden(path, message)
        elif given[held.name] != held:
            message = f'existing ephemeral containers "{held.name}" may not be changed\n'
            yield forbidden(path, message)


def validate_status(old: Pod, new: Pod) -> Causes:
    yield from validate_annotations(old, new)
    for at, condition in enumerate(new.status.conditions):
        yield from checks.qualified_name(f"status.conditions[{at}].Type", condition.type)
    if new.status.nominated_node_name and new.status.nominated_node_name != old.status.nominated_node_name:
        yield from checks.subdomain("status.nominatedNodeName", new.status.nominated_node_name)
    for name, path in (("container_statuses", "containerStatuses"),):
        yield from _transitions(f"status.{path}", old, getattr(old.status, name), getattr(new.status, name))


def _transitions(
    path: str, pod: Pod, before: tuple[ContainerStatus, ...], after: tuple[ContainerStatus, ...]
) -> Causes:
    """A terminated container that the restart policy does not restart stays terminated."""
    policy = pod.spec.restart_policy
    if policy == "Always":
        return
    alive = {status.name for status in after if status.state.terminated is None}
    message = "may not be transitioned to non-terminated state"
    yield from [
        forbidden(f"{path}[{at}].state", message)
        for at, status in enumerate(before)
        if status.state.terminated is not None
        and status.name in alive
        and not (policy == "OnFailure" and status.state.terminated.exit_code != 0)
    ]
