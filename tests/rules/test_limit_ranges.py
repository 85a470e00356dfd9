"""What limit ranges set in containers, and upstream's words for what they do not allow."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import LimitRange, PersistentVolumeClaim, Pod
from volplane.apiserver.defaults import defaulter_of
from volplane.rules.limit_ranges import ANNOTATION, describe_violations, prepare, set_container_defaults


def limits(*items: dict[str, Any]) -> Any:
    given = codec.convert(LimitRange, {"metadata": {"name": "l"}, "spec": {"limits": list(items)}})
    return prepare(defaulter_of(LimitRange)(given))


def container(name: str = "c", requests: Any = None, limits: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": "i",
        "resources": {"requests": requests or {}, "limits": limits or {}},
        **more,
    }


def pod(*containers: dict[str, Any], **spec: Any) -> Pod:
    return codec.convert(
        Pod,
        {"metadata": {"name": "p", "annotations": {"a": "b"}}, "spec": {"containers": containers, **spec}},
    )


def claim(**requests: str) -> PersistentVolumeClaim:
    spec = {"resources": {"requests": requests}}
    return codec.convert(PersistentVolumeClaim, {"metadata": {"name": "c"}, "spec": spec})


def test_a_container_gets_what_it_does_not_name() -> None:
    given = limits(
        {"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "1"}}
    )
    made = set_container_defaults(
        pod(container(), container("d", {"cpu": "500m"}, {"cpu": "1"}), initContainers=[container("i")]),
        given,
    )
    first, second = (c.resources for c in made.spec.containers)
    assert (first.requests, first.limits) == ({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"})
    assert (second.requests, second.limits) == (
        {"cpu": "500m", "memory": "1Gi"},
        {"cpu": "1", "memory": "1Gi"},
    )
    assert made.spec.init_containers[0].resources == first
    assert made.metadata.annotations == {
        "a": "b",
        ANNOTATION: "LimitRanger plugin set: cpu, memory request for container c; "
        "cpu, memory limit for container c; memory request for container d; memory limit for container d; "
        "cpu, memory request for init container i; cpu, memory limit for init container i",
    }


def test_a_pod_that_names_everything_stays_as_it_is() -> None:
    given = limits({"type": "Container", "max": {"cpu": "2"}}, {"type": "Pod", "max": {"memory": "1Gi"}})
    complete = pod(container("c", {"cpu": "1"}, {"cpu": "1"}))
    assert set_container_defaults(complete, given) is complete


@pytest.mark.parametrize(
    ("item", "requests", "allowed", "words"),
    [
        (
            {"min": {"cpu": "100m"}},
            {},
            {},
            "minimum cpu usage per Container is 100m.  No request is specified",
        ),
        (
            {"min": {"cpu": "100m"}},
            {"cpu": "50m"},
            {},
            "minimum cpu usage per Container is 100m, but request is 50m",
        ),
        (
            {"min": {"cpu": "100m"}},
            {"cpu": "0.2"},
            {"cpu": "90m"},
            "minimum cpu usage per Container is 100m, but limit is 90m",
        ),
        ({"min": {"cpu": "100m"}}, {"cpu": "100m"}, {}, ""),
        (
            {"max": {"memory": "1Gi"}},
            {"memory": "1Mi"},
            {},
            "maximum memory usage per Container is 1Gi.  No limit is specified",
        ),
        (
            {"max": {"memory": "1Gi"}},
            {},
            {"memory": "2Gi"},
            "maximum memory usage per Container is 1Gi, but limit is 2Gi",
        ),
        (
            {"max": {"memory": "1Gi"}},
            {"memory": "1025Mi"},
            {"memory": "1Gi"},
            "maximum memory usage per Container is 1Gi, but request is 1025Mi",
        ),
        ({"max": {"memory": "1Gi"}}, {}, {"memory": "1024Mi"}, ""),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {},
            {"cpu": "1"},
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"cpu": "1"},
            {},
            "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "1500m"}},
            {"cpu": "1"},
            {"cpu": "2"},
            "cpu max limit to request ratio per Container is 1500m, but provided ratio is 2.000000",
        ),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, {"cpu": "1"}, {"cpu": "2"}, ""),
        (
            {"min": {"cpu": "1"}, "max": {"memory": "1Gi"}},
            {},
            {},
            "[minimum cpu usage per Container is 1.  No request is specified, "
            "maximum memory usage per Container is 1Gi.  No limit is specified]",
        ),
    ],
)
def test_a_container_keeps_within_the_limits(item: Any, requests: Any, allowed: Any, words: str) -> None:
    given = limits({"type": "Container", **item})
    assert describe_violations(pod(container("c", requests, allowed)), given) == words
    other = pod(container("d", {"cpu": "1"}, {"cpu": "1", "memory": "1Mi"}), initContainers=[
        container("c", requests, allowed)
    ])  # fmt: skip
    assert describe_violations(other, given) == words


def test_a_pod_is_the_sum_of_what_runs_at_the_same_time() -> None:
    given = limits({"type": "Pod", "max": {"cpu": "3"}})
    one = container("a", {"cpu": "1"}, {"cpu": "1"})
    sidecar = container("s", {"cpu": "1"}, {"cpu": "1"}, restartPolicy="Always")
    big = container("i", {"cpu": "3"}, {"cpu": "3"})
    assert describe_violations(pod(one, one, one), given) == ""
    assert describe_violations(pod(one, initContainers=[big]), given) == ""
    assert (
        describe_violations(pod(one, initContainers=[sidecar, big]), given)
        == "maximum cpu usage per Pod is 3, but limit is 4"
    )
    whole = {"requests": {"cpu": "1"}, "limits": {"cpu": "5"}}
    assert (
        describe_violations(pod(one, resources=whole), given)
        == "maximum cpu usage per Pod is 3, but limit is 5"
    )


def test_a_claim_has_a_request_only() -> None:
    given = limits({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}})
    assert describe_violations(claim(storage="1Gi"), given) == ""
    assert (
        describe_violations(claim(storage="3Gi"), given)
        == "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"
    )
    assert (
        describe_violations(claim(storage="1Mi"), given)
        == "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"
    )
    assert "usage per PersistentVolumeClaim is 2Gi.  No request is specified" in describe_violations(
        claim(), limits({"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}})
    )
    assert describe_violations(claim(storage="1Mi"), limits({"type": "Pod", "max": {"cpu": "1"}})) == ""
