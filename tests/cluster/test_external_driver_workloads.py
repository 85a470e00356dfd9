"""The manifests of a driver from its capabilities: objects, sidecars, and where instances run."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from volplane.api.apps import DaemonSet, Deployment, StatefulSet
from volplane.api.core import Container, PodSpec, Secret
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.snapshot import VolumeSnapshotClass
from volplane.api.storage import CSIDriver, CSIDriverSpec, StorageClass
from volplane.cluster import external_driver
from volplane.cluster.external_driver import (
    Command,
    DeploymentShape,
    DiscoveredDriver,
    ExternalDriver,
    InvalidDriver,
)

T = TypeVar("T", bound=Resource)
NAME = "x.example.com"
CONTROLLER = frozenset({"CONTROLLER_SERVICE"})
PLACES = CONTROLLER | {"VOLUME_ACCESSIBILITY_CONSTRAINTS"}
COMMAND = Command(("/bin/sleep", "${NODE_ID}", "5$$"), {"LEVEL": "${POD_NAME}"}, "/etc")


def make_driver(**fields: Any) -> ExternalDriver:
    return ExternalDriver(controller=COMMAND, node=COMMAND, **fields)


def facts(*controller: str, plugin: frozenset[str] = CONTROLLER, **fields: Any) -> DiscoveredDriver:
    return DiscoveredDriver(
        name=NAME, plugin=plugin, controller=frozenset(controller), asked_as="probe", **fields
    )


def local(*controller: str) -> DiscoveredDriver:
    return facts(*controller, plugin=PLACES, topology={"x/node": "probe"}, node_id="probe")


def only(objects: list[Resource], kind: type[T]) -> T:
    (found,) = (o for o in objects if isinstance(o, kind))
    return found


def containers(
    objects: list[Resource], kind: type[Deployment | DaemonSet | StatefulSet]
) -> dict[str, Container]:
    return {c.name: c for c in pod(objects, kind).containers}


def pod(objects: list[Resource], kind: type[Deployment | DaemonSet | StatefulSet]) -> PodSpec:
    return only(objects, kind).spec.template.spec


@pytest.mark.parametrize(
    ("discovered", "expected"),
    [
        (facts("CREATE_DELETE_VOLUME"), DeploymentShape.CENTRAL),
        (facts("CREATE_DELETE_VOLUME", plugin=PLACES, topology={"zone": "a"}), DeploymentShape.CENTRAL),
        (local("CREATE_DELETE_VOLUME"), DeploymentShape.PER_NODE),
        (local("CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"), DeploymentShape.ONE_NODE),
        (local("CREATE_DELETE_VOLUME", "EXPAND_VOLUME"), DeploymentShape.ONE_NODE),
    ],
)
def test_where_the_instances_run_follows_from_the_topology(
    discovered: DiscoveredDriver, expected: DeploymentShape
) -> None:
    assert external_driver.resolve_shape(make_driver(), discovered) is expected


def test_nobody_can_attach_for_one_node_only() -> None:
    with pytest.raises(InvalidDriver, match=r"per-node is not possible for x\.example\.com, which attaches"):
        external_driver.resolve_shape(
            make_driver(shape=DeploymentShape.PER_NODE), local("PUBLISH_UNPUBLISH_VOLUME")
        )


def test_nobody_can_expand_for_one_node_only() -> None:
    made = external_driver.build_manifests(
        make_driver(shape=DeploymentShape.PER_NODE), local("CREATE_DELETE_VOLUME", "EXPAND_VOLUME")
    )
    assert "csi-resizer" not in containers(made, DaemonSet)
    assert not only(made, StorageClass).allow_volume_expansion


@pytest.mark.parametrize("together", [True, False], ids=["one program", "two programs"])
def test_where_only_nodes_expand_the_resizer_is_beside_one_that_knows(together: bool) -> None:
    discovered = facts("CREATE_DELETE_VOLUME", node=frozenset({"EXPAND_VOLUME"}))
    given = make_driver() if together else ExternalDriver(controller=COMMAND, node=Command(("/bin/true",)))
    made = external_driver.build_manifests(given, discovered)
    with_it = {k.__name__ for k in (Deployment, DaemonSet) if "csi-resizer" in containers(made, k)}
    assert with_it == ({"Deployment"} if together else {"DaemonSet"})
    assert only(made, StorageClass).allow_volume_expansion


def test_nodes_that_expand_by_themselves_need_no_common_controller() -> None:
    discovered = facts(
        "CREATE_DELETE_VOLUME",
        plugin=PLACES,
        topology={"x/node": "probe"},
        node_id="probe",
        node=frozenset({"EXPAND_VOLUME"}),
    )
    assert external_driver.resolve_shape(make_driver(), discovered) is DeploymentShape.PER_NODE
    made = external_driver.build_manifests(make_driver(), discovered)
    assert "--leader-election" in containers(made, DaemonSet)["csi-resizer"].args
    assert only(made, StorageClass).allow_volume_expansion


@pytest.mark.parametrize(
    ("discovered", "kinds"),
    [
        (facts("CREATE_DELETE_VOLUME"), (Deployment, DaemonSet)),
        (local("CREATE_DELETE_VOLUME"), (DaemonSet,)),
        (local("CREATE_DELETE_VOLUME", "EXPAND_VOLUME"), (StatefulSet,)),
    ],
    ids=["central", "per-node", "one-node"],
)
def test_every_instance_is_asked_whether_it_lives(
    discovered: DiscoveredDriver, kinds: tuple[Any, ...]
) -> None:
    made = external_driver.build_manifests(
        make_driver(sidecars={"liveness": ("--probe-timeout=9s",)}), discovered
    )
    for kind in kinds:
        found = containers(made, kind)
        assert found["liveness-probe"].args == (
            "--csi-address=/csi/csi.sock",
            "--health-port=9808",
            "--probe-timeout=9s",
        )
        probe = found["driver"].liveness_probe
        assert probe is not None
        assert probe.http_get is not None
        assert (probe.http_get.path, probe.http_get.port) == ("/healthz", 9808)


def test_the_author_knows_better() -> None:
    assert (
        external_driver.resolve_shape(make_driver(shape=DeploymentShape.PER_NODE), facts())
        is DeploymentShape.PER_NODE
    )


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (("CREATE_DELETE_VOLUME",), {"csi-provisioner"}),
        (("PUBLISH_UNPUBLISH_VOLUME",), {"csi-attacher"}),
        (("EXPAND_VOLUME",), {"csi-resizer"}),
        (("MODIFY_VOLUME",), {"csi-resizer"}),
        (("CREATE_DELETE_SNAPSHOT",), {"csi-snapshotter"}),
        ((), set()),
    ],
)
def test_a_capability_calls_for_its_sidecar(capabilities: tuple[str, ...], expected: set[str]) -> None:
    made = external_driver.build_manifests(make_driver(), facts(*capabilities))
    assert set(containers(made, Deployment)) == {"driver", "liveness-probe", *expected}
    assert set(containers(made, DaemonSet)) == {"driver", "node-driver-registrar", "liveness-probe"}


@pytest.mark.parametrize(
    ("said", "discovered", "kind", "flags"),
    [
        (None, facts("CREATE_DELETE_VOLUME"), Deployment, ["--timeout=60s"]),
        (True, facts("CREATE_DELETE_VOLUME"), Deployment, ["--timeout=60s"]),
        (False, facts("CREATE_DELETE_VOLUME"), Deployment, None),
        (None, local("CREATE_DELETE_VOLUME"), DaemonSet, ["--timeout=60s", "--leader-election"]),
    ],
)
def test_who_says_that_volumes_are_attached_has_somebody_who_notes_it(
    said: bool | None,
    discovered: DiscoveredDriver,
    kind: type[Deployment | DaemonSet],
    flags: list[str] | None,
) -> None:
    own = CSIDriver(ObjectMeta(name=NAME), CSIDriverSpec(attach_required=said))
    found = containers(external_driver.build_manifests(make_driver(driver=own), discovered), kind).get(
        "csi-attacher"
    )
    assert (found is None) is (flags is None)
    if found is not None and flags is not None:
        assert [flag for flag in found.args if not flag.startswith("--csi-address")] == flags


def test_a_driver_without_a_controller_has_only_its_nodes() -> None:
    discovered = facts(plugin=frozenset())
    made = external_driver.build_manifests(ExternalDriver(node=COMMAND), discovered)
    assert not any(isinstance(o, Deployment | StorageClass) for o in made)
    spec = only(made, CSIDriver).spec
    assert spec.volume_lifecycle_modes == ("Persistent", "Ephemeral")
    assert spec.pod_info_on_mount


@pytest.mark.parametrize("attaches", [True, False])
def test_attaching_is_required_where_the_driver_does_it(attaches: bool) -> None:
    discovered = facts("CREATE_DELETE_VOLUME", *(["PUBLISH_UNPUBLISH_VOLUME"] if attaches else []))
    assert (
        only(external_driver.build_manifests(make_driver(), discovered), CSIDriver).spec.attach_required
        is attaches
    )


def test_a_class_waits_for_its_pod_where_places_differ() -> None:
    near = only(external_driver.build_manifests(make_driver(), local("CREATE_DELETE_VOLUME")), StorageClass)
    far = only(
        external_driver.build_manifests(make_driver(), facts("CREATE_DELETE_VOLUME", "EXPAND_VOLUME")),
        StorageClass,
    )
    assert (near.volume_binding_mode, far.volume_binding_mode) == ("WaitForFirstConsumer", "Immediate")
    assert (near.allow_volume_expansion or False, far.allow_volume_expansion) == (False, True)
    assert near.name == NAME
    assert "storageclass.kubernetes.io/is-default-class" in near.metadata.annotations


def test_room_is_published_where_places_differ() -> None:
    made = external_driver.build_manifests(make_driver(), local("CREATE_DELETE_VOLUME", "GET_CAPACITY"))
    assert only(made, CSIDriver).spec.storage_capacity is True
    assert "--enable-capacity" in containers(made, DaemonSet)["csi-provisioner"].args
    everywhere = external_driver.build_manifests(make_driver(), facts("CREATE_DELETE_VOLUME", "GET_CAPACITY"))
    assert only(everywhere, CSIDriver).spec.storage_capacity is False


def test_an_instance_on_every_node_looks_after_its_own() -> None:
    made = external_driver.build_manifests(
        make_driver(), local("CREATE_DELETE_VOLUME", "CREATE_DELETE_SNAPSHOT")
    )
    found = containers(made, DaemonSet)
    assert set(found) - {"csi-provisioner", "csi-snapshotter"} == {
        "driver",
        "node-driver-registrar",
        "liveness-probe",
    }
    assert "--node-deployment" in found["csi-provisioner"].args
    assert "--node-deployment" in found["csi-snapshotter"].args
    assert only(made, VolumeSnapshotClass).name == NAME


def test_one_instance_stays_on_its_node_and_draws_the_pods_there() -> None:
    made = external_driver.build_manifests(
        make_driver(), local("CREATE_DELETE_VOLUME", "EXPAND_VOLUME"), node="worker-7"
    )
    assert pod(made, StatefulSet).node_selector == {"kubernetes.io/hostname": "worker-7"}
    (term,) = only(made, StorageClass).allowed_topologies
    assert [(e.key, e.values) for e in term.match_label_expressions] == [("x/node", ("worker-7",))]


def test_what_the_author_gives_is_not_derived() -> None:
    own = StorageClass(metadata=ObjectMeta(name="own"), provisioner=NAME)
    discovered = CSIDriver(metadata=ObjectMeta(name=NAME))
    secret = Secret(metadata=ObjectMeta(name="s"))
    given = make_driver(
        classes=(own,), driver=discovered, secrets=(secret,), sidecars={"provisioner": ("--timeout=1s",)}
    )
    made = external_driver.build_manifests(given, facts("CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"))
    assert only(made, StorageClass) is own
    assert only(made, CSIDriver) is discovered
    assert only(made, Secret).namespace == "x-example-com"
    assert containers(made, Deployment)["csi-provisioner"].args[-1] == "--timeout=1s"


def test_the_drivers_container_has_what_its_command_asks_for() -> None:
    driver = containers(
        external_driver.build_manifests(make_driver(), facts("CREATE_DELETE_VOLUME")), DaemonSet
    )["driver"]
    assert driver.command == ("/bin/sleep", "$(NODE_ID)", "5$$")
    assert driver.working_dir == "/etc"
    env = {e.name: e.value or e.value_from for e in driver.env}
    assert env["LEVEL"] == "$(POD_NAME)"
    assert env["CSI_ENDPOINT"] == "unix:///csi/csi.sock"
    assert env["CSI_MODE"] == "node"
    names = [e.name for e in driver.env]
    assert names.index("POD_NAME") < names.index("LEVEL"), "a variable is known only after its own line"


def test_what_a_container_would_not_see_is_brought_in(tmp_path: Any) -> None:
    program = tmp_path / "bin" / "driver"
    program.parent.mkdir()
    program.touch()
    here = Command((str(program), "--config=/etc/passwd"), {}, str(tmp_path))
    made = external_driver.build_manifests(
        ExternalDriver(controller=here, node=here), facts("CREATE_DELETE_VOLUME")
    )
    mounts = [m.mount_path for m in containers(made, DaemonSet)["driver"].volume_mounts]
    assert str(tmp_path) in mounts
    assert not any(path.startswith("/etc") for path in mounts)


def test_ready_means_registered_and_available() -> None:
    nodes = ("worker-1", "worker-2")
    central = external_driver.expected_driver(make_driver(), facts("CREATE_DELETE_VOLUME"), nodes)
    assert (central.driver, central.nodes) == (NAME, nodes)
    assert central.workload is not None
    assert central.workload.kind == "Deployment"
    one = external_driver.expected_driver(
        make_driver(), local("CREATE_DELETE_VOLUME", "EXPAND_VOLUME"), nodes
    )
    assert one.nodes == ("worker-1",)


def test_flags_of_the_authors_manifests_replace_the_defaults() -> None:
    creates = facts("CREATE_DELETE_VOLUME", "CREATE_DELETE_SNAPSHOT")
    own = external_driver.build_manifests(
        make_driver(deployed_sidecars={"provisioner": ("--timeout=90s",)}), creates
    )
    found = containers(own, Deployment)
    assert list(found["csi-provisioner"].args)[1:] == ["--timeout=90s"]
    assert list(found["csi-snapshotter"].args)[1:] == []


@pytest.mark.parametrize(("given", "published"), [(("--enable-capacity",), True), ((), False)])
def test_capacity_is_published_if_the_authors_provisioner_does(
    given: tuple[str, ...], published: bool
) -> None:
    spread = facts("CREATE_DELETE_VOLUME", "GET_CAPACITY", plugin=PLACES, topology={"zone": "a"})
    own = external_driver.build_manifests(make_driver(deployed_sidecars={"provisioner": given}), spread)
    arguments = containers(own, Deployment)["csi-provisioner"].args
    assert ("--enable-capacity" in arguments, "--capacity-ownerref-level=2" in arguments) == (
        published,
        published,
    )
