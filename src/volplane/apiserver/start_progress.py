"""The steps of the server's start. Each health check of upstream's start stands for one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum


class StartStep(Enum):
    ROLES = "bootstrap roles exist"
    PRIORITY_CLASSES = "system priority classes exist"
    INDEXES = "roles, definitions and quotas are known"  # what admission and authorization look up
    DEFINITIONS = "custom kinds are served"
    CLIENT_CA = "the client CA is published"
    SERVICE = "default/kubernetes leads to this server"


# Upstream's names. There is no aggregator here: all groups are served by this process once they are known.
START_CHECKS: Mapping[str, StartStep] = {
    "poststarthook/start-apiserver-admission-initializer": StartStep.INDEXES,
    "poststarthook/generic-apiserver-start-informers": StartStep.INDEXES,
    "poststarthook/start-apiextensions-informers": StartStep.INDEXES,
    "poststarthook/start-apiextensions-controllers": StartStep.DEFINITIONS,
    "poststarthook/crd-informer-synced": StartStep.DEFINITIONS,
    "poststarthook/rbac/bootstrap-roles": StartStep.ROLES,
    "poststarthook/scheduling/bootstrap-system-priority-classes": StartStep.PRIORITY_CLASSES,
    "poststarthook/start-cluster-authentication-info-controller": StartStep.CLIENT_CA,
    "poststarthook/start-kube-aggregator-informers": StartStep.DEFINITIONS,
    "poststarthook/apiservice-registration-controller": StartStep.DEFINITIONS,
    "poststarthook/apiservice-status-available-controller": StartStep.SERVICE,
    "poststarthook/kube-apiserver-autoregistration": StartStep.DEFINITIONS,
    "autoregister-completion": StartStep.DEFINITIONS,
    "poststarthook/apiservice-openapi-controller": StartStep.DEFINITIONS,
}
READY_CHECKS: Mapping[str, StartStep] = {"informer-sync": StartStep.INDEXES}


class StartProgress:
    def __init__(self) -> None:
        self._finished: set[StartStep] = set()

    def finish(self, *steps: StartStep) -> None:
        self._finished.update(steps)

    def find_unfinished(self, checks: Iterable[str]) -> dict[str, str]:
        """The checks among these whose step is not finished, with what is missing."""
        steps = {**START_CHECKS, **READY_CHECKS}
        return {
            check: f"not yet: {steps[check].value}"
            for check in checks
            if check in steps and steps[check] not in self._finished
        }
