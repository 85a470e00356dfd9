"""What the binder counts and measures."""

from __future__ import annotations

import asyncio

import pytest

from tests.controllers import objects
from tests.explain.explain_objects import bound_pair, change
from volplane.api.errors import Conflict
from volplane.base import metrics
from volplane.controllers.binder import object_counts
from volplane.controllers.binder.memory import BinderMemory

EBS = "kubernetes.io/csi:ebs.csi.aws.com"
CLAIM, VOLUME = bound_pair("data", "pv", storageClassName="fast", volumeAttributesClassName="gold")


def test_volumes_are_counted_by_plugin_mode_and_class() -> None:
    host_path = objects.volume("other", cls="slow", csi=None, hostPath={"path": "/x"}, volumeMode="Block")
    unknown = objects.volume("unknown", csi=None, cephfs={"monitors": ["a"]})
    volumes = [VOLUME, host_path, unknown]
    assert object_counts.count_volumes(volumes) == {
        (EBS, "Filesystem"): 1,
        ("kubernetes.io/host-path", "Block"): 1,
        ("N/A", "Filesystem"): 1,
    }
    assert object_counts.count_bound_volumes(volumes) == {("",): 1}
    assert object_counts.count_unbound_volumes(volumes) == {("slow",): 1, ("",): 1}


def test_claims_are_counted_by_namespace_and_classes() -> None:
    beta = {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}
    pending = [objects.claim("a", cls=None), change(objects.claim("b", cls=None), metadata=beta)]
    claims = [CLAIM, *pending]
    assert object_counts.count_bound_claims(claims) == {("default", "fast", "gold"): 1}
    assert object_counts.count_unbound_claims(claims) == {("default", "", ""): 1, ("default", "old", ""): 1}


def test_a_default_class_counts_also_if_it_could_not_be_written() -> None:
    def read(name: str) -> float:
        return metrics.registry.get_sample_value(name) or 0.0

    names = ("retroactive_storageclass_total", "retroactive_storageclass_errors_total")
    total, errors = map(read, names)
    with object_counts.counting_default_class():
        pass
    assert tuple(map(read, names)) == (total + 1, errors)
    with pytest.raises(Conflict), object_counts.counting_default_class():
        raise Conflict("changed meanwhile")
    assert tuple(map(read, names)) == (total + 2, errors + 1)


@pytest.mark.virtual
async def test_a_request_is_measured_from_the_first_time_it_was_seen() -> None:
    memory = BinderMemory()
    memory.note_request("uid", "ebs.csi.aws.com")
    await asyncio.sleep(3)
    memory.note_request("uid", "ebs.csi.aws.com")
    await asyncio.sleep(4)
    finished = memory.finish_request("uid")
    assert finished is not None
    assert finished[0] == "ebs.csi.aws.com"
    assert finished[1] == pytest.approx(7.0)
    assert memory.finish_request("uid") is None
    memory.note_request(CLAIM.uid, "ebs.csi.aws.com")
    memory.observe_claim(CLAIM, None)  # deleted before it was bound
    assert memory.finish_request(CLAIM.uid) is None
