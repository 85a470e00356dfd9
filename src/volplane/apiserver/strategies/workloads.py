"""Deployments, ReplicaSets, ReplicationControllers, DaemonSets, PodTemplates: selector, template, rollout."""

from __future__ import annotations

import re

from volplane.api import apps, core
from volplane.api.errors import Causes, forbidden, invalid, not_supported, required_value
from volplane.api.meta import LabelSelector
from volplane.api.selectors import InvalidSelector, LabelMatcher
from volplane.apiserver.object_access import path_reader
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods import spec
from volplane.apiserver.strategy import ApiCall, Strategy

_PERCENT = re.compile(r"[0-9]{1,18}%")
_PERCENT_MESSAGE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex "
    "used for validation is '[0-9]+%')"
)


class DeploymentsStrategy(Strategy[apps.Deployment]):
    def validate_create(self, call: ApiCall, obj: apps.Deployment) -> Causes:
        given = obj.spec
        yield from checks.not_negative("spec.replicas", given.replicas or 0)
        yield from check_selector("deployment", given.selector)
        yield from check_template("ReplicaSet", given.template, given.selector)
        yield from _deployment_strategy("spec.strategy", given.strategy)
        yield from checks.not_negative_fields("spec", given, "minReadySeconds", "revisionHistoryLimit")
        if given.progress_deadline_seconds is not None:
            path = "spec.progressDeadlineSeconds"
            yield from checks.not_negative(path, given.progress_deadline_seconds)
            if given.progress_deadline_seconds <= given.min_ready_seconds:
                yield invalid(path, given.progress_deadline_seconds, "must be greater than minReadySeconds")

    def validate_status(self, call: ApiCall, old: apps.Deployment, new: apps.Deployment) -> Causes:
        return _counts(new.status, "updatedReplicas", "readyReplicas", "availableReplicas")


class ReplicaSetStrategy(Strategy[apps.ReplicaSet]):
    def validate_create(self, call: ApiCall, obj: apps.ReplicaSet) -> Causes:
        given = obj.spec
        yield from checks.not_negative_fields("spec", given, "replicas", "minReadySeconds")
        yield from check_selector("deployment", given.selector)
        yield from check_template("ReplicaSet", given.template, given.selector)

    def validate_status(self, call: ApiCall, old: apps.ReplicaSet, new: apps.ReplicaSet) -> Causes:
        return _counts(new.status, "fullyLabeledReplicas", "readyReplicas", "availableReplicas")


class ReplicationControllerStrategy(Strategy[core.ReplicationController]):
    """Its selector may be omitted and may change."""

    def validate_create(self, call: ApiCall, obj: core.ReplicationController) -> Causes:
        given = obj.spec
        yield from checks.present("spec.selector", given.selector)
        yield from checks.not_negative_fields("spec", given, "replicas", "minReadySeconds")
        if given.template is None:
            yield required_value("spec.template")
            return
        selector = LabelSelector(match_labels=given.selector) if given.selector else None
        yield from check_template("ReplicationController", given.template, selector)

    def validate_status(
        self, call: ApiCall, old: core.ReplicationController, new: core.ReplicationController
    ) -> Causes:
        return _counts(new.status, "fullyLabeledReplicas", "readyReplicas", "availableReplicas")


class PodTemplateStrategy(Strategy[core.PodTemplate]):
    def validate_create(self, call: ApiCall, obj: core.PodTemplate) -> Causes:
        return spec.template("template", obj.template)


class DaemonSetStrategy(Strategy[apps.DaemonSet]):
    def validate_create(self, call: ApiCall, obj: apps.DaemonSet) -> Causes:
        given = obj.spec
        yield from checks.label_selector("spec.selector", given.selector)
        if given.selector is not None and _is_empty(given.selector):
            message = "empty selector is invalid for daemonset"
            yield invalid("spec.selector", checks.to_plain(given.selector), message)
        yield from check_template("DaemonSet", given.template, given.selector)
        yield from checks.not_negative("spec.minReadySeconds", given.min_ready_seconds)
        yield from _daemon_strategy("spec.updateStrategy", given.update_strategy)
        yield from checks.not_negative("spec.revisionHistoryLimit", given.revision_history_limit or 0)


# Shared


def _is_empty(selector: LabelSelector) -> bool:
    return not selector.match_labels and not selector.match_expressions


def check_selector(word: str, selector: LabelSelector | None) -> Causes:
    if selector is None:
        yield required_value("spec.selector")
        return
    yield from checks.label_selector("spec.selector", selector)
    if _is_empty(selector):
        yield invalid("spec.selector", checks.to_plain(selector), f"empty selector is invalid for {word}")


