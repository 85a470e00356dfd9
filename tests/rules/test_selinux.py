"""Which SELinux label a pod's volume is mounted with."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api.codec import convert
from volplane.api.core import PersistentVolume, Pod, SELinuxOptions
from volplane.rules import selinux
from volplane.rules.selinux import SELinuxPolicy

FEDORA = SELinuxPolicy("system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0")
LEVEL = "s0:c15,c25"
LABEL = f"system_u:object_r:container_file_t:{LEVEL}"

LABELS = {
    "the level is the container's": ({"level": LEVEL}, FEDORA, LABEL),
    "so is the user": (
        {"user": "me_u", "level": LEVEL},
        FEDORA,
        f"me_u:object_r:container_file_t:{LEVEL}",
    ),
    "role and type are those of processes, not of files": (
        {"role": "r", "type": "spc_t", "level": LEVEL},
        FEDORA,
        LABEL,
    ),
    "a level that chance will give is not known": ({"type": "container_t"}, FEDORA, ""),
    "nothing asked for": ({}, FEDORA, ""),
    "a policy without containers": ({"level": LEVEL}, SELinuxPolicy(), ""),
}


@pytest.mark.parametrize(("options", "policy", "label"), LABELS.values(), ids=LABELS)
def test_file_label(options: dict[str, str], policy: SELinuxPolicy, label: str) -> None:
    assert selinux.file_label(convert(SELinuxOptions, options), policy) == label


def pod(everyone: str = "", *levels: str, volume: str = "data", **context: Any) -> Pod:
    """With a container for each level; an empty one asks for nothing of its own."""
    if everyone:
        context["seLinuxOptions"] = {"level": everyone}
    containers = [
        {
            "name": f"c{at}",
            "volumeMounts": [{"name": volume, "mountPath": "/data"}],
            **({"securityContext": {"seLinuxOptions": {"level": level}}} if level else {}),
        }
        for at, level in enumerate(levels or ("",))
    ]
    return convert(
        Pod, {"metadata": {"name": "p"}, "spec": {"containers": containers, "securityContext": context}}
    )


def test_a_container_without_options_has_those_of_its_pod() -> None:
    assert selinux.label(pod(LEVEL), "data", FEDORA) == LABEL
    assert selinux.label(pod("s0:c1,c2", LEVEL, LEVEL), "data", FEDORA) == LABEL
    assert selinux.label(pod(), "data", FEDORA) == ""


def test_only_containers_that_mount_the_volume_count() -> None:
    assert selinux.label(pod(LEVEL, volume="other"), "data", FEDORA) == ""


def test_containers_that_differ_are_a_conflict() -> None:
    with pytest.raises(selinux.SELinuxLabelConflict) as refused:
        selinux.label(pod(LEVEL, "", "s0:c1,c2"), "data", FEDORA)
    other = LABEL.replace(LEVEL, "s0:c1,c2")
    assert str(refused.value) == f"multiple SELinux labels found: {LABEL},{other}"


def test_a_pod_may_decline() -> None:
    assert selinux.is_mount_declined(pod(LEVEL, seLinuxChangePolicy="Recursive"))
    assert not selinux.is_mount_declined(pod(LEVEL, seLinuxChangePolicy="MountOption"))
    assert not selinux.is_mount_declined(pod(LEVEL))


@pytest.mark.parametrize(
    ("modes", "every_mode", "mountable"),
    [
        (["ReadWriteOncePod"], False, True),
        (["ReadWriteOnce"], False, False),
        (["ReadWriteOncePod", "ReadWriteOnce"], False, False),
        (["ReadWriteMany"], True, True),
    ],
)
def test_only_volumes_of_one_pod_unless_the_gate_is_open(
    modes: list[str], every_mode: bool, mountable: bool
) -> None:
    volume = convert(PersistentVolume, {"metadata": {"name": "v"}, "spec": {"accessModes": modes}})
    assert selinux.is_mountable(volume, every_mode=every_mode) is mountable
    assert not selinux.is_mountable(None, every_mode=every_mode)
