"""Image volumes: a runtime mounts the files of an image, and one that cannot says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import peers
from tests.support.cri import image
from tests.support.cri.cluster import CriUp, make_pod
from tests.support.cri.containerd import NEWER, Containerd
from tests.support.cri.fixtures import PRIVATE
from tests.support.cri.registry import PASSWORD, USER, Registry
from tests.support.up import VOLPLANE
from volplane.host import Host
from volplane.node.containers.cri import v1
from volplane.node.containers.cri.client import CriClient
from volplane.node.containers.cri.image_collector import ImageCollector
from volplane.node.containers.cri.pulled_images import PulledImages

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "crictl"), pytest.mark.slow]

READ_ONLY = "Read-only file system"


@pytest.fixture(scope="module")
def up(newer_containerd: Containerd) -> Iterator[CriUp]:
    cluster = CriUp(newer_containerd, nodes=1)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}
    assert list_image_mounts(newer_containerd) == []


@pytest.fixture
def name(up: CriUp, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for a pod, which is deleted in the end."""
    made = request.node.originalname.removeprefix("test_").replace("_", "-")[:50].rstrip("-")
    yield made
    up.kubectl("delete", "pod", made, "--ignore-not-found", "--grace-period=1", "--timeout=60s")


def push_model(registry: Registry, name: str, text: str = "weights") -> None:
    """Push an image that only has files: nothing in it can run."""
    files = {"small/weights": text, "large/weights": f"large {text}", "card": "about"}
    registry.push(image.OciImage((image.build_layer(files=files),)), name)


def mount_model(
    reference: str, *mounts: dict[str, Any], policy: str = "", **container: Any
) -> dict[str, Any]:
    """Fields of `make_pod` for a pod that mounts the image, at /model if nothing else is said."""
    source = {"reference": reference, **({"pullPolicy": policy} if policy else {})}
    places = mounts or ({"mountPath": "/model"},)
    return {
        "container": {"volumeMounts": [{"name": "model", **place} for place in places], **container},
        "volumes": [{"name": "model", "image": source}],
    }


def list_image_mounts(runtime: Containerd) -> list[str]:
    """What the runtime has mounted for image volumes."""
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4] for line in table]
    return [place for place in places if str(runtime.directory) in place and "image-volumes" in place]


def test_a_container_reads_an_image_and_a_directory_of_it(up: CriUp, registry: Registry, name: str) -> None:
    push_model(registry, "models/read:1")
    fields = mount_model(
        "models/read:1",
        {"mountPath": "/all"},
        {"mountPath": "/small", "subPath": "small", "readOnly": True},
        {"mountPath": "/chosen", "subPathExpr": "$(KIND)/"},
        env=[{"name": "KIND", "value": "large"}],
    )
    up.run_pod(name, **fields)
    assert up.exec(name, "cat", "/all/card", "/small/weights", "/chosen/weights") == (
        "aboutweightslarge weights"
    )
    for path in ("/all/new", "/small/weights", "/chosen/new"):
        refused = up.kubectl("exec", name, "--", "sh", "-c", f"echo x > {path}", check=False)
        assert READ_ONLY in refused
    up.wait_event(name, "Pulled", 'Successfully pulled image "models/read:1" in ')
    source = up.get("pod", name)["spec"]["volumes"][0]["image"]
    assert source == {"reference": "models/read:1", "pullPolicy": "IfNotPresent"}
    assert len(list_image_mounts(up.runtime)) == 1
    up.kubectl("delete", "pod", name, "--timeout=60s")
    up.wait("the image is unmounted", lambda: not list_image_mounts(up.runtime))


def test_init_and_main_containers_share_an_image(up: CriUp, registry: Registry, name: str) -> None:
    push_model(registry, "models/shared:1")
    mounts = [{"name": "model", "mountPath": "/model"}]
    init = {"name": "init", "image": "busybox", "command": ["cat", "/model/card"], "volumeMounts": mounts}
    up.run_pod(name, initContainers=[init], **mount_model("models/shared:1"))
    assert up.kubectl("logs", name, "-c", "init") == "about"
    assert up.exec(name, "cat", "/model/card") == "about"


def test_a_missing_image_is_tried_again_until_it_is_there(up: CriUp, registry: Registry, name: str) -> None:
    up.apply(make_pod(name, **mount_model("models/late:1")))
    assert "not found" in up.wait_event(name, "Failed", 'Failed to pull image "models/late:1"')
    up.wait_event(name, "Failed", "Error: ErrImagePull")
    up.wait_event(name, "BackOff", 'Back-off pulling image "models/late:1"')
    waiting = up.wait(
        "it backs off",
        lambda: (found := up.find_state(name)["waiting"])["reason"] == "ImagePullBackOff" and found,
    )
    assert waiting["message"].startswith('Back-off pulling image "models/late:1": ErrImagePull: ')
    _, advice = up.explain(f"pod/{name}")
    assert "check that the image exists and may be pulled: models/late:1" in advice
    push_model(registry, "models/late:1")
    up.wait_ready(name)
    assert up.find_status(name)["restartCount"] == 0


