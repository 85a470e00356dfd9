"""Deployments, replica and daemon sets: defaults, selectors that match, templates that can run."""

from __future__ import annotations

import re
from typing import Any

from volplane.api import apps, core
from volplane.api.errors import Cause, forbidden, invalid, not_supported, required_value
from volplane.api.meta import LabelSelector
from volplane.api.selectors import InvalidSelector, LabelMatcher
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.pods import spec
from volplane.apiserver.strategy import ApiCall, Strategy

HISTORY = 10
PROGRESS_SECONDS = 600
_PERCENT = re.compile(r"[0-9]{1,18}%")
_PERCENT_MESSAGE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex "
    "used for validation is '[0-9]+%')"
)


class DeploymentsStrategy(Strategy[apps.Deployment]):
    def validate_create(self, call: ApiCall, obj: apps.Deployment) -> list[Cause]:
        given = obj.spec
        causes = checks.not_negative("spec.replicas", given.replicas or 0)
        causes += check_selector("deployment", given.selector)
        causes += check_template("ReplicaSet", given.template, given.selector)
        causes += _deployment_strategy("spec.strategy", given.strategy)
        causes += checks.not_negative("spec.minReadySeconds", given.min_ready_seconds)
        causes += checks.not_negative("spec.revisionHistoryLimit", given.revision_history_limit or 0)
        if given.progress_deadline_seconds is not None:
            path = "spec.progressDeadlineSeconds"
            causes += checks.not_negative(path, given.progress_deadline_seconds)
            if given.progress_deadline_seconds <= given.min_ready_seconds:
                message = "must be greater than minReadySeconds"
                causes.append(invalid(path, given.progress_deadline_seconds, message))
        return causes

    def validate_status(self, call: ApiCall, old: apps.Deployment, new: apps.Deployment) -> list[Cause]:
        names = ("updatedReplicas", "readyReplicas", "availableReplicas")
        return _counts(new.status, ("updated_replicas", "ready_replicas", "available_replicas"), names)


class ReplicaSetStrategy(Strategy[apps.ReplicaSet]):
    def validate_create(self, call: ApiCall, obj: apps.ReplicaSet) -> list[Cause]:
        given = obj.spec
        causes = checks.not_negative("spec.replicas", given.replicas or 0)
        causes += checks.not_negative("spec.minReadySeconds", given.min_ready_seconds)
        causes += check_selector("deployment", given.selector)
        return causes + check_template("ReplicaSet", given.template, given.selector)

    def validate_status(self, call: ApiCall, old: apps.ReplicaSet, new: apps.ReplicaSet) -> list[Cause]:
        names = ("fullyLabeledReplicas", "readyReplicas", "availableReplicas")
        return _counts(new.status, ("fully_labeled_replicas", "ready_replicas", "available_replicas"), names)


class ReplicationControllerStrategy(Strategy[core.ReplicationController]):
    """The oldest of them: its selector may be left out, and may change."""

    def validate_create(self, call: ApiCall, obj: core.ReplicationController) -> list[Cause]:
        given = obj.spec
        causes = checks.present("spec.selector", given.selector)
        causes += checks.not_negative("spec.replicas", given.replicas or 0)
        causes += checks.not_negative("spec.minReadySeconds", given.min_ready_seconds)
        if given.template is None:
            return [*causes, required_value("spec.template")]
        selector = LabelSelector(match_labels=given.selector) if given.selector else None
        return causes + check_template("ReplicationController", given.template, selector)

    def validate_status(
        self, call: ApiCall, old: core.ReplicationController, new: core.ReplicationController
    ) -> list[Cause]:
        names = ("fullyLabeledReplicas", "readyReplicas", "availableReplicas")
        return _counts(new.status, ("fully_labeled_replicas", "ready_replicas", "available_replicas"), names)


class PodTemplateStrategy(Strategy[core.PodTemplate]):
    def validate_create(self, call: ApiCall, obj: core.PodTemplate) -> list[Cause]:
        return spec.template("template", obj.template)


class DaemonSetStrategy(Strategy[apps.DaemonSet]):
    def validate_create(self, call: ApiCall, obj: apps.DaemonSet) -> list[Cause]:
        given = obj.spec
        causes = checks.label_selector("spec.selector", given.selector)
        if given.selector is not None and _is_empty(given.selector):
            message = "empty selector is invalid for daemonset"
            causes.append(invalid("spec.selector", checks.to_plain(given.selector), message))
        causes += check_template("DaemonSet", given.template, given.selector)
        causes += checks.not_negative("spec.minReadySeconds", given.min_ready_seconds)
        causes += _daemon_strategy("spec.updateStrategy", given.update_strategy)
        return causes + checks.not_negative("spec.revisionHistoryLimit", given.revision_history_limit or 0)


# Shared


def _is_empty(selector: LabelSelector) -> bool:
    return not selector.match_labels and not selector.match_expressions


