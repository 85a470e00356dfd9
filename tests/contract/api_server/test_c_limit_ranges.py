"""LimitRanges over HTTPS: what pods get and what is refused, and which limit ranges are valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.test_kubectl import Kubectl

SPACE = "/api/v1/namespaces/default"
STRATEGIC = "application/strategic-merge-patch+json"
PODS, RANGES, QUOTAS = f"{SPACE}/pods", f"{SPACE}/limitranges", f"{SPACE}/resourcequotas"


def pod(name: str, **resources: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    }


async def limit(api: Any, *items: dict[str, Any]) -> Any:
    return await api.post(RANGES, {"metadata": {"name": "l"}, "spec": {"limits": list(items)}})


async def prepare(api: Any) -> None:
    await api.post(f"{SPACE}/serviceaccounts", {"metadata": {"name": "default"}})


async def test_pods_get_the_defaults_and_keep_within_the_limits(served: Any) -> None:
    async with served() as api:
        await prepare(api)
        item = {
            "type": "Container",
            "default": {"cpu": "500m"},
            "defaultRequest": {"cpu": "100m"},
            "max": {"cpu": "1"},
        }
        assert (await limit(api, item)).status == 201
        made = (await api.post(PODS, pod("a"))).json
        assert made["spec"]["containers"][0]["resources"] == {
            "limits": {"cpu": "500m"},
            "requests": {"cpu": "100m"},
        }
        assert made["status"]["qosClass"] == "Burstable"
        assert made["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
            "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
        )
        # A limit that the writer names is the request as well, before the defaults.
        named = (await api.post(PODS, pod("b", limits={"cpu": "1"}))).json
        assert named["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
        refused = await api.post(PODS, pod("c", limits={"cpu": "2"}))
        assert (refused.status, refused.json["message"]) == (
            403,
            'pods "c" is forbidden: maximum cpu usage per Container is 1, but limit is 2',
        )
        # Another namespace, and this one without the limit range, are free.
        await api.delete(f"{RANGES}/l")
        assert (await api.post(PODS, pod("c", limits={"cpu": "2"}))).status == 201


async def test_the_defaults_make_a_quota_of_requests_usable(served: Any) -> None:
    async with served() as api:
        await prepare(api)
        await api.post(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.memory": "100Mi"}}})
        assert "must specify requests.memory for: c" in (await api.post(PODS, pod("a"))).json["message"]
        await limit(api, {"type": "Container", "defaultRequest": {"memory": "60Mi"}})
        assert (await api.post(PODS, pod("a"))).status == 201
        assert (
            "requested: requests.memory=60Mi, used: requests.memory=60Mi"
            in ((await api.post(PODS, pod("b"))).json["message"])
        )


async def test_a_resize_keeps_within_the_limits(served: Any) -> None:
    async with served() as api:
        await prepare(api)
        await api.post(PODS, pod("a", requests={"cpu": "1"}, limits={"cpu": "2"}))
        await limit(api, {"type": "Container", "max": {"cpu": "3"}})
        sizes = {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}
        patch = {"spec": {"containers": [{"name": "c", "resources": sizes}]}}
        answer = await api.call("PATCH", f"{PODS}/a/resize", patch, type=STRATEGIC)
        assert answer.status == 403, answer.json
        assert "maximum cpu usage per Container is 3, but limit is 4" in answer.json["message"]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            {"type": "Box"},
            'spec.limits[0].type: Invalid value: "Box": must be a standard limit type or fully',
        ),
        (
            {"type": "Container", "max": {"colour": "1"}},
            'spec.limits[0].max[colour]: Invalid value: "colour": must be a standard resource type or fully',
        ),
        (
            {"type": "Pod", "max": {"storage": "1"}},
            'limits[0].max[storage]: Invalid value: "storage": must be a standard resource for containers',
        ),
        (
            {"type": "Container", "max": {"requests.example.com/a": "1"}},
            "doesn't follow extended resource name standard",
        ),
        (
            {"type": "Pod", "default": {"cpu": "1"}},
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
        ),
        (
            {"type": "PersistentVolumeClaim", "max": {"cpu": "1"}},
            "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but",
        ),
        (
            {"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}},
            'spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1',
        ),
        (
            {"type": "Container", "defaultRequest": {"cpu": "1"}, "min": {"cpu": "2"}},
            'defaultRequest[cpu]: Invalid value: "1": min value 2 is greater than default request value 1',
        ),
        (
            {"type": "Container", "defaultRequest": {"cpu": "3"}, "max": {"cpu": "2"}},
            'defaultRequest[cpu]: Invalid value: "3": default request value 3 is greater than max value 2',
        ),
        (
            {"type": "Container", "defaultRequest": {"cpu": "3"}, "default": {"cpu": "2"}},
            "default request value 3 is greater than default limit value 2",
        ),
        (
            {"type": "Container", "default": {"cpu": "3"}, "max": {"cpu": "2"}},
            'spec.limits[0].default[cpu]: Invalid value: "2": default value 3 is greater than max value 2',
        ),
        (
            {"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}},
            'maxLimitRequestRatio[cpu]: Invalid value: "500m": ratio 500m is less than 1',
        ),
        (
            {"type": "Pod", "maxLimitRequestRatio": {"cpu": "5"}, "min": {"cpu": "1"}, "max": {"cpu": "3"}},
            "ratio 5 is greater than max/min = 3.000000",
        ),
        (
            {
                "type": "Container",
                "default": {"example.com/gpu": "2"},
                "defaultRequest": {"example.com/gpu": "1"},
            },
            "default value 2 must equal to defaultRequest value 1 in example.com/gpu",
        ),
    ],
)
async def test_limits_must_agree_with_each_other(served: Any, item: dict[str, Any], words: str) -> None:
    async with served() as api:
        answer = await limit(api, item)
        assert answer.status == 422, answer.json
        assert words in answer.json["message"]


@pytest.mark.peer("kubectl")
async def test_kubectl_sees_what_is_set(served: Any, tmp_path: Path) -> None:
    async with served() as api:
        await prepare(api)
        kubectl = Kubectl(api.server.kubeconfig, tmp_path)
        await limit(api, {"type": "Container", "max": {"memory": "64Mi"}})
        await kubectl("run", "a", "--image=i")
        text = await kubectl("describe", "pod", "a")
        assert "LimitRanger plugin set: memory request for container a; memory limit for container a" in text
        wanted = await kubectl("run", "b", "--image=i", "--dry-run=client", "-o", "yaml")
        more = ("set", "resources", "-f", "-", "--limits=memory=65Mi", "--local", "-o", "yaml")
        text = await kubectl(*more, text=wanted)
        refused = await kubectl("create", "-f", "-", text=text, fails=True)
        assert "maximum memory usage per Container is 64Mi, but limit is 65Mi" in refused
        assert "64Mi" in await kubectl("describe", "limitrange", "l")
