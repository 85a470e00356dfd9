"""How many volumes the attach/detach controller counts in its metrics."""

from __future__ import annotations

from tests.controllers import objects
from tests.explain.explain_objects import attachment, bound_pair, change
from volplane.api import codec
from volplane.api.core import Pod
from volplane.controllers.attachdetach.volume_counts import AttachDetachObjects, count_in_use, count_volumes

EBS = "kubernetes.io/csi:ebs.csi.aws.com"
DESIRED, ACTUAL = "desired_state_of_world", "actual_state_of_world"
DATA, LOGS = bound_pair("data", "pv-data"), bound_pair("logs", "pv-logs")


def seen(*pods: Pod, attached: tuple[tuple[str, str], ...] = (), without: str = "") -> AttachDetachObjects:
    held = [attachment(volume, node) for volume, node in attached]
    claims, volumes = (DATA[0], LOGS[0]), (DATA[1], LOGS[1])
    return AttachDetachObjects(pods, claims, volumes, held, frozenset({without}))


def test_a_volume_counts_once_for_each_node_that_needs_it() -> None:
    pods = [
        objects.pod("one", "data", "logs", on="a"),
        objects.pod("two", "data", on="a"),
        objects.pod("three", "data", on="b"),
        objects.pod("four", "data"),
        objects.pod("five", "missing", on="a"),
    ]
    found = seen(*pods, attached=(("pv-data", "a"),))
    assert count_volumes(found) == {(EBS, DESIRED): 3, (EBS, ACTUAL): 1}
    assert count_in_use(found) == {("a", EBS): 3, ("b", EBS): 1}


def test_a_pod_that_has_ended_needs_nothing_but_is_counted_as_in_use() -> None:
    ended = change(objects.pod("one", "data", on="a"), status={"phase": "Succeeded"})
    assert count_volumes(seen(ended)) == {}
    assert count_in_use(seen(ended)) == {("a", EBS): 1}


def test_a_driver_without_attach_has_no_desired_volumes() -> None:
    assert count_volumes(seen(objects.pod("one", "data", on="a"), without="ebs.csi.aws.com")) == {}


def test_inline_volumes_are_counted_by_driver() -> None:
    volumes = [
        {"name": "flex", "flexVolume": {"driver": "example.com/disks"}},
        {"name": "csi", "csi": {"driver": "inline.example.com"}},
        {"name": "ebs", "awsElasticBlockStore": {"volumeID": "vol-1"}},
    ]
    spec = {"nodeName": "a", "containers": [], "volumes": volumes}
    pod = codec.convert(Pod, {"metadata": {"name": "p", "namespace": "default"}, "spec": spec})
    assert count_volumes(seen(pod)) == {("example.com/disks", DESIRED): 1, (EBS, DESIRED): 1}
    assert count_in_use(seen(pod)) == {
        ("a", "example.com/disks"): 1,
        ("a", "kubernetes.io/csi:inline.example.com"): 1,
        ("a", EBS): 1,
    }
