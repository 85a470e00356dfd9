"""What is in deploy/: derived files are fresh, and the chart says what `volplane up` applies."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from typing import Any

import click
import pytest
import yaml

from tools import deploy, lock
from volplane.cli import volplane

Object = dict[str, Any]

# The images that `volplane up` brings as coroutines, and the verb that is the same program as a process.
VERBS = {
    "ebs-plugin": ["driver"],
    "efs-plugin": ["driver"],
    "csi-provisioner": ["provisioner"],
    "csi-attacher": ["attacher"],
    "csi-resizer": ["resizer"],
    "csi-snapshotter": ["snapshotter"],
    "csi-node-driver-registrar": ["registrar"],
    "livenessprobe": ["liveness"],
    "node-fencer": ["fencer"],
}
# What a real cluster needs in addition: a kubelet that probes, a place for data, the node's own limit.
MORE = ("--http-endpoint", "--driver", "--shared-dir", "--volume-attach-limit")
LESS = ("--health-port",)  # of loopback only, where nobody but us asks


def shipped() -> dict[tuple[str, str], Object]:
    """What `volplane up` applies."""
    found: dict[tuple[str, str], Object] = {}
    for file in (resources.files("volplane") / "manifests").iterdir():
        if file.name.endswith(".yaml"):
            found |= by_name(yaml.safe_load_all(file.read_text()))
    return found


def by_name(objects: Any) -> dict[tuple[str, str], Object]:
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


CHART = by_name(deploy.objects())
SHIPPED = shipped()
WORKLOADS = [key for key in CHART if key[0] in ("Deployment", "DaemonSet")]
BOTH = [key for key in WORKLOADS if key in SHIPPED]
CONTAINERS = [
    pytest.param(key, container, id=f"{key[1]}/{container['name']}")
    for key in WORKLOADS
    for container in CHART[key]["spec"]["template"]["spec"]["containers"]
]


def containers(workload: Object) -> dict[str, Object]:
    return {c["name"]: c for c in workload["spec"]["template"]["spec"]["containers"]}


def test_the_derived_files_are_fresh() -> None:
    for path, text in deploy.files().items():
        assert path.read_text() == text, f"{path.name}: run `make deploy`"
    listed = {p.name for p in deploy.OUTPUT.iterdir()}
    assert listed == {p.name for p in deploy.files() if p.parent == deploy.OUTPUT}


def test_the_images_lock_is_part_of_the_whole_one() -> None:
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text())
    wanted = lock.select_entries(lock.image_packages(project))
    assert wanted == lock.IMAGE.read_text(), "run `python tools/lock.py --image`"
    assert lock.parse_lock(wanted).items() <= lock.parse_lock(lock.WHOLE.read_text()).items()


@pytest.mark.parametrize("key", [k for k in CHART if k[0] in ("CSIDriver", "StorageClass")], ids=str)
def test_drivers_and_classes_are_those_that_up_brings(key: tuple[str, str]) -> None:
    assert CHART[key] == SHIPPED[key]


@pytest.mark.parametrize("key", [k for k in CHART if k[0].endswith("SnapshotClass")], ids=str)
def test_classes_of_snapshots_are_those_that_up_brings(key: tuple[str, str]) -> None:
    assert CHART[key] == SHIPPED[key]


@pytest.mark.parametrize("key", [k for k in CHART if k[0] in ("ClusterRole", "Role")], ids=str)
def test_a_role_may_do_what_it_may_in_our_own_cluster(key: tuple[str, str]) -> None:
    kind, name = key
    # The sidecars of the two drivers are the same programs.
    name_here = re.sub(r"^e[bf]s-external-(\w+)-role$", r"volplane:external-\1", name)
    twin = SHIPPED.get((kind, name_here.replace("efs-", "ebs-", 1)))
    own = {"ebs-csi-node-role", "snapshot-controller-role", "snapshot-controller-leases-role"}
    assert (twin is None) == (name in own)
    if twin is not None:
        assert CHART[key]["rules"] == twin["rules"]


def test_nobody_may_do_everything() -> None:
    for key, role in CHART.items():
        for rule in role.get("rules", ()):
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert "*" not in words, key
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["get"], key


@pytest.mark.parametrize("key", BOTH, ids=str)
def test_a_workload_has_the_containers_and_flags_of_ours(key: tuple[str, str]) -> None:
    ours, theirs = containers(SHIPPED[key]), containers(CHART[key])
    assert theirs.keys() - ours.keys() <= {"liveness-probe"}
    assert ours.keys() <= theirs.keys()
    for name, container in ours.items():
        verb = VERBS[container["image"].removeprefix("volplane/")]
        wanted = [*verb, *(expanded(container))]
        found = expanded(theirs[name])
        assert without(found, MORE) == without(wanted, LESS), name


def expanded(container: Object) -> list[str]:
    """The arguments with the container's own variables filled in, as a kubelet does."""
    found = []
    for text in container.get("args", ()):
        for variable in container.get("env", ()):
            text = text.replace(f"$({variable['name']})", variable.get("value", ""))
        found.append(text)
    return found


