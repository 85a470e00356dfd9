"""A driver found in its deployment manifests: arguments and environment with replaced paths."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.support import peers
from volplane.cluster import external_driver, user_drivers
from volplane.cluster.external_driver import Command, ExternalDriver, InvalidDriver
from volplane.cluster.external_driver.model import DiscoveredDriver, ImageCommand

IMAGE = "registry.example.com/driver"
PROGRAM = Command(("/opt/driver",), {"OWN": "1"}, "/opt")


def pod(name: str, kind: str, beside: str, container: str, volumes: str = "") -> str:
    return f"""
apiVersion: apps/v1
kind: {kind}
metadata: {{name: {name}}}
spec:
  template:
    spec:
      containers:
      - {{name: side, image: "registry.k8s.io/sig-storage/{beside}:v9"}}
      - {{name: driver, image: "{IMAGE}:v1", {container}}}
      volumes: [{{name: sock, emptyDir: {{}}}}, {volumes}]
"""


NODE = pod(
    "node",
    "DaemonSet",
    "csi-node-driver-registrar",
    'command: [/bin/driver, node], args: ["--endpoint=$(E)", --id=$(WHERE), --price=5$, --state=/data/x],'
    "env: [{name: E, value: unix:///csi/csi.sock},"
    " {name: WHERE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}],"
    "volumeMounts: [{name: sock, mountPath: /csi}, {name: data, mountPath: /data}]",
    "{name: data, hostPath: {path: /var/lib/x}}",
)
CONTROLLER = pod(
    "controller",
    "Deployment",
    "csi-provisioner",
    "args: [--socket=/sockets/c.sock], volumeMounts: [{name: sock, mountPath: /sockets}]",
)


FROM = NODE.replace(
    "env: [",
    "envFrom: [{configMapRef: {name: words}}, {secretRef: {name: login}, prefix: LOGIN_},"
    " {configMapRef: {name: none, optional: true}}], env: [{name: SIZE, value: $(DEPTH)m}, {name: KEY,"
    " valueFrom: {secretKeyRef: {name: login, key: KEY}}}, {name: MAYBE, valueFrom: {configMapKeyRef:"
    " {name: none, key: x, optional: true}}}, ",
)
WORDS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {DEPTH: "3", PRICE: 5$}
"""
LOGIN = """
apiVersion: v1
kind: Secret
metadata: {name: login}
data: {USER: bWU=}
stringData: {KEY: sesame}
"""
DRIVER = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: a}"
CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: x.example.com
volumeBindingMode: Immediate
"""


def read_deployed(*texts: str, program: Command = PROGRAM) -> ExternalDriver:
    things: list[Any] = [thing for text in texts for thing in yaml.safe_load_all(text)]
    return external_driver.from_manifests(things, {IMAGE: program})


def test_arguments_and_environment_stay_and_places_are_the_instances_own() -> None:
    made = read_deployed(NODE, CONTROLLER)
    assert made.node == Command(
        (
            "/opt/driver",
            "node",
            "--endpoint=unix://${CSI_SOCKET}",
            "--id=${NODE_ID}",
            "--price=5$$",
            "--state=${STATE_DIR}/data/x",
        ),
        {"OWN": "1", "E": "unix://${CSI_SOCKET}", "WHERE": "${NODE_ID}"},
        "/opt",
    )
    assert made.controller == Command(("/opt/driver", "--socket=${CSI_SOCKET}"), {"OWN": "1"}, "/opt")
    assert not made.is_single_program


def test_what_comes_from_maps_and_secrets_of_the_manifests_is_known() -> None:
    made = read_deployed(FROM, WORDS, LOGIN).node
    assert made is not None
    own = {name: value for name, value in made.env.items() if name not in ("OWN", "E", "WHERE")}
    assert own == {"DEPTH": "3", "PRICE": "5$$", "LOGIN_USER": "me", "LOGIN_KEY": "sesame", "SIZE": "3m"} | {
        "KEY": "sesame"
    }


def test_what_is_written_of_the_driver_is_taken_over() -> None:
    more = """
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: x.example.com}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: x.example.com
parameters: {speed: high}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: other}
provisioner: y.example.com
"""
    made = read_deployed(NODE, more)
    assert made.name == "x.example.com"
    assert [one.name for one in made.classes] == ["fast"]
    assert made.controller is None


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ((CONTROLLER,), "no pod of the manifests has the driver and a csi-node-driver-registrar"),
        (
            (NODE.replace(f'"{IMAGE}:v1"', "other"),),
            f"no container has the image {IMAGE} of --image; the manifests have other, registry.k8s.io/",
        ),
        ((NODE.replace("--state=/data/x", "-v"),), "/data is mounted, but no argument names it"),
        ((NODE.replace("unix:///csi/csi.sock", "tcp"),), "has the path of its socket"),
        (
            (NODE.replace("spec.nodeName", "spec.serviceAccountName"),),
            "the source of WHERE is not in the manifests: fieldRef spec.serviceAccountName",
        ),
        ((FROM,), "container driver: envFrom: the manifests have no ConfigMap words"),
        ((FROM, WORDS, LOGIN.replace("bWU=", "me!")), "Secret login: data.USER is not text in base64"),
        (
            (NODE.replace("containers:", "contained:"),),
            "DaemonSet node: spec.template.spec.containers is miss",
        ),
        ((NODE, CLASS.replace("Immediate", "[x]")), "StorageClass fast: "),
        (
            (NODE, DRIVER, DRIVER),
            "CSIDriver a",
        ),
    ],
    ids=[
        "no node",
        "no image",
        "no place",
        "no socket",
        "no field",
        "no map",
        "no base64",
        "no containers",
        "no class",
        "two drivers",
    ],
)
def test_what_cannot_be_found_out_is_said(texts: tuple[str, ...], why: str) -> None:
    with pytest.raises(InvalidDriver, match=why):
        read_deployed(*texts)


def test_a_place_that_the_image_is_told_need_not_be_in_the_manifests() -> None:
    program = Command(("/opt/driver", "--dir=${STATE_DIR}"), {}, "/opt")
    made = read_deployed(NODE.replace("--state=/data/x", "-v"), program=program)
    assert made.node is not None
    assert made.node.argv[:2] == ("/opt/driver", "--dir=${STATE_DIR}")


@pytest.mark.peer("hostpathplugin")
def test_upstreams_example_driver_is_found_in_its_own_manifests() -> None:
    (file,) = peers.manifests("hostpathplugin", "kubernetes-1.20/hostpath/csi-hostpath-plugin.yaml")
    program = Command(("/x/hostpathplugin", "--statedir=${STATE_DIR}"), {}, "/")
    made = external_driver.from_manifests(
        user_drivers.read_manifests(file.parent), {"k8s.gcr.io/sig-storage/hostpathplugin": program}
    )
    assert made.is_single_program
    assert made.name == "hostpath.csi.k8s.io"
    assert made.node is not None
    assert {"--endpoint=unix://${CSI_SOCKET}", "--nodeid=${NODE_ID}"} <= set(made.node.argv)


def test_the_flags_of_the_sidecars_are_the_authors() -> None:
    flags = (
        "args: [--csi-address=$(ADDRESS), -v=5, --timeout=90s, --leader-election, --http-endpoint, ':8080'],"
    )
    text = CONTROLLER.replace("{name: side, ", f"{{name: side, {flags} ").replace(
        "{name: side, ", "{name: side, env: [{name: ADDRESS, value: /csi/csi.sock}], "
    )
    assert read_deployed(NODE, text).deployed_sidecars == {"provisioner": ("--timeout=90s",)}
    assert read_deployed(NODE).deployed_sidecars == {}


ACCESS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: b}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reads}
subjects: [{kind: ServiceAccount, name: driver-account, namespace: kube-system}]
---
apiVersion: things.example.com/v1
kind: Thing
metadata: {name: one, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reads}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec: {names: {kind: Thing}}
"""