def test_pull_policies_are_those_of_the_volume(up: CriUp, registry: Registry, name: str) -> None:
    up.apply(make_pod(name, **mount_model("models/moving:1", policy="Never")))
    why = 'Container image "models/moving:1" is not present with pull policy of Never'
    up.wait_event(name, "ErrImageNeverPull", why)
    up.kubectl("delete", "pod", name, "--timeout=60s")
    for policy, expected in (("IfNotPresent", "one"), ("Always", "two"), ("Never", "two")):
        push_model(registry, "models/moving:1", expected)
        up.run_pod(name, **mount_model("models/moving:1", policy=policy))
        assert up.exec(name, "cat", "/model/small/weights") == expected
        up.kubectl("delete", "pod", name, "--timeout=60s")
        push_model(registry, "models/moving:1", "unseen")


def test_a_private_image_is_pulled_with_the_pods_secret(
    up: CriUp, private_registry: Registry, name: str
) -> None:
    push_model(private_registry, "team/model:1")
    chosen = f"{PRIVATE}/team/model:1"
    up.kubectl(
        "create", "secret", "docker-registry", "model",
        f"--docker-server={PRIVATE}", f"--docker-username={USER}", f"--docker-password={PASSWORD}",
    )  # fmt: skip
    up.run_pod(name, imagePullSecrets=[{"name": "model"}], **mount_model(chosen))
    assert up.exec(name, "cat", "/model/card") == "about"


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"subPath": "medium"}, "no such file or directory"),
        ({"subPath": "card"}, "only directory subpath is supported"),
        ({"subPathExpr": "$(UNKNOWN)"}, "missing value for"),
    ],
    ids=["missing", "a-file", "unknown-variable"],
)
def test_a_path_that_cannot_be_mounted_is_told(
    up: CriUp, registry: Registry, name: str, place: dict[str, str], why: str
) -> None:
    push_model(registry, "models/paths:1")
    up.apply(make_pod(name, **mount_model("models/paths:1", {"mountPath": "/model", **place})))
    up.wait_event(name, "Failed", why)
    reason = up.find_state(name)["waiting"]["reason"]
    assert reason == ("CreateContainerConfigError" if "UNKNOWN" in str(place) else "CreateContainerError")
    # Nothing of the attempts is left that could start without its volume.
    assert up.list_cri_containers("--label", f"io.kubernetes.pod.name={name}") == []


def test_a_bad_image_volume_is_refused_by_the_api(up: CriUp) -> None:
    for source, why in (
        ({"reference": ""}, "spec.volumes[0].image.reference: Required value"),
        ({"reference": "a", "pullPolicy": "Sometimes"}, 'Unsupported value: "Sometimes"'),
    ):
        manifest = json.loads(make_pod("bad", **mount_model("a")))
        manifest["spec"]["volumes"][0]["image"] = source
        assert why in up.kubectl("apply", "-f", "-", stdin=json.dumps(manifest), check=False)


def test_a_container_that_is_restarted_has_its_volume_again(up: CriUp, registry: Registry, name: str) -> None:
    push_model(registry, "models/restarted:1")
    until_told = "cat /model/card; until [ -e /end ]; do sleep 0.1; done"
    up.run_pod(name, "sh", "-c", until_told, **mount_model("models/restarted:1"))
    up.exec(name, "touch", "/end")
    up.wait("it was restarted", lambda: up.find_status(name)["restartCount"] == 1)
    up.wait_ready(name)
    assert up.exec(name, "cat", "/model/small/weights") == "weights"
    assert len(list_image_mounts(up.runtime)) == 1


@pytest.mark.parametrize("how", ["stopped", "killed", "crashed"])
def test_a_node_that_comes_back_has_its_pods_with_their_images(
    up: CriUp, registry: Registry, name: str, how: str
) -> None:
    push_model(registry, "models/survivor:1")
    up.run_pod(name, **mount_model("models/survivor:1"))
    before = up.find_status(name)["containerID"]
    if how == "crashed":
        for verb in ("crash", "start"):
            subprocess.run([VOLPLANE, verb, "node/worker-1", "--data-dir", up.directory], check=True)
    else:
        up.kill() if how == "killed" else up.stop()
        up.start()
    up.wait_ready(name)
    up.wait("it reads its image", lambda: up.exec(name, "cat", "/model/card") == "about")
    assert (up.find_status(name)["containerID"] == before) == (how == "killed")
    assert len(list_image_mounts(up.runtime)) == 1
    up.kubectl("delete", "pod", name, "--timeout=60s")
    up.wait("the image is unmounted", lambda: not list_image_mounts(up.runtime))