def without(arguments: list[str], flags: tuple[str, ...]) -> list[str]:
    return [a for a in arguments if a.partition("=")[0] not in flags]


@pytest.mark.parametrize(("key", "container"), CONTAINERS)
def test_every_container_starts_with_flags_that_exist(key: tuple[str, str], container: Object) -> None:
    verb, *arguments = expanded(container)
    context = click.Context(volplane, info_name="volplane")
    command = volplane.get_command(context, verb)
    assert command is not None
    command.make_context(verb, arguments, parent=context).close()  # it parses, or raises


@pytest.mark.parametrize("key", WORKLOADS, ids=str)
def test_every_probe_finds_somebody_who_listens(key: tuple[str, str]) -> None:
    pod = CHART[key]["spec"]["template"]["spec"]
    flags = [a for c in pod["containers"] for a in c.get("args", ())]
    listening = {a.rpartition(":")[2] for a in flags if a.startswith("--http-endpoint=:")}
    named = {p["name"]: str(p["containerPort"]) for c in pod["containers"] for p in c.get("ports", ())}
    probed = [c[p]["httpGet"] for c in pod["containers"] for p in c if p.endswith("Probe")]
    assert {named[p["port"]] for p in probed} == listening
    assert len(set(named.values())) == len(named)


def test_ports_on_the_nodes_own_network_are_not_shared() -> None:
    on_host = {"node": {"hostNetwork": True}}
    chart = by_name(deploy.objects({"ebs": on_host, "efs": on_host}))
    pods = [chart[key]["spec"]["template"]["spec"] for key in WORKLOADS]
    ports = [
        p["containerPort"]
        for pod in pods
        if pod.get("hostNetwork")
        for c in pod["containers"]
        for p in c.get("ports", ())
    ]
    assert len(ports) == len(set(ports)) > 0


@pytest.mark.parametrize(("key", "container"), CONTAINERS)
def test_only_who_mounts_is_privileged(key: tuple[str, str], container: Object) -> None:
    mounts = key[0] == "DaemonSet" and container["name"].endswith("-plugin")
    security = container["securityContext"]
    assert security.get("privileged", False) is mounts
    if not mounts:
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"]["drop"] == ["ALL"]
    assert container["resources"]["requests"]
    assert container["image"].endswith(":0.2.0")


def test_the_switches_of_the_chart_switch() -> None:
    def kinds(**values: Any) -> set[str]:
        return {o["metadata"]["name"] for o in deploy.objects(values)}

    everything = kinds()
    assert "ebs-csi-node" not in kinds(ebs={"enabled": False})
    assert "gp3" not in kinds(ebs={"enabled": False})
    assert {"efs-csi-node", "efs"}.isdisjoint(kinds(efs={"enabled": False}))
    assert "snapshot-controller" not in kinds(snapshotController={"enabled": False})
    assert everything - kinds(classes={"enabled": False}) >= {"gp3", "csi-aws-vsc", "efs"}
    assert everything - kinds(ebs={"fencer": False}) == {"ebs-node-fencer-role", "ebs-node-fencer-binding"}
    changed = by_name(
        deploy.objects(
            {
                "image": {"repository": "registry.example.com/v", "tag": "1.2"},
                "imagePullSecrets": [{"name": "pull"}],
                "ebs": {
                    "endpoint": "http://disks.example.com",
                    "controller": {"serviceAccountAnnotations": {"role": "arn:1"}},
                },
            }
        )
    )
    account = changed["ServiceAccount", "ebs-csi-controller-sa"]
    assert account["metadata"]["annotations"] == {"role": "arn:1"}
    pod = changed["Deployment", "ebs-csi-controller"]["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    plugin = pod["containers"][0]
    assert plugin["image"] == "registry.example.com/v:1.2"
    assert {"name": "AWS_ENDPOINT_URL", "value": "http://disks.example.com"} in plugin["env"]
