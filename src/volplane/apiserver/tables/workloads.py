"""Deployments, replica sets, daemon sets, stateful sets, jobs, disruption budgets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from volplane.api.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from volplane.api.batch import CronJob, Job
from volplane.api.policy import PodDisruptionBudget
from volplane.apiserver.tables.columns import (
    NONE,
    TablePrinter,
    age,
    age_of,
    columns,
    containers,
    labels,
    selector,
)
from volplane.base import clock
from volplane.base.units import human_age

_WIDE = ("Containers*", "Images*", "Selector*")


def _deployment(one: Deployment, now: datetime) -> list[Any]:
    status = one.status
    return [
        one.name,
        f"{status.ready_replicas}/{_desired_replicas(one)}",
        status.updated_replicas,
        status.available_replicas,
        age_of(one, now),
        *containers(one.spec.template.spec.containers),
        selector(one.spec.selector, empty=""),
    ]


def _replica_set(one: ReplicaSet, now: datetime) -> list[Any]:
    return [
        one.name,
        _desired_replicas(one),
        one.status.replicas,
        one.status.ready_replicas,
        age_of(one, now),
        *containers(one.spec.template.spec.containers),
        selector(one.spec.selector),
    ]


def _daemon_set(one: DaemonSet, now: datetime) -> list[Any]:
    status = one.status
    return [
        one.name,
        status.desired_number_scheduled,
        status.current_number_scheduled,
        status.number_ready,
        status.updated_number_scheduled,
        status.number_available,
        labels(one.spec.template.spec.node_selector),
        age_of(one, now),
        *containers(one.spec.template.spec.containers),
        selector(one.spec.selector),
    ]


def _stateful_set(one: StatefulSet, now: datetime) -> list[Any]:
    ready = f"{one.status.ready_replicas}/{_desired_replicas(one)}"
    return [one.name, ready, age_of(one, now), *containers(one.spec.template.spec.containers)]


def _job(one: Job, now: datetime) -> list[Any]:
    return [
        one.name,
        _job_state(one),
        _completions(one),
        _duration(one, now),
        age_of(one, now),
        *containers(one.spec.template.spec.containers),
        selector(one.spec.selector),
    ]


def _job_state(one: Job) -> str:
    held = {c.type for c in one.status.conditions if c.status == "True"}
    ended = next((word for word in ("Complete", "Failed") if word in held), "")
    if ended or one.is_deleting:
        return ended or "Terminating"
    meanwhile = ("Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((word for word in meanwhile if word in held), "Running")


def _completions(one: Job) -> str:
    done, parallel = one.status.succeeded, one.spec.parallelism or 0
    if one.spec.completions is not None:
        return f"{done}/{one.spec.completions}"
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _duration(one: Job, now: datetime) -> str:
    if one.status.start_time is None:
        return ""
    end = clock.parse(one.status.completion_time) if one.status.completion_time else now
    return human_age((end - clock.parse(one.status.start_time)).total_seconds())


def _cron_job(one: CronJob, now: datetime) -> list[Any]:
    spec, last = one.spec, one.status.last_schedule_time
    template = spec.job_template.spec
    return [
        one.name,
        spec.schedule,
        NONE if spec.time_zone is None else spec.time_zone,
        bool(spec.suspend),
        len(one.status.active),
        age(last, now) if last else NONE,
        age_of(one, now),
        *containers(template.template.spec.containers),
        selector(template.selector),
    ]


def _budget(one: PodDisruptionBudget, now: datetime) -> list[Any]:
    numbers = (one.spec.min_available, one.spec.max_unavailable)
    shown = ["N/A" if number is None else str(number) for number in numbers]
    return [one.name, *shown, one.status.disruptions_allowed, age_of(one, now)]


def _desired_replicas(one: Deployment | ReplicaSet | StatefulSet) -> int:
    return 1 if one.spec.replicas is None else one.spec.replicas


PRINTERS: Mapping[str, TablePrinter] = {
    "deployments.apps": TablePrinter(
        columns("Name", "Ready", "Up-to-date", "Available", "Age", *_WIDE), _deployment
    ),
    "replicasets.apps": TablePrinter(
        columns("Name", "Desired#integer", "Current#integer", "Ready#integer", "Age", *_WIDE), _replica_set
    ),
    "daemonsets.apps": TablePrinter(
        columns(
            "Name",
            "Desired#integer",
            "Current#integer",
            "Ready#integer",
            "Up-to-date#integer",
            "Available#integer",
            "Node Selector",
            "Age",
            *_WIDE,
        ),
        _daemon_set,
    ),
    "statefulsets.apps": TablePrinter(columns("Name", "Ready", "Age", *_WIDE[:2]), _stateful_set),
    "cronjobs.batch": TablePrinter(
        columns(
            "Name",
            "Schedule",
            "Timezone",
            "Suspend#boolean",
            "Active#integer",
            "Last Schedule",
            "Age",
            *_WIDE,
        ),
        _cron_job,
    ),
    "poddisruptionbudgets.policy": TablePrinter(
        columns("Name", "Min Available", "Max Unavailable", "Allowed Disruptions#integer", "Age"), _budget
    ),
    "jobs.batch": TablePrinter(columns("Name", "Status", "Completions", "Duration", "Age", *_WIDE), _job),
}
