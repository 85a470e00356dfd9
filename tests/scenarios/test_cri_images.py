"""Images: pull policies, tags and digests, secrets for private registries, and pulls that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.cri import image
from tests.support.cri.cluster import CriUp, make_pod
from tests.support.cri.containerd import Containerd
from tests.support.cri.fixtures import PRIVATE
from tests.support.cri.registry import PASSWORD, USER, Registry

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl", "crictl"), pytest.mark.slow]


@pytest.fixture(scope="module")
def up(containerd: Containerd) -> Iterator[CriUp]:
    cluster = CriUp(containerd, nodes=1)
    with cluster:
        yield cluster
    assert cluster.leftovers() == {}


@pytest.fixture
def name(up: CriUp, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for a pod, which is deleted in the end."""
    made = request.node.originalname.removeprefix("test_").replace("_", "-")[:50].rstrip("-")
    yield made
    up.kubectl("delete", "pod", made, "--ignore-not-found", "--force", "--grace-period=0")


def push_version(registry: Registry, text: str, *names: str) -> image.OciImage:
    """Push an image with a file `/version`."""
    made = image.busybox().add_files({"version": text})
    registry.push(made, *names)
    return made


def apply(up: CriUp, name: str, chosen: str, policy: str = "", **spec: object) -> None:
    fields = {"image": chosen, **({"imagePullPolicy": policy} if policy else {})}
    up.apply(make_pod(name, container=fields, **spec))


def count_requests(registry: Registry, repository: str) -> int:
    return registry.read_log().count(f"/v2/{repository}/")


# --- policies, tags, digests


def test_a_tag_is_fetched_anew_only_by_the_policy_always(up: CriUp, registry: Registry, name: str) -> None:
    push_version(registry, "one", "library/moving:v1")
    apply(up, name, "moving:v1")
    up.wait_ready(name)
    assert up.exec(name, "cat", "/version") == "one"
    up.kubectl("delete", "pod", name)
    push_version(registry, "two", "library/moving:v1")
    apply(up, name, "moving:v1", "IfNotPresent")
    up.wait_ready(name)
    assert up.exec(name, "cat", "/version") == "one"
    up.wait_event(name, "Pulled", 'Container image "moving:v1" already present on machine')
    up.kubectl("delete", "pod", name)
    apply(up, name, "moving:v1", "Always")
    up.wait_ready(name)
    assert up.exec(name, "cat", "/version") == "two"
    up.wait_event(name, "Pulled", 'Successfully pulled image "moving:v1" in ')


def test_a_digest_is_what_runs_whatever_its_tag_says_now(up: CriUp, registry: Registry, name: str) -> None:
    old = push_version(registry, "old", "library/pinned:v1")
    push_version(registry, "new", "library/pinned:v1")
    apply(up, name, f"pinned@{old.digest}")
    up.wait_ready(name)
    assert up.exec(name, "cat", "/version") == "old"
    assert up.find_status(name)["imageID"] == f"docker.io/library/pinned@{old.digest}"


def test_the_policy_never_pulls_nothing(up: CriUp, registry: Registry, name: str) -> None:
    push_version(registry, "unseen", "library/unseen:v1")
    before = count_requests(registry, "library/unseen")
    apply(up, name, "unseen:v1", "Never")
    message = 'Container image "unseen:v1" is not present with pull policy of Never'
    up.wait_event(name, "ErrImageNeverPull", message)
    assert up.find_state(name)["waiting"] == {"reason": "ErrImageNeverPull", "message": message}
    assert count_requests(registry, "library/unseen") == before


# --- failures


def test_a_missing_image_is_tried_again_until_it_is_there(up: CriUp, registry: Registry, name: str) -> None:
    apply(up, name, "late:v1")
    failure = up.wait_event(name, "Failed", 'Failed to pull image "late:v1"')
    assert "not found" in failure
    up.wait_event(name, "Failed", "Error: ErrImagePull")
    up.wait_event(name, "BackOff", 'Back-off pulling image "late:v1"')
    up.wait_event(name, "Failed", "Error: ImagePullBackOff")
    waits = ("ErrImagePull", "ImagePullBackOff")
    assert up.find_state(name)["waiting"]["reason"] in waits
    assert up.phase(name) == "Pending"
    push_version(registry, "late", "library/late:v1")
    up.wait_ready(name)
    assert up.exec(name, "cat", "/version") == "late"
    assert up.find_status(name)["restartCount"] == 0


def test_a_name_that_is_none_is_refused(up: CriUp, name: str) -> None:
    apply(up, name, "Not-A-Name")
    up.wait_event(name, "InspectFailed", 'Failed to apply default image tag "Not-A-Name"')
    assert up.find_state(name)["waiting"]["reason"] == "InvalidImageName"


def test_damaged_data_of_the_registry_does_not_run(up: CriUp, registry: Registry, name: str) -> None:
    damaged = push_version(registry, "damaged", "library/broken:v1")
    registry.damage(damaged.layers[-1].data)
    apply(up, name, "broken:v1")
    up.wait_event(name, "Failed", 'Failed to pull image "broken:v1"')
    assert up.phase(name) == "Pending"


def test_one_pod_that_waits_for_its_image_does_not_stop_another(
    up: CriUp, registry: Registry, name: str
) -> None:
    apply(up, name, "never-there:v1")
    up.wait_event(name, "Failed", "never-there")
    up.run_pod("beside")
    up.kubectl("delete", "pod", "beside")
    up.kubectl("delete", "pod", name, "--timeout=60s")  # it goes although it never ran
    assert not up.items("pods")


# --- private registries


def create_secret(up: CriUp, name: str, user: str, password: str) -> None:
    up.kubectl(
        "create", "secret", "docker-registry", name,
        f"--docker-server={PRIVATE}", f"--docker-username={user}", f"--docker-password={password}",
    )  # fmt: skip


def test_a_private_image_needs_the_pods_secret(up: CriUp, private_registry: Registry, name: str) -> None:
    push_version(private_registry, "private", "team/private:v1")  # no other test has pulled it
    chosen = f"{PRIVATE}/team/private:v1"
    apply(up, name, chosen)
    refused = up.wait_event(name, "Failed", "Failed to pull image")
    assert "401" in refused or "authorization failed" in refused
    up.kubectl("delete", "pod", name)
    create_secret(up, "right", USER, PASSWORD)
    apply(up, name, chosen, imagePullSecrets=[{"name": "missing"}, {"name": "right"}])
    up.wait_ready(name)
    up.wait_event(name, "FailedToRetrieveImagePullSecret", "missing")


def test_a_wrong_password_is_refused_and_a_service_account_may_have_the_right_one(
    up: CriUp, private_registry: Registry, name: str
) -> None:
    push_version(private_registry, "guarded", "team/guarded:v1")
    chosen = f"{PRIVATE}/team/guarded:v1"
    create_secret(up, "wrong", USER, "guess")
    apply(up, name, chosen, imagePullSecrets=[{"name": "wrong"}])
    up.wait_event(name, "Failed", "Failed to pull image")
    up.kubectl("delete", "pod", name)
    create_secret(up, "account-secret", USER, PASSWORD)
    patch = json.dumps({"imagePullSecrets": [{"name": "account-secret"}]})
    up.kubectl("patch", "serviceaccount", "default", "-p", patch)
    apply(up, name, chosen)
    up.wait_ready(name)
    assert up.exec(name, "cat", "/version") == "guarded"
    up.kubectl("patch", "serviceaccount", "default", "-p", json.dumps({"imagePullSecrets": None}))