def test_what_the_driver_reads_and_may_do_is_taken_over_with_definitions_first() -> None:
    node = NODE.replace("      containers:", "      serviceAccountName: driver-account\n      containers:")
    driver = read_deployed(ACCESS, node)
    kinds = [thing["kind"] for thing in driver.resources]
    assert kinds == ["CustomResourceDefinition", "ClusterRole", "Thing"]
    assert driver.cluster_roles == ("reads",)
    assert driver.has_account


def test_a_variable_of_the_author_comes_after_those_that_it_refers_to() -> None:
    """A container's variable is expanded from earlier ones only."""
    command = Command(("/opt/driver",), {"CSI_ENDPOINT": "unix://$CSI_SOCKET"})
    driver = ExternalDriver(controller=command, node=command)
    made = external_driver.build_manifests(driver, external_driver.DiscoveredDriver(name="d.example.com"))
    manifest = next(m for m in map(user_drivers.to_manifest, made) if m["kind"] == "DaemonSet")
    containers = manifest["spec"]["template"]["spec"]["containers"]
    env = next(one for one in containers if one["name"] == "driver")["env"]
    names = [one["name"] for one in env]
    assert names.index("CSI_SOCKET") < names.index("CSI_ENDPOINT")
    assert names.count("CSI_ENDPOINT") == 1


