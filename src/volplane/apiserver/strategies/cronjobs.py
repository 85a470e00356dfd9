"""CronJobs: schedule, time zone and job template."""

from __future__ import annotations

from volplane.api.batch import CronJob
from volplane.api.errors import Causes, invalid, not_supported, required_value
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.jobs import job_spec
from volplane.apiserver.strategy import ApiCall, Strategy
from volplane.rules import cron

POLICIES = ("Allow", "Forbid", "Replace")
MAX_NAME_LENGTH = 52  # the names of its jobs are 11 characters longer, and limited to 63


class CronJobStrategy(Strategy[CronJob]):
    def validate_create(self, call: ApiCall, obj: CronJob) -> Causes:
        yield from _spec(obj)
        if len(obj.name) > MAX_NAME_LENGTH:
            yield invalid("metadata.name", obj.name, "must be no more than 52 characters")

    def validate_update(self, call: ApiCall, old: CronJob, new: CronJob) -> Causes:
        return _spec(new)


def _spec(obj: CronJob) -> Causes:
    spec = obj.spec
    yield from _schedule(spec.schedule)
    names = ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
    yield from checks.not_negative_fields("spec", spec, *names)
    yield from _zone(spec.time_zone)
    if spec.concurrency_policy not in POLICIES:
        yield not_supported("spec.concurrencyPolicy", spec.concurrency_policy, POLICIES)
    path, template = "spec.jobTemplate.spec", spec.job_template.spec
    yield from job_spec(path, template)
    if template.selector is not None:
        message = "`selector` will be auto-generated"
        yield invalid(f"{path}.selector", checks.to_plain(template.selector), message)
    if template.manual_selector:
        yield not_supported(f"{path}.manualSelector", "true", ("nil", "false"))


def _schedule(text: str) -> Causes:
    if not text:
        yield required_value("spec.schedule")
        return
    if "TZ" in text:
        message = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        yield invalid("spec.schedule", text, message)
        return
    try:
        cron.parse(text)
    except cron.InvalidSchedule as error:
        yield invalid("spec.schedule", text, str(error))


def _zone(name: str | None) -> Causes:
    if name is None:
        return
    if not name:
        yield invalid("spec.timeZone", name, "timeZone must be nil or non-empty string")
        return
    if name.lower() == "local":
        message = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        yield invalid("spec.timeZone", name, message)
        return
    try:
        cron.zone(name)
    except (KeyError, ValueError, OSError):
        yield invalid("spec.timeZone", name, f"unknown time zone {name}")
