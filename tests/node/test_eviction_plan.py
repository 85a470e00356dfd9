"""Who leaves a node whose disk is about to be full, as a kubelet ranks and words it."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api.codec import convert
from volplane.api.core import Pod
from volplane.node.admission import Rejection
from volplane.node.eviction import plan, thresholds
from volplane.node.eviction.plan import DiskAmount, PodDiskUsage
from volplane.node.eviction.thresholds import AVAILABLE, INODES_FREE, CrossedThreshold, MeasuredDisk
from volplane.node.options import NodeOptions

GIB, MIB = 1 << 30, 1 << 20


def pod(name: str, *, priority: int | None = None, request: str = "", **more: Any) -> Pod:
    requests = {"ephemeral-storage": request} if request else {}
    container = {"name": "c", "image": "x", "resources": {"requests": requests}}
    spec = {"containers": [container], "priority": priority, **more.pop("spec", {})}
    meta = {"name": name, "namespace": "default", "uid": name, **more.pop("metadata", {})}
    return convert(Pod, {"metadata": meta, "spec": spec, **more})


def usage(of: Pod, size: int, inodes: int = 1) -> PodDiskUsage:
    return PodDiskUsage(of, {"c": DiskAmount(size, inodes)})


def test_pods_over_their_request_go_first_then_the_less_important_then_the_larger() -> None:
    ranked = plan.rank(
        [
            usage(pod("within", request="2Gi"), GIB),
            usage(pod("over-important", priority=1000), GIB),
            usage(pod("over-small"), MIB),
            usage(pod("over-large"), 2 * MIB),
            usage(pod("over-less-than-it-uses", request="3Mi"), 4 * MIB),
        ],
        AVAILABLE,
    )
    names = ["over-large", "over-less-than-it-uses", "over-small", "over-important", "within"]
    assert [u.pod.name for u in ranked] == names


def test_with_too_few_inodes_whoever_has_most_files_goes_first() -> None:
    ranked = plan.rank([usage(pod("large"), GIB, 1), usage(pod("many"), MIB, 1000)], INODES_FREE)
    assert [u.pod.name for u in ranked] == ["many", "large"]


@pytest.mark.parametrize(
    ("of", "may"),
    [
        (pod("plain"), True),
        (pod("important", priority=1_000_000_000), True),
        (pod("driver", priority=2_000_000_000), False),
        (pod("node-critical", priority=2_000_001_000), False),
        (pod("static", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}), False),
        (pod("over", status={"phase": "Succeeded"}), False),
        (pod("going", metadata={"deletionTimestamp": "2026-11-15T20:00:00Z"}), False),
    ],
    ids=lambda value: value.name if isinstance(value, Pod) else "",
)
def test_critical_pods_and_those_that_end_anyway_are_not_evicted(of: Pod, may: bool) -> None:
    assert plan.may_be_evicted(of) is may


def test_the_message_is_upstream_s() -> None:
    (least,) = thresholds.parse("nodefs.available<100Mi")
    crossed = CrossedThreshold(least, 100 * MIB, 52 * MIB + 1024)
    assert plan.eviction_message(usage(pod("p", request="1Gi"), MIB), crossed) == (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 53249Ki. "
    )
    assert plan.eviction_message(usage(pod("p"), 8 * MIB), crossed).endswith(
        "available: 53249Ki. Container c was using 8Mi, request is 0, "
        "has larger consumption of ephemeral-storage. "
    )


def test_a_node_under_pressure_takes_critical_pods_only() -> None:
    rejection = plan.check_disk_pressure(pod("p"), disk_pressure=True)
    assert rejection == Rejection("Evicted", "The node had condition: [DiskPressure]. ")
    assert plan.check_disk_pressure(pod("p"), disk_pressure=False) is None
    assert plan.check_disk_pressure(pod("p", priority=2_000_000_000), disk_pressure=True) is None


def test_an_empty_dir_over_its_limit_is_named() -> None:
    spec = {
        "volumes": [
            {"name": "free", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "small", "emptyDir": {"sizeLimit": "1Mi"}},
        ]
    }
    of = pod("p", spec=spec)
    held = {"free": DiskAmount(GIB), "memory": DiskAmount(GIB), "small": DiskAmount(MIB)}
    assert plan.over_limit(PodDiskUsage(of, volumes=held)) == ""
    told = plan.over_limit(PodDiskUsage(of, volumes={**held, "small": DiskAmount(MIB + 1)}))
    assert told == 'Usage of EmptyDir volume "small" exceeds the limit "1Mi". '


def test_a_limit_of_zero_is_no_limit() -> None:
    of = pod("p", spec={"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "0"}}]})
    assert plan.over_limit(PodDiskUsage(of, volumes={"scratch": DiskAmount(GIB)})) == ""


def test_thresholds_are_amounts_or_shares() -> None:
    both = thresholds.parse("nodefs.available<10%, imagefs.inodesFree<5")
    disk = MeasuredDisk(available=9 * GIB, capacity=100 * GIB, inodes_free=4, inodes=1000)
    assert [(c.least, c.left) for c in thresholds.find_crossed(both, disk)] == [(10 * GIB, 9 * GIB), (5, 4)]
    enough = MeasuredDisk(available=10 * GIB, capacity=100 * GIB, inodes_free=5, inodes=1000)
    assert thresholds.find_crossed(both, enough) == []
    without_inodes = MeasuredDisk(available=10 * GIB, capacity=100 * GIB, inodes_free=0, inodes=0)
    assert thresholds.find_crossed(both, without_inodes) == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("eviction_hard", "nodefs.available", "is not of the form signal<amount"),
        ("eviction_hard", "memory.available<100Mi", "unknown signal 'memory.available'"),
        ("eviction_hard", "nodefs.available<ten", "'ten' of nodefs.available is neither a quantity nor"),
        ("eviction_hard", "nodefs.available<110%", "'110%' of nodefs.available is neither"),
        ("eviction_hard", "nodefs.available<-1", "must not be negative"),
        ("container_log_max_size", "much", "--container-log-max-size must be a quantity"),
        ("container_log_max_size", "1k", "--container-log-max-size must be at least 64Ki, not 1k"),
        ("container_log_max_files", 1, "--container-log-max-files must be at least 2, not 1"),
        ("container_shell", "no-such-shell", "--container-shell: there is no program no-such-shell"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_flag_s_name(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NodeOptions(**{field: value})
