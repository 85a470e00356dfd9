"""The JSON argument of FlexVolume calls."""

from __future__ import annotations

import json

from volplane.api.core import (
    FlexPersistentVolumeSource,
    FlexVolumeSource,
    LocalObjectReference,
    PersistentVolume,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
    SecretReference,
    Volume,
)
from volplane.api.meta import ObjectMeta
from volplane.volumes.flex.options import FlexVolume, build_options, find_flex_volume, mount_options

INLINE = Volume(
    name="data",
    flex_volume=FlexVolumeSource(
        driver="example.com/disks",
        fs_type="xfs",
        read_only=True,
        options={"size": "1"},
        secret_ref=LocalObjectReference(name="key"),
    ),
)


def persistent(*, read_only: bool = False, secret_ref: SecretReference | None = None) -> PersistentVolume:
    source = FlexPersistentVolumeSource(
        driver="example.com/disks", read_only=read_only, secret_ref=secret_ref
    )
    return PersistentVolume(metadata=ObjectMeta(name="pv-1"), spec=PersistentVolumeSpec(flex_volume=source))


def test_an_inline_volume_has_the_pods_values() -> None:
    found = find_flex_volume(INLINE, None)
    secret = SecretReference(name="key")
    assert found == FlexVolume("data", "example.com/disks", "xfs", True, {"size": "1"}, secret)


def test_read_only_of_a_persistent_volume_comes_from_the_claims_reference() -> None:
    found = find_flex_volume(INLINE, persistent(read_only=True))
    assert found is not None
    assert not found.read_only
    found = find_flex_volume(INLINE, persistent(), read_only=True)
    assert found is not None
    assert found.read_only


def test_a_persistent_volumes_secret_keeps_its_namespace() -> None:
    reference = SecretReference(name="key", namespace="vault")
    found = find_flex_volume(None, persistent(secret_ref=reference))
    assert found is not None
    assert found.secret == reference


def test_other_volumes_are_none() -> None:
    assert find_flex_volume(Volume(name="data"), None) is None
    assert find_flex_volume(INLINE, PersistentVolume(metadata=ObjectMeta(name="pv-1"))) is None


def test_the_unique_name_is_the_drivers_and_the_volumes() -> None:
    assert FlexVolume("pv-1", "example.com/disks").unique_name == "example.com/disks/pv-1"


def test_options_of_every_call() -> None:
    options = json.loads(build_options(FlexVolume("pv-1", "d", "ext4")))
    assert options == {
        "kubernetes.io/fsType": "ext4",
        "kubernetes.io/readwrite": "rw",
        "kubernetes.io/pvOrVolumeName": "pv-1",
    }


def test_options_of_the_user_win() -> None:
    user = {"kubernetes.io/readwrite": "rw", "kubernetes.io/pod.name": "mine"}
    flex = FlexVolume("pv-1", "d", read_only=True, options=user)
    options = json.loads(build_options(flex, {"kubernetes.io/pod.name": "pod"}))
    assert options["kubernetes.io/readwrite"] == "rw"
    assert options["kubernetes.io/pod.name"] == "mine"


def test_mount_is_told_the_pod_the_secret_and_the_group() -> None:
    pod = Pod(
        metadata=ObjectMeta(name="web", namespace="shop", uid="u-1"),
        spec=PodSpec(service_account_name="robot"),
    )
    assert mount_options(pod, {"user": b"me"}, 2000) == {
        "kubernetes.io/pod.name": "web",
        "kubernetes.io/pod.namespace": "shop",
        "kubernetes.io/pod.uid": "u-1",
        "kubernetes.io/serviceAccount.name": "robot",
        "kubernetes.io/secret/user": "bWU=",
        "kubernetes.io/mounterArgs.FsGroup": "2000",
    }
    assert "kubernetes.io/mounterArgs.FsGroup" not in mount_options(pod, {}, None)
