"""Manifests and programs that replace images."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from volplane.base.settings import parse
from volplane.cluster import user_drivers
from volplane.cluster.builtin_images import UNUSED, BuiltinImages
from volplane.cluster.readiness import WorkloadRef
from volplane.cluster.sidecar_roles import find_grants
from volplane.cluster.user_drivers import BadImage, BadManifest, DiscoveredDrivers, UserDrivers
from volplane.node.containers.task import TaskContext
from volplane.node.image_overrides import ImageOverride, ImageOverrides, image_repository
from volplane.sidecars import liveness, provisioner, registrar
from volplane.sidecars.attacher import service as attacher
from volplane.sidecars.resizer import service as resizer
from volplane.sidecars.snapshotter import service as snapshotter

ITSELF = ImageOverride(())
SLEEP = ImageOverride(("/bin/sleep", "$(A)"), {"B": "$(A)!"})


def test_a_program_takes_the_place_of_the_entry_point() -> None:
    values = {"A": "7"}
    assert SLEEP.command((), values) == ("/bin/sleep", "7")
    assert SLEEP.command(("/driver", "--x"), values) == ("/bin/sleep", "7", "--x")
    assert SLEEP.command(("/bin/sh", "-c", "exec /driver"), values) == ("/bin/sh", "-c", "exec /driver")
    assert SLEEP.environment(values) == {"B": "7!"}


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("a", "a"),
        ("a:v1", "a"),
        ("r.io/b/a:v1", "r.io/b/a"),
        ("r.io:5000/a", "r.io:5000/a"),
        ("r.io:5000/a:v1@sha256:00", "r.io:5000/a"),
    ],
)
def test_a_tag_is_not_part_of_a_name(image: str, name: str) -> None:
    assert image_repository(image) == name


def test_a_program_stands_for_all_versions_or_for_one() -> None:
    one, other = ImageOverride(("/one",)), ImageOverride(("/other",))
    programs = ImageOverrides({"r.io/a": one, "r.io/a:v2": other})
    assert programs.get("r.io/a:v1@sha256:00") is one
    assert programs.get("r.io/a:v2@sha256:00") is other
    assert programs.get("r.io/b") is None


async def _nothing(context: TaskContext) -> None: ...


@pytest.mark.parametrize(
    ("image", "built_in"),
    [
        ("volplane/csi-attacher", True),
        ("registry.k8s.io/sig-storage/csi-attacher:v4.8.0", True),
        ("k8s.gcr.io/sig-storage/csi-attacher", True),
        ("public.ecr.aws/x/csi-attacher:v4@sha256:00", True),
        ("mine/csi-attacher:v1", False),
        ("itself/csi-attacher:v1", False),
        ("registry.k8s.io/sig-storage/hostpathplugin:v1", False),
    ],
)
def test_upstreams_sidecars_are_built_in_whatever_the_registry(image: str, built_in: bool) -> None:
    images = BuiltinImages(
        {"volplane/csi-attacher": _nothing},
        ImageOverrides({"mine/csi-attacher": SLEEP, "itself/csi-attacher": ITSELF}),
    )
    assert (image in images) is built_in
    assert (images.get(image) is _nothing) is built_in


# As manifests of several drivers and years have them.
FLAGS = {
    provisioner: "-v=2 --csi-address=/csi/csi.sock --feature-gates=Topology=true --connection-timeout=15s"
    " --leader-election --leader-election-type=leases --leader-election-namespace=x"
    " --retry-interval-start=500ms --retry-interval-max=5m --default-fstype=ext4 --extra-create-metadata"
    " --kube-api-qps=20"
    " --kube-api-burst=100 --worker-threads=100 --strict-topology --volume-name-prefix=pvc"
    " --http-endpoint=:8080 --enable-capacity --capacity-ownerref-level=2 --automaxprocs=true --master=",
    attacher: "--v=5 --csi-address=$ADDRESS --timeout=60s --leader-election=true --logtostderr"
    " --default-fstype=ext4 --reconcile-sync=1m --resync=10m --kubeconfig=/x --max-entries=100",
    resizer: "-v=5 -csi-address=/csi/csi.sock -timeout=240s -leader-election -handle-volume-inuse-error=false"
    " -feature-gates=VolumeAttributesClass=true -workers=10",
    snapshotter: "--v=5 --csi-address=/csi/csi.sock --leader-election --extra-create-metadata --timeout=300s"
    " --snapshot-name-prefix=snap --snapshot-name-uuid-length=-1 --connection-timeout=15s",
    registrar: "--v=5 --csi-address=/csi/csi.sock --kubelet-registration-path=/x/csi.sock --health-port=9809"
    " --plugin-registration-path=/registration --connection-timeout=15s --mode=node-register",
    liveness: "--csi-address=/csi/csi.sock --probe-timeout=3s --health-port=9808 --connection-timeout=15s",
}


@pytest.mark.parametrize("sidecar", FLAGS, ids=lambda sidecar: sidecar.__name__.split(".")[2])
def test_sidecars_are_told_what_manifests_tell_upstreams(sidecar: ModuleType) -> None:
    options = getattr(sidecar, f"{sidecar.__name__.split('.')[2].capitalize()}Options")
    assert parse(options, FLAGS[sidecar].split(), unused=UNUSED).csi_address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a=", 'not "a="'),
        ("=b", 'not "=b"'),
        ("a=/no/thing", "--image a: /no/thing does not exist"),
    ],
)
def test_an_image_that_maps_to_nothing(text: str, why: str) -> None:
    with pytest.raises(BadImage, match=why):
        user_drivers.parse_image_program(text)


def test_an_image_without_a_command_runs_itself_if_there_is_a_runtime() -> None:
    assert user_drivers.parse_image_program("r.io/csi-snapshotter:v1") == ("r.io/csi-snapshotter:v1", ITSELF)
    lines = dict(
        [user_drivers.parse_image_option("r.io/a"), user_drivers.parse_image_option("r.io/b=sleep 1")]
    )
    user_drivers.check_own_images(lines, "unix:///run/some.sock")
    with pytest.raises(BadImage, match=r"--image r\.io/a has no command: give r\.io/a=path-or-command, or "):
        user_drivers.check_own_images(lines, "")


@pytest.mark.parametrize("program", [None, ITSELF, SLEEP], ids=["built-in", "its-own-image", "a-program"])
def test_a_sidecar_gets_the_roles_of_what_runs(program: ImageOverride | None) -> None:
    container = {"name": "s", "image": "r.io/csi-snapshotter:v8"}
    pod = {"kind": "Pod", "metadata": {}, "spec": {"serviceAccountName": "x", "containers": [container]}}
    programs = {} if program is None else {"r.io/csi-snapshotter": program}
    found = {
        (each["kind"], each["metadata"]["name"]) for each in find_grants([pod], ImageOverrides(programs))
    }
    name = "volplane:default:x:snapshotter"
    common = {("ClusterRoleBinding", name), ("RoleBinding", "volplane:x:leases")}
    upstreams = {("ClusterRole", "volplane:upstream-snapshotter"), ("ClusterRoleBinding", f"{name}:upstream")}
    assert found == (set() if program is SLEEP else common | upstreams if program is ITSELF else common)


def test_an_image_is_a_command_with_its_own_arguments() -> None:
    image, program = user_drivers.parse_image_program("r.io/a:v1=LEVEL=3 sleep $NODE_ID --x=y")
    assert image == "r.io/a:v1"
    assert program.argv[1:] == ("$(NODE_ID)", "--x=y")
    assert program.env == {"LEVEL": "3"}


def test_a_directory_is_read_as_kubectl_reads_it(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: b}\n---\n---\n")
    items = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n}} for n in ("x", "y")]
    (tmp_path / "a.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (tmp_path / "notes.txt").write_text("not a manifest")
    (tmp_path / "k.yaml").write_text("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
    assert [o["metadata"]["name"] for o in user_drivers.read_manifests(tmp_path)] == ["x", "y", "b"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("a: [", "m.yaml"), ("a: 1", "m.yaml: an object without kind and apiVersion"), ("", "has no objects")],
)
def test_what_is_no_manifest(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(BadManifest, match=why):
        user_drivers.read_manifests(file)
    with pytest.raises(BadManifest, match="does not exist"):
        user_drivers.read_manifests(tmp_path / "none")


def make_manifest(kind: str, name: str, **fields: object) -> user_drivers.Manifest:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def test_what_others_need_comes_first_and_workloads_are_awaited() -> None:
    objects = (
        make_manifest("DaemonSet", "node"),
        make_manifest("Deployment", "none", spec={"replicas": 0}),
        make_manifest("ServiceAccount", "sa"),
        make_manifest("Namespace", "ns"),
    )
    learned = DiscoveredDrivers(UserDrivers(manifests=objects))
    assert [o["metadata"]["name"] for o in learned.manifests("/shared")] == ["ns", "sa", "node", "none"]
    assert [e.workload for e in learned.expected_drivers(["worker-1"])] == [
        WorkloadRef("DaemonSet", "default", "node")
    ]
