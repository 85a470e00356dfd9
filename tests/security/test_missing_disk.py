"""The image of a disk is missing when a cluster starts: that disk is in error, and all others work."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import machine
from tests.support.up import Up

pytestmark = [pytest.mark.root, pytest.mark.slow]

NAMES = ("kept", "lost")


def objects(name: str) -> list[dict[str, Any]]:
    """A claim, and a pod that writes its name to the disk once, and never again."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "gp3"}
    main = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", f"[ -e /data/f ] || echo {name} > /data/f; sync -f /data; sleep infinity"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [main],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": claim | {"resources": {"requests": {"storage": "1Gi"}}},
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
    ]


def has_data(up: Up, name: str) -> bool:
    return up.kubectl("exec", name, "--", "cat", "/data/f", check=False).strip() == name


def disk_of(up: Up, claim: str) -> str:
    volume = up.get("pvc", claim)["spec"]["volumeName"]
    handle: str = up.get("pv", volume)["spec"]["csi"]["volumeHandle"]
    return handle


def states(up: Up) -> dict[str, str]:
    return {v["VolumeId"]: v["State"] for v in up.aws("describe-volumes")["Volumes"]}


def test_a_missing_image_stops_its_disk_only_until_it_is_back(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir(0o700)
    up = Up(nodes=1, directory=directory)
    up.output = tmp_path / "up.log"
    try:
        with up:
            items = [item for name in NAMES for item in objects(name)]
            up.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
            for name in NAMES:
                up.wait(f"{name} has written", partial(has_data, up, name))
            kept, lost = (disk_of(up, name) for name in NAMES)
            assert up.stop() == 0, up.log()
            image, aside = directory / f"cloud/disks/{lost}.img", tmp_path / "aside.img"
            image.rename(aside)

            up.start()
            up.wait("the other disk is mounted", partial(has_data, up, "kept"))
            up.describe("pod", "lost", "FailedMount", f"the disk of {lost} has not appeared as")
            assert states(up) == {kept: "in-use", lost: "error"}
            assert f"{lost}: the file is missing or too short: {image}" in up.log(1000)
            assert not has_data(up, "lost")
            assert not image.exists()  # an empty disk in its place would look like one that lost its data
            assert up.stop() == 0, up.log()
            aside.rename(image)

            up.start()
            for name in NAMES:
                up.wait(f"{name} has its data", partial(has_data, up, name))
            assert states(up) == {kept: "in-use", lost: "in-use"}
            assert f"{lost}: the file is back" in up.log(1000)
            assert up.stop() == 0, up.log()
        assert not (left := up.leftovers()), left
        assert "Traceback" not in up.log(10000)
    finally:
        machine.purge(directory)
