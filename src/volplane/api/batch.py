"""batch/v1: Job and CronJob."""

from typing import Annotated

from volplane.api.core import ObjectReference, PodTemplateSpec
from volplane.api.meta import LabelSelector, ObjectMeta, Resource
from volplane.api.object import Object, Time, merge, no_omitempty, set_list


class PodFailurePolicyOnExitCodesRequirement(Object):
    container_name: str | None = None
    operator: str = no_omitempty(factory=str)
    values: Annotated[tuple[int, ...], set_list] = no_omitempty(factory=tuple)


class PodFailurePolicyOnPodConditionsPattern(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)


class PodFailurePolicyRule(Object):
    action: str = no_omitempty(factory=str)
    on_exit_codes: PodFailurePolicyOnExitCodesRequirement | None = None
    on_pod_conditions: tuple[PodFailurePolicyOnPodConditionsPattern, ...] = ()


class PodFailurePolicy(Object):
    rules: tuple[PodFailurePolicyRule, ...] = no_omitempty(factory=tuple)


class SuccessPolicyRule(Object):
    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Object):
    rules: tuple[SuccessPolicyRule, ...] = no_omitempty(factory=tuple)


class JobSpec(Object):
    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    selector: LabelSelector | None = None
    manual_selector: bool | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    ttl_seconds_after_finished: int | None = None
    completion_mode: str | None = None
    suspend: bool | None = None
    pod_replacement_policy: str | None = None
    managed_by: str | None = None


class JobCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_probe_time: Time = ""
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class UncountedTerminatedPods(Object):
    succeeded: Annotated[tuple[str, ...], set_list] = ()
    failed: Annotated[tuple[str, ...], set_list] = ()


class JobStatus(Object):
    conditions: Annotated[tuple[JobCondition, ...], merge("type", applied="atomic")] = ()
    start_time: Time | None = None
    completion_time: Time | None = None
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None
    uncounted_terminated_pods: UncountedTerminatedPods | None = None
    ready: int | None = None


class Job(Resource):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobTemplateSpec(Object):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()


class CronJobSpec(Object):
    schedule: str = no_omitempty(factory=str)
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""
    suspend: bool | None = None
    job_template: JobTemplateSpec = JobTemplateSpec()
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Object):
    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: Time | None = None
    last_successful_time: Time | None = None


class CronJob(Resource):
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()
