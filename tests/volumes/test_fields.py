"""Fields of the downward API."""

from __future__ import annotations

import pytest

from volplane.api.core import (
    Container,
    HostIP,
    Pod,
    PodSpec,
    PodStatus,
    ResourceFieldSelector,
    ResourceRequirements,
)
from volplane.api.meta import ObjectMeta
from volplane.volumes.downward_fields import UnknownField, read_field, read_resource

POD = Pod(
    metadata=ObjectMeta(
        name="app", namespace="default", uid="u", labels={"b": 'say "hi"', "a": "1"}, annotations={"x/y": "z"}
    ),
    spec=PodSpec(
        node_name="n",
        service_account_name="sa",
        containers=(
            Container(
                name="c",
                resources=ResourceRequirements(limits={"cpu": "1500m"}, requests={"memory": "1Gi"}),
            ),
        ),
    ),
    status=PodStatus(host_ip="10.0.0.1", host_ips=(HostIP("10.0.0.1"), HostIP("::1"))),
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "app"),
        ("metadata.uid", "u"),
        ("metadata.labels", 'a="1"\nb="say \\"hi\\""'),
        ("metadata.labels['a']", "1"),
        ("metadata.annotations['x/y']", "z"),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "n"),
        ("spec.serviceAccountName", "sa"),
        ("status.hostIP", "10.0.0.1"),
        ("status.hostIPs", "10.0.0.1,::1"),
    ],
)
def test_fields(path: str, value: str) -> None:
    assert read_field(POD, path) == value


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(UnknownField, match=r"spec\.volumes"):
        read_field(POD, "spec.volumes")


@pytest.mark.parametrize(
    ("name", "divisor", "value"),
    [
        ("limits.cpu", "", "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.memory", "1Mi", "1024"),
        ("limits.memory", "1Gi", "8"),
        ("requests.cpu", "0", "0"),
    ],
)
def test_resources(name: str, divisor: str, value: str) -> None:
    selector = ResourceFieldSelector(container_name="c", resource=name, divisor=divisor)
    assert read_resource(POD, selector, {"memory": "8Gi"}) == value
