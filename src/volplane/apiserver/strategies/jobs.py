"""Jobs: generated selectors, completion modes, failure policies, and which fields may change."""

from __future__ import annotations

from msgspec import structs

from volplane.api import name_validation
from volplane.api.batch import Job, JobSpec
from volplane.api.core import PodTemplateSpec
from volplane.api.errors import Cause, Causes, invalid, not_supported, required_value
from volplane.api.meta import LabelSelector
from volplane.api.selectors import InvalidSelector, LabelMatcher
from volplane.apiserver.defaults import copy_template_labels
from volplane.apiserver.strategies import checks, job_policies
from volplane.apiserver.strategies.pods import spec
from volplane.apiserver.strategy import ApiCall, Strategy

NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")
UID_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
MODES = ("NonIndexed", "Indexed")
_MAX_INDEXED_PARALLELISM = 100_000  # pods that an Indexed job may run at the same time


class JobStrategy(Strategy[Job]):
    def prepare_create(self, call: ApiCall, obj: Job) -> Job:
        made = super().prepare_create(call, obj)
        return copy_template_labels(made if made.spec.manual_selector else _generate_selector(made))

    def validate_create(self, call: ApiCall, obj: Job) -> Causes:
        if words := name_validation.label_problems(obj.name, False):
            message = "this is used in Pod names and hostnames, which can result in surprising behavior"
            call.warnings.append(f"metadata.name: {message}; a DNS label is recommended: [{' '.join(words)}]")
        yield from _check_generated_labels(obj)
        yield from job_spec("spec", obj.spec)
        yield from _selector(obj.spec)
        yield from _host_name(obj)

    def validate_update(self, call: ApiCall, old: Job, new: Job) -> Causes:
        yield from _check_generated_labels(new)
        yield from job_spec("spec", new.spec)
        yield from _selector(new.spec)
        yield from _completions(old.spec, new.spec)
        yield from checks.immutable_field("spec.selector", new.spec.selector, old.spec.selector)
        yield from checks.immutable_field(
            "spec.template", new.spec.template, _with_mutable_scheduling(old, new)
        )
        names = ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")
        yield from checks.immutable_fields("spec", new.spec, old.spec, *names)

    def validate_status(self, call: ApiCall, old: Job, new: Job) -> Causes:
        yield from checks.not_negative_fields("status", new.status, "active", "succeeded", "failed")
        if new.status.failed < old.status.failed:
            yield invalid("status.failed", new.status.failed, "cannot decrease the failed counter")
        was = {c.type for c in old.status.conditions if c.status == "True"}
        now = {c.type for c in new.status.conditions if c.status == "True"}
        for type in ("Failed", "Complete", "FailureTarget"):
            if type in was and type not in now:
                message = f"cannot disable the terminal {type}=True condition"
                yield Cause("FieldValueInvalid", f"Invalid value: {message}", "status.conditions")


def _generate_selector(job: Job) -> Job:
    """Add labels with the job's uid to its pods, and the selector for them."""
    own = {**dict.fromkeys(NAME_LABELS, job.name), **dict.fromkeys(UID_LABELS, job.uid)}
    template = job.spec.template
    metadata = structs.replace(template.metadata, labels={**own, **template.metadata.labels})
    selector = job.spec.selector or LabelSelector()
    selector = structs.replace(selector, match_labels={UID_LABELS[0]: job.uid, **selector.match_labels})
    made = structs.replace(job.spec, template=structs.replace(template, metadata=metadata), selector=selector)
    return structs.replace(job, spec=made)


# Validation


def _check_generated_labels(job: Job) -> Causes:
    if job.spec.manual_selector or job.spec.selector is None:
        return
    labels = job.spec.template.metadata.labels
    expected = {**dict.fromkeys(UID_LABELS, job.uid), **dict.fromkeys(NAME_LABELS, job.name)}
    path = "spec.template.metadata.labels"
    for key, value in expected.items():
        if key not in labels:
            yield required_value(f"{path}[{key}]", f"must be '{value}'")
        elif labels[key] != value:
            yield invalid(f"{path}[{key}]", labels[key], f"must be '{value}'")
    if not _matches(job.spec.selector, expected):
        yield invalid("spec.selector", checks.to_plain(job.spec.selector), "`selector` not auto-generated")


