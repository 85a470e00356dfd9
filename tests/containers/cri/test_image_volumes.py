"""Image volumes: the runtimes that can mount them, and what a runtime says about a created container."""

from __future__ import annotations

import json

import pytest

from volplane.api.core import Container, ImageVolumeSource, Pod, PodSpec, Volume, VolumeMount
from volplane.node.containers.base import ContainerSpec, Mount
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.container_config import make_container_config
from volplane.node.containers.cri.image_volumes import (
    ImageVolume,
    find_image_volumes,
    find_lack,
    find_missing_mounts,
)

SOURCE = ImageVolumeSource("models/small:1")
WHOLE, PART = ImageVolume("model", SOURCE, False), ImageVolume("model", SOURCE, True)
MODEL = Mount("", "/model/", readonly=True, image="sha256:1", image_name="models/small:1", subpath="weights")


def test_only_the_image_volumes_that_a_container_mounts_count() -> None:
    mounts = (
        VolumeMount("whole", mount_path="/a"),
        VolumeMount("part", mount_path="/b"),
        VolumeMount("part", mount_path="/c", sub_path_expr="$(X)"),
        VolumeMount("empty", mount_path="/d"),
    )
    names = ("whole", "part", "unused")
    volumes = (*(Volume(name, image=SOURCE) for name in names), Volume("empty"))
    pod = Pod(spec=PodSpec(volumes=volumes))
    found = find_image_volumes(pod, Container(name="main", volume_mounts=mounts))
    assert found == [ImageVolume("whole", SOURCE, False), ImageVolume("part", SOURCE, True)]


@pytest.mark.parametrize(
    ("runtime", "version", "volume", "lacks"),
    [
        ("containerd", "1.6.20~ds1", WHOLE, "image volume"),
        ("containerd", "v2.0.9", WHOLE, "image volume"),
        ("containerd", "v2.1.0", WHOLE, ""),
        ("containerd", "v2.1.5", PART, "subPath of image volume"),  # it would mount all of the image
        ("containerd", "v2.2.0-rc.1", PART, ""),
        ("containerd", "2.2.9+unknown", PART, ""),
        ("containerd", "10.0.0", PART, ""),
        ("cri-o", "1.30.9", WHOLE, "image volume"),
        ("cri-o", "1.31.0", WHOLE, ""),
        ("cri-o", "1.32.4", PART, "subPath of image volume"),
        ("cri-o", "1.33.0", PART, ""),
        ("other", "0.1", PART, ""),  # not known: the created container tells
        ("containerd", "", PART, ""),
        ("containerd", "main", PART, ""),
    ],
)
def test_the_version_of_a_runtime_tells_whether_it_mounts_images(
    runtime: str, version: str, volume: ImageVolume, lacks: str
) -> None:
    problem = find_lack([volume], runtime, version)
    if not lacks:
        assert problem == ""
        return
    assert problem.startswith(f'{lacks} "model" cannot be mounted: ')
    assert f"the container runtime {runtime} {version} does not mount it" in problem
    assert "or a later version" in problem


def test_a_mount_of_an_image_names_the_image_and_no_path_of_the_machine() -> None:
    spec = ContainerSpec(id="a_b_0", log_path="/logs/x", mounts=(MODEL,))
    (mount,) = make_container_config(spec, root="", log_directory="/logs").mounts
    assert (mount.host_path, mount.container_path, mount.readonly) == ("", "/model/", True)
    assert (mount.image.image, mount.image.user_specified_image) == ("sha256:1", "models/small:1")
    assert mount.image_sub_path == "weights"


def make_reply(spec: object = None, *mounts: v1.Mount) -> v1.ContainerStatusResponse:
    info = {} if spec is None else {"info": json.dumps({"runtimeSpec": spec})}
    return v1.ContainerStatusResponse(status=v1.ContainerStatus(mounts=mounts), info=info)


def test_a_container_without_its_image_is_noticed() -> None:
    echoed = v1.Mount(container_path="/model", image=v1.ImageSpec(image="sha256:1"))
    mounted = v1.Mount(container_path="/model", host_path="/run/images/1")
    other = {"mounts": [{"destination": "/proc"}]}
    own = {"mounts": [{"destination": "/proc"}, {"destination": "/model"}]}
    plain = Mount("/data", "/data")
    assert find_missing_mounts((plain, MODEL), make_reply(own)) == []
    # The specification counts, also where the status repeats the request.
    assert find_missing_mounts((plain, MODEL), make_reply(other, echoed)) == [MODEL]
    # A runtime that does not show it, or in a form of its own.
    unknown: tuple[object, ...] = (None, {}, [], {"mounts": 1}, {"mounts": [1]})
    for strange in unknown:
        assert find_missing_mounts((MODEL,), make_reply(strange)) == [MODEL]
        assert find_missing_mounts((MODEL,), make_reply(strange, echoed)) == [MODEL]
        assert find_missing_mounts((MODEL,), make_reply(strange, mounted)) == []