def check_selector(word: str, selector: LabelSelector | None) -> list[Cause]:
    if selector is None:
        return [required_value("spec.selector")]
    causes = checks.label_selector("spec.selector", selector)
    if _is_empty(selector):
        message = f"empty selector is invalid for {word}"
        causes.append(invalid("spec.selector", checks.to_plain(selector), message))
    return causes


def check_template(word: str, template: core.PodTemplateSpec, selector: LabelSelector | None) -> list[Cause]:
    path = "spec.template"
    causes: list[Cause] = []
    if selector is not None and not _is_empty(selector) and not _matches(selector, template):
        message = "`selector` does not match template `labels`"
        causes.append(invalid(f"{path}.metadata.labels", dict(template.metadata.labels), message))
    causes += spec.template(path, template)
    policy = template.spec.restart_policy
    if policy != "Always":
        causes.append(not_supported(f"{path}.spec.restartPolicy", policy, ("Always",)))
    if template.spec.active_deadline_seconds is not None:
        message = f"activeDeadlineSeconds in {word} is not Supported"
        causes.append(forbidden(f"{path}.spec.activeDeadlineSeconds", message))
    return causes


def _matches(selector: LabelSelector, template: core.PodTemplateSpec) -> bool:
    try:
        return LabelMatcher.of(selector).matches(template.metadata.labels)
    except InvalidSelector:
        return True  # said already by the selector's own check


def _deployment_strategy(path: str, strategy: apps.DeploymentStrategy) -> list[Cause]:
    rolling = strategy.rolling_update
    if strategy.type == "Recreate":
        message = "may not be specified when strategy `type` is 'Recreate'"
        return [] if rolling is None else [forbidden(f"{path}.rollingUpdate", message)]
    if strategy.type != "RollingUpdate":
        return [not_supported(path, checks.to_plain(strategy), ("Recreate", "RollingUpdate"))]
    if rolling is None:
        return [required_value(f"{path}.rollingUpdate", "this should be defaulted and never be nil")]
    here = f"{path}.rollingUpdate"
    causes = check_int_or_percent(f"{here}.maxUnavailable", rolling.max_unavailable) + check_int_or_percent(
        f"{here}.maxSurge", rolling.max_surge
    )
    if _number(rolling.max_unavailable) == 0 and _number(rolling.max_surge) == 0:
        message = "may not be 0 when `maxSurge` is 0"
        causes.append(invalid(f"{here}.maxUnavailable", rolling.max_unavailable, message))
    return causes + check_at_most_100_percent(f"{here}.maxUnavailable", rolling.max_unavailable)


def _daemon_strategy(path: str, strategy: apps.DaemonSetUpdateStrategy) -> list[Cause]:
    if strategy.type == "OnDelete":
        return []
    if strategy.type != "RollingUpdate":
        return [not_supported(path, checks.to_plain(strategy), ("RollingUpdate", "OnDelete"))]
    rolling = strategy.rolling_update
    if rolling is None:
        return [required_value(f"{path}.rollingUpdate")]
    here = f"{path}.rollingUpdate"
    causes: list[Cause] = []
    for name, value in (("maxUnavailable", rolling.max_unavailable), ("maxSurge", rolling.max_surge)):
        causes += check_int_or_percent(f"{here}.{name}", value) + check_at_most_100_percent(
            f"{here}.{name}", value
        )
    down, extra = _number(rolling.max_unavailable), _number(rolling.max_surge)
    if down and extra:
        message = "may not be set when maxUnavailable is non-zero"
        causes.append(invalid(f"{here}.maxSurge", rolling.max_surge, message))
    elif not down and not extra:
        causes.append(required_value(f"{here}.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    return causes


def check_int_or_percent(path: str, value: int | str | None) -> list[Cause]:
    """A number of pods or a percentage of them."""
    if isinstance(value, str):
        return [] if _PERCENT.fullmatch(value) else [invalid(path, value, _PERCENT_MESSAGE)]
    return checks.not_negative(path, value or 0)


def _number(value: int | str | None) -> int:
    if isinstance(value, str):
        return int(value[:-1]) if _PERCENT.fullmatch(value) else -1
    return value or 0


def check_at_most_100_percent(path: str, value: int | str | None) -> list[Cause]:
    if not isinstance(value, str) or _number(value) <= 100:
        return []
    return [invalid(path, value, "must not be greater than 100%")]


def _counts(status: Any, attributes: tuple[str, ...], names: tuple[str, ...]) -> list[Cause]:
    causes = checks.not_negative("status.replicas", status.replicas)
    message = "cannot be greater than status.replicas"
    for attribute, name in zip(attributes, names, strict=True):
        count = getattr(status, attribute)
        causes += checks.not_negative(f"status.{name}", count)
        if count > status.replicas:
            causes.append(invalid(f"status.{name}", count, message))
    if status.available_replicas > status.ready_replicas:
        message = "cannot be greater than readyReplicas"
        causes.append(invalid("status.availableReplicas", status.available_replicas, message))
    return causes