def _matches(selector: LabelSelector, labels: dict[str, str]) -> bool:
    try:
        return LabelMatcher.of(selector).matches(labels)
    except InvalidSelector:
        return True  # label_selector reports it


def _selector(given: JobSpec) -> Causes:
    if given.selector is None:
        yield required_value("spec.selector")
        return
    yield from checks.label_selector("spec.selector", given.selector)
    labels = dict(given.template.metadata.labels)
    if not _matches(given.selector, labels):
        yield invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _host_name(job: Job) -> Causes:
    if job.spec.completion_mode != "Indexed" or not job.spec.completions:
        return
    longest = f"{job.name}-{job.spec.completions - 1}"
    if not name_validation.label_problems(longest, False):
        return
    yield invalid("metadata.name", job.name, f"will not able to create pod with invalid DNS label: {longest}")


def job_spec(path: str, given: JobSpec) -> Causes:
    yield from checks.not_negative_fields(
        path, given, "parallelism", "completions", "activeDeadlineSeconds", "backoffLimit"
    )
    yield from checks.not_negative_fields(path, given, "ttlSecondsAfterFinished")
    yield from _mode(path, given)
    yield from job_policies.index_limits(path, given)
    if given.pod_failure_policy is not None:
        yield from job_policies.failure_policy(f"{path}.podFailurePolicy", given)
    if given.success_policy is not None:
        yield from job_policies.success_policy(f"{path}.successPolicy", given)
    yield from _replacement(f"{path}.podReplacementPolicy", given)
    yield from spec.template(f"{path}.template", given.template)
    yield from _restart(f"{path}.template.spec.restartPolicy", given)


def _mode(path: str, given: JobSpec) -> Causes:
    yield from checks.choice(f"{path}.completionMode", given.completion_mode, MODES)
    if given.completion_mode == "Indexed":
        if given.completions is None:
            yield required_value(f"{path}.completions", "when completion mode is Indexed")
        if (given.parallelism or 0) > _MAX_INDEXED_PARALLELISM:
            message = (
                f"must be less than or equal to {_MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
            )
            yield invalid(f"{path}.parallelism", given.parallelism, message)


def _replacement(path: str, given: JobSpec) -> Causes:
    allowed = ("Failed",) if given.pod_failure_policy is not None else ("Failed", "TerminatingOrFailed")
    policy = given.pod_replacement_policy
    if not (policy is None or policy in allowed):
        yield not_supported(path, policy, allowed)


def _restart(path: str, given: JobSpec) -> Causes:
    policy = given.template.spec.restart_policy
    if policy in ("", "Always"):
        yield required_value(path, 'valid values: "OnFailure", "Never"')
        return
    if policy not in ("OnFailure", "Never"):
        yield not_supported(path, policy, ("OnFailure", "Never"))
        return
    if given.pod_failure_policy is not None and policy != "Never":
        message = 'only "Never" is supported when podFailurePolicy is specified'
        yield invalid(path, policy, message)
        return


# Updates


def _completions(old: JobSpec, new: JobSpec) -> Causes:
    if new.completion_mode != "Indexed":
        yield from checks.immutable_field("spec.completions", new.completions, old.completions)
        return
    if new.completions in (None, old.completions) or new.completions == new.parallelism:
        return
    yield invalid("spec.completions", new.completions, "can only be modified in tandem with spec.parallelism")


def _with_mutable_scheduling(old: Job, new: Job) -> PodTemplateSpec:
    """The old template, with the scheduling fields that a suspended job which never started may change."""
    template, given = old.spec.template, new.spec.template
    if not old.spec.suspend or old.status.start_time is not None:
        return template
    metadata = structs.replace(
        template.metadata, annotations=given.metadata.annotations, labels=given.metadata.labels
    )
    spec = structs.replace(
        template.spec,
        node_selector=given.spec.node_selector,
        tolerations=given.spec.tolerations,
        scheduling_gates=given.spec.scheduling_gates,
    )
    return structs.replace(template, metadata=metadata, spec=spec)
