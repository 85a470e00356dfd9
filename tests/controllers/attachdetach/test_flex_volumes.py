"""FlexVolumes of the attach/detach controller, from caches alone."""

from __future__ import annotations

import pytest

from tests.controllers.objects import pod
from volplane.api.core import PersistentVolume, Pod
from volplane.api.storage import VolumeAttachment
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.controllers.attachdetach.flex import FlexVolumes
from volplane.controllers.attachdetach.plan import AttachDetachView
from volplane.loops.controller import RetryableError


async def test_a_volume_that_is_deleted_before_its_attachment_is_created_is_planned_again() -> None:
    caches = SnapshotCaches(None)
    flex = FlexVolumes(None, caches.get(Pod), caches.get(PersistentVolume), caches.get(VolumeAttachment))
    view = AttachDetachView(
        "pv", unique_name="example.com/disks/pv", is_flex=True, wanted={"a": [pod("web", "data", on="a")]}
    )
    with pytest.raises(RetryableError, match="PersistentVolume pv was deleted"):
        flex.build_attachment(view, "a")
