"""Defaults of a CronJob: its job template gets those of its parts, as upstream's generated defaults do."""

from __future__ import annotations

from volplane.api import codec
from volplane.api.batch import CronJob
from volplane.apiserver.defaults import defaulter_of


def test_a_pod_condition_of_a_failure_policy_is_to_be_true() -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}
    job = {"podFailurePolicy": {"rules": rules}, "template": template}
    given = {"metadata": {"name": "a"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job}}}
    made = defaulter_of(CronJob)(codec.convert(CronJob, given))
    policy = made.spec.job_template.spec.pod_failure_policy
    assert policy is not None
    assert [c.status for rule in policy.rules for c in rule.on_pod_conditions] == ["True"]