# --- in its own image

OWN = NODE.replace("volumeMounts: [", "securityContext: {privileged: true}, volumeMounts: [").replace(
    "{name: data, mountPath: /data}",
    "{name: data, mountPath: /data}, {name: dev, mountPath: /d},"
    " {name: pods, mountPath: /var/lib/kubelet/pods}",
)
OWN = OWN.replace(
    "{name: data, hostPath: {path: /var/lib/x}}",
    "{name: data, hostPath: {path: /var/lib/x}}, {name: dev, hostPath: {path: /dev}},"
    " {name: pods, hostPath: {path: /var/lib/kubelet/pods}}",
)


def read_own(text: str) -> ExternalDriver:
    return external_driver.from_manifests(list(yaml.safe_load_all(text)), {IMAGE: Command(())})


def test_an_image_keeps_its_paths_and_gets_directories_there() -> None:
    node = read_own(OWN).node
    assert node is not None
    assert node.container == ImageCommand(
        f"{IMAGE}:v1", ("/bin/driver", "node"), True, {"/data": "data"}, {"/d": "/dev"}
    )
    assert node.argv == (
        "--endpoint=unix://${CSI_SOCKET}",
        "--id=${NODE_ID}",
        "--price=5$$",
        "--state=/data/x",
    )
    assert read_own(OWN).runs_images
    assert not external_driver.from_command("/bin/true").runs_images


def test_an_image_is_deployed_as_its_author_describes_it() -> None:
    facts = DiscoveredDriver(name="x.example.com", plugin=frozenset(), node_id="worker-1")
    (workload,) = (
        o for o in external_driver.build_manifests(read_own(OWN), facts) if type(o).__name__ == "DaemonSet"
    )
    spec = workload.spec.template.spec  # type: ignore[attr-defined]
    driver = next(c for c in spec.containers if c.name == "driver")
    assert (driver.image, driver.command) == (f"{IMAGE}:v1", ("/bin/driver", "node"))
    assert driver.args[0] == "--endpoint=unix://$(CSI_SOCKET)"
    places = {mount.mount_path: mount.name for mount in driver.volume_mounts}
    sources = {volume.name: volume.host_path.path for volume in spec.volumes if volume.host_path}
    assert sources[places["/data"]] == "/var/lib/kubelet/csi-data/x.example.com/data"
    assert sources[places["/d"]] == "/dev"
    assert places["/var/lib/kubelet"] == "kubelet"