@pytest.mark.parametrize("point", ["cri:CreateContainer:after", "cri:StartContainer:before"])
def test_a_kill_around_the_creation_leaves_one_container_with_its_image(
    up: CriUp, registry: Registry, name: str, point: str
) -> None:
    push_model(registry, "models/crash:1")
    up.stop()
    up.start({"VOLPLANE_FAILPOINT": point})
    up.apply(make_pod(name, **mount_model("models/crash:1")))
    up.wait_until_exit(60)
    up.start()
    up.wait_ready(name)
    assert up.exec(name, "cat", "/model/card") == "about"
    (own,) = up.list_cri_containers("--label", f"io.kubernetes.pod.name={name}")
    assert own["state"] == "CONTAINER_RUNNING"


async def test_an_image_that_is_mounted_is_not_collected(
    up: CriUp, registry: Registry, name: str, tmp_path: Path
) -> None:
    for model in ("models/unused:1", "models/mounted:1"):
        up.kubectl("delete", "pod", name, "--ignore-not-found", "--timeout=60s")
        push_model(registry, model, model)
        up.run_pod(name, **mount_model(model))
    async with AsyncExitStack() as stack:
        host = Host()
        stack.push_async_callback(host.close)
        cri = CriClient(up.runtime.endpoint)
        stack.push_async_callback(cri.close)
        ids = {model: await find_image(cri, model) for model in ("models/mounted:1", "models/unused:1")}
        pulled = PulledImages(str(tmp_path), host)
        for id in ids.values():
            await pulled.add(id)
        ignore = lambda reason, message: None  # noqa: E731
        collector = ImageCollector(cri, host, pulled, high=0, low=0, min_age=0.0, report=ignore)
        assert await collector.collect() == [ids["models/unused:1"]]
        assert await find_image(cri, "models/mounted:1") == ids["models/mounted:1"]


async def find_image(cri: CriClient, image: str) -> str:
    request = v1.ImageStatusRequest(image=v1.ImageSpec(image=image))
    reply: v1.ImageStatusResponse = await cri.call("ImageStatus", request)
    return reply.image.id


# --- a runtime that cannot


def test_debians_containerd_is_told_by_its_version_and_a_newer_one_runs_the_pod(
    own_containerd: Containerd, registry: Registry
) -> None:
    push_model(registry, "models/waiting:1")
    cluster = CriUp(own_containerd, nodes=1)
    with cluster:
        cluster.apply(make_pod("waiting", **mount_model("models/waiting:1")))
        why = cluster.wait_event("waiting", "Failed", 'image volume "model" cannot be mounted')
        assert "the container runtime containerd 1.6" in why
        assert "it needs containerd 2.1 or CRI-O 1.31, or a later version" in why
        assert cluster.find_state("waiting")["waiting"]["reason"] == "CreateContainerError"
        assert cluster.list_cri_containers() == []  # it never starts without its volume
        assert '"GET /v2/models/waiting/' not in registry.read_log()  # nothing was pulled for nothing
        if all(peers.find(program) for program in NEWER):
            own_containerd.stop()
            own_containerd.newer = True
            own_containerd.start()
            cluster.wait_ready("waiting")
            assert cluster.exec("waiting", "cat", "/model/card") == "about"
    assert cluster.leftovers() == {}


def test_a_container_that_is_built_into_the_node_is_told_that_it_cannot_mount_an_image(
    containerd: Containerd,
) -> None:
    manifest = json.loads(make_pod("built-in", **mount_model("models/small:1")))
    (container,) = manifest["spec"]["containers"]
    del container["command"]
    container |= {"image": "volplane/livenessprobe", "args": ["--csi-address=/model/csi.sock"]}
    cluster = CriUp(containerd, nodes=1)
    with cluster:
        cluster.apply(json.dumps(manifest))
        why = 'container "main" cannot mount the image volume "model": its own image is built into the node'
        cluster.wait_event("built-in", "Failed", why)
        waiting = cluster.find_state("built-in")["waiting"]
        assert waiting == {"reason": "CreateContainerConfigError", "message": why}
        cluster.run_pod("beside")  # other pods of the node are not held up
        cluster.kubectl("delete", "pod", "built-in", "beside", "--timeout=60s")
    assert cluster.leftovers() == {}