def check_template(word: str, template: core.PodTemplateSpec, selector: LabelSelector | None) -> Causes:
    path = "spec.template"
    if selector is not None and not _is_empty(selector) and not _matches(selector, template):
        message = "`selector` does not match template `labels`"
        yield invalid(f"{path}.metadata.labels", dict(template.metadata.labels), message)
    yield from spec.template(path, template)
    policy = template.spec.restart_policy
    if policy != "Always":
        yield not_supported(f"{path}.spec.restartPolicy", policy, ("Always",))
    if template.spec.active_deadline_seconds is not None:
        message = f"activeDeadlineSeconds in {word} is not Supported"
        yield forbidden(f"{path}.spec.activeDeadlineSeconds", message)


def _matches(selector: LabelSelector, template: core.PodTemplateSpec) -> bool:
    try:
        return LabelMatcher.of(selector).matches(template.metadata.labels)
    except InvalidSelector:
        return True  # label_selector reports it


def _deployment_strategy(path: str, strategy: apps.DeploymentStrategy) -> Causes:
    rolling = strategy.rolling_update
    if strategy.type == "Recreate":
        message = "may not be specified when strategy `type` is 'Recreate'"
        if rolling is not None:
            yield forbidden(f"{path}.rollingUpdate", message)
        return
    if strategy.type != "RollingUpdate":
        yield not_supported(path, checks.to_plain(strategy), ("Recreate", "RollingUpdate"))
        return
    if rolling is None:
        yield required_value(f"{path}.rollingUpdate", "this should be defaulted and never be nil")
        return
    here = f"{path}.rollingUpdate"
    yield from check_int_or_percent(f"{here}.maxUnavailable", rolling.max_unavailable)
    yield from check_int_or_percent(f"{here}.maxSurge", rolling.max_surge)
    if _number(rolling.max_unavailable) == 0 and _number(rolling.max_surge) == 0:
        yield invalid(f"{here}.maxUnavailable", rolling.max_unavailable, "may not be 0 when `maxSurge` is 0")
    yield from check_at_most_100_percent(f"{here}.maxUnavailable", rolling.max_unavailable)


def _daemon_strategy(path: str, strategy: apps.DaemonSetUpdateStrategy) -> Causes:
    if strategy.type == "OnDelete":
        return
    if strategy.type != "RollingUpdate":
        yield not_supported(path, checks.to_plain(strategy), ("RollingUpdate", "OnDelete"))
        return
    rolling = strategy.rolling_update
    if rolling is None:
        yield required_value(f"{path}.rollingUpdate")
        return
    here = f"{path}.rollingUpdate"
    for name, value in (("maxUnavailable", rolling.max_unavailable), ("maxSurge", rolling.max_surge)):
        yield from check_int_or_percent(f"{here}.{name}", value)
        yield from check_at_most_100_percent(f"{here}.{name}", value)
    down, extra = _number(rolling.max_unavailable), _number(rolling.max_surge)
    if down and extra:
        yield invalid(f"{here}.maxSurge", rolling.max_surge, "may not be set when maxUnavailable is non-zero")
    elif not down and not extra:
        yield required_value(f"{here}.maxUnavailable", "cannot be 0 when maxSurge is 0")


def check_int_or_percent(path: str, value: int | str | None) -> Causes:
    """A number of pods or a percentage of them."""
    if isinstance(value, str):
        if not _PERCENT.fullmatch(value):
            yield invalid(path, value, _PERCENT_MESSAGE)
        return
    yield from checks.not_negative(path, value or 0)


def _number(value: int | str | None) -> int:
    if isinstance(value, str):
        return int(value[:-1]) if _PERCENT.fullmatch(value) else -1
    return value or 0


def check_at_most_100_percent(path: str, value: int | str | None) -> Causes:
    if not isinstance(value, str) or _number(value) <= 100:
        return
    yield invalid(path, value, "must not be greater than 100%")


def _counts(
    status: apps.DeploymentStatus | apps.ReplicaSetStatus | core.ReplicationControllerStatus, *names: str
) -> Causes:
    yield from checks.not_negative("status.replicas", status.replicas)
    for name in names:
        count = path_reader(type(status), name)(status)
        yield from checks.not_negative(f"status.{name}", count)
        if count > status.replicas:
            yield invalid(f"status.{name}", count, "cannot be greater than status.replicas")
    if status.available_replicas > status.ready_replicas:
        message = "cannot be greater than readyReplicas"
        yield invalid("status.availableReplicas", status.available_replicas, message)
