"""Built-in images do not lend their privileges: the cloud account, the machine's mounts, the API server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.loops.inprocess import until, world
from tests.node.node_env import node_env
from tests.security.test_csi_replies import raw_driver
from tests.support.up import Up
from volplane.api.core import (
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    Secret,
    ServiceAccount,
)
from volplane.api.errors import Forbidden
from volplane.api.meta import ObjectMeta
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject
from volplane.api.storage import StorageClass
from volplane.apiserver.auth.authorize import Attributes
from volplane.apiserver.strategy import RequestUser
from volplane.cluster.builtin_images import ImageDeps, _resolve_socket, builtin_images, service_account_client
from volplane.cluster.sidecar_clients import account_client
from volplane.cluster.sidecar_roles import find_grants
from volplane.csi import v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import CallError, Code
from volplane.drivers import ebs
from volplane.host import Host, NodePaths
from volplane.node.containers.base import ContainerSpec, ImageNotAllowed, Mount
from volplane.node.containers.task import TaskContext, TaskRuntime
from volplane.node.image_overrides import ImageOverrides
from volplane.node.image_permissions import service_account_user
from volplane.sidecars.attacher.settings import AttacherOptions
from volplane.web.client import HttpClient, HttpError

TENANT = "tenant"
ENDPOINT = "--endpoint=unix:///s/csi.sock"
RBAC = "rbac.authorization.k8s.io"

# name of the pod: image, arguments, which image of RBAC's it is ("": it is no built-in image)
ATTEMPTS = {
    "ebs-controller": ("volplane/ebs-plugin", ["controller", ENDPOINT], "ebs-plugin"),
    "ebs-node": ("volplane/ebs-plugin", ["node", ENDPOINT], "ebs-plugin"),
    "efs-controller": ("volplane/efs-plugin", ["controller", ENDPOINT], "efs-plugin"),
    "efs-node": ("volplane/efs-plugin", ["node", ENDPOINT], "efs-plugin"),
    "fencer": ("volplane/node-fencer", [], "node-fencer"),
    "tag": ("volplane/ebs-plugin:v1", ["controller", ENDPOINT], ""),
    "registry": ("docker.io/volplane/ebs-plugin", ["controller", ENDPOINT], ""),
    "digest": ("volplane/efs-plugin@sha256:" + "0" * 64, ["controller", ENDPOINT], ""),
    "mirror": ("evil.example/volplane/efs-plugin:v2", ["controller", ENDPOINT], ""),
}


def pod(name: str, image: str, args: list[str], *, namespace: str = TENANT, **more: Any) -> dict[str, Any]:
    container = {
        "name": "c",
        "image": image,
        "args": args,
        "env": [{"name": "CSI_NODE_NAME", "value": "worker-1"}],
        "volumeMounts": [{"name": "s", "mountPath": "/s"}],
        **more,
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "s", "emptyDir": {}}],
    }
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def role(name: str, *image: str) -> list[dict[str, Any]]:
    """The images may be used by the account `trusted` of the tenant."""
    rule = {
        "apiGroups": ["volplane.dev"],
        "resources": ["builtinimages"],
        "resourceNames": list(image),
        "verbs": ["use"],
    }
    head = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
    bound = {
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "trusted", "namespace": TENANT}],
    }
    return [head | {"kind": "ClusterRole", "rules": [rule]}, head | {"kind": "ClusterRoleBinding"} | bound]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with Up(nodes=1) as cluster:
        apply(
            cluster,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}},
            *(
                {
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    "metadata": {"name": name, "namespace": TENANT},
                }
                for name in ("trusted", "default")
            ),
            {  # everything, but in this namespace only
                "apiVersion": f"{RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "owner", "namespace": TENANT},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": TENANT}],
            },
        )
        yield cluster
    assert cluster.leftovers() == {}


def apply(up: Up, *objects: dict[str, Any]) -> None:
    up.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def statuses(up: Up, name: str) -> list[dict[str, Any]]:
    status = up.get("pod", name, "-n", TENANT)["status"]
    sorts = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return [one for sort in sorts for one in status.get(sort, [])]


def is_refused(up: Up, name: str, container: str = "c") -> bool:
    state = next(s for s in statuses(up, name) if s["name"] == container)["state"]
    return bool(state.get("waiting", {}).get("reason") == "CreateContainerError")


def events(up: Up, name: str) -> list[tuple[str, str]]:
    found = up.items("events", "-n", TENANT, "--field-selector", f"involvedObject.name={name}")
    return [(e["reason"], e["message"]) for e in found]


def event(up: Up, name: str, reason: str) -> str:
    return dict(events(up, name)).get(reason, "")


def is_ready(up: Up, name: str) -> bool:
    return bool(statuses(up, name)[0]["ready"])


def sockets(up: Up, name: str) -> list[Path]:
    uid = up.get("pod", name, "-n", TENANT)["metadata"]["uid"]
    return list((up.directory / "n/1/pods" / uid / "volumes/kubernetes.io~empty-dir").glob("*/*"))


@pytest.mark.root
@pytest.mark.peer("kubectl")
def test_a_tenant_does_not_get_a_driver_by_naming_its_image(up: Up) -> None:
    apply(up, *(pod(name, image, args) for name, (image, args, _) in ATTEMPTS.items()))
    for name, (_, _, known) in ATTEMPTS.items():
        if not known:  # whatever runs in its place is an ordinary container
            up.wait(f"{name} is tried", partial(event, up, name, "ImageNotAvailable"))
        else:
            up.wait(f"{name} is refused", partial(is_refused, up, name))
            reported = up.wait("an event has the reason", partial(event, up, name, "Failed"))
            assert f'service account "tenant/default" may not use the built-in image "{known}"' in reported
            assert 'verb "use" on resource "builtinimages" in API group "volplane.dev"' in reported
        assert sockets(up, name) == [], name
    up.kubectl("delete", "pods", "--all", "-n", TENANT)


@pytest.mark.root
@pytest.mark.peer("kubectl")
def test_neither_as_an_init_container_nor_as_an_ephemeral_one(up: Up) -> None:
    first = pod("first", "busybox", ["sleep", "86400"])
    plugin = {"name": "plugin", "image": "volplane/ebs-plugin", "args": ["controller", ENDPOINT]}
    mounted = plugin | {"volumeMounts": [{"name": "s", "mountPath": "/s"}]}
    first["spec"]["initContainers"] = [mounted]
    forever = pod("forever", "busybox", ["sleep", "86400"])
    forever["spec"]["initContainers"] = [mounted | {"restartPolicy": "Always"}]
    later = pod("later", "busybox", ["sleep", "86400"])
    apply(up, first, forever, later)
    patch = json.dumps({"spec": {"ephemeralContainers": [mounted]}})
    up.wait("it runs", lambda: statuses(up, "later")[0]["ready"])
    up.kubectl("patch", "pod", "later", "-n", TENANT, "--subresource=ephemeralcontainers", "-p", patch)
    for name in ("first", "forever", "later"):
        up.wait(f"{name} is refused", partial(is_refused, up, name, "plugin"))
        assert sockets(up, name) == [], name
    up.kubectl("delete", "pods", "--all", "-n", TENANT)


@pytest.mark.root
@pytest.mark.peer("kubectl")
def test_an_account_that_may_use_the_image_runs_it_and_only_privileged_on_the_host(up: Up) -> None:
    waiting = pod("waiting", "volplane/ebs-plugin", ["controller", ENDPOINT])
    weak = pod("weak", "volplane/ebs-plugin", ["node", ENDPOINT])
    strong = pod("strong", "volplane/ebs-plugin", ["node", ENDPOINT], securityContext={"privileged": True})
    for one in (waiting, weak, strong):
        one["spec"]["serviceAccountName"] = "trusted"
    apply(up, waiting)
    up.wait("it is refused", lambda: is_refused(up, "waiting"))
    apply(up, *role("tenant-ebs", "ebs-plugin"), weak, strong)
    for name in ("waiting", "strong"):
        up.wait(f"{name} runs", partial(is_ready, up, name))
    up.wait("it is refused", lambda: is_refused(up, "weak"))
    reported = up.wait("an event has the reason", partial(event, up, "weak", "Failed"))
    assert 'container "c" is not privileged' in reported
    assert sockets(up, "weak") == []
    up.kubectl("delete", "clusterrole/tenant-ebs", "clusterrolebinding/tenant-ebs")
    up.kubectl("delete", "pods", "--all", "-n", TENANT)


@pytest.mark.root
@pytest.mark.peer("kubectl")
def test_an_ephemeral_container_of_a_pod_of_sidecars_is_not_in_the_network_of_the_node(up: Up) -> None:
    apply(up, pod("sidecars", "evil.example/livenessprobe:v2", ["--csi-address=/s/csi.sock"]))
    up.wait("it runs", lambda: statuses(up, "sidecars")[0]["ready"])
    inside = {"name": "inside", "image": "busybox", "command": ["sleep", "86400"]}
    patch = json.dumps({"spec": {"ephemeralContainers": [inside]}})
    up.kubectl("patch", "pod", "sidecars", "-n", TENANT, "--subresource=ephemeralcontainers", "-p", patch)
    up.wait("it is refused", lambda: is_refused(up, "sidecars", "inside"))
    up.kubectl("delete", "pods", "--all", "-n", TENANT)


@pytest.mark.root
@pytest.mark.peer("kubectl")
def test_the_drivers_that_come_with_the_program_run(up: Up) -> None:
    pods = up.items("pods", "-n", "kube-system")
    plugins = [c for p in pods for c in p["status"]["containerStatuses"] if c["name"].endswith("-plugin")]
    assert sorted(c["name"] for c in plugins if c["ready"]) == [
        *["ebs-plugin"] * 3,  # two of the controller, one of the node
        *["efs-plugin"] * 2,
    ]
    assert not [e for e in up.items("events", "-n", "kube-system") if e["reason"] == "Failed"]


# --- sidecars: as their pod's account


def context(*mounts: Mount, account: str = "default", **more: Any) -> TaskContext:
    spec = ContainerSpec(id="x", name="c", namespace=TENANT, service_account=account, mounts=mounts, **more)
    return TaskContext(spec, NodePaths("/d/n/1"), asyncio.Event())


async def test_a_sidecar_in_this_process_may_do_what_its_account_may() -> None:
    async with world() as w:
        admin = w.role("admin")
        await admin.create(Namespace(metadata=ObjectMeta(name=TENANT)))
        secret = Secret(metadata=ObjectMeta(name="key", namespace=TENANT), string_data={"k": "v"})
        await admin.create(secret)
        async with account_client(w.core, w.caches, "csi-provisioner", context()) as client:
            with pytest.raises(Forbidden):
                await client.get(Secret, "key", TENANT)
            with pytest.raises(Forbidden):
                await client.create(PersistentVolume(metadata=ObjectMeta(name="pv")))
            with pytest.raises(Forbidden):
                await client.patch(Namespace, "kube-system", merge={"metadata": {"labels": {"a": "b"}}})
            await w.caches.get(Secret).wait_synced()
            assert not client.cache(Secret).all(), "it sees what others have listed"


async def test_the_account_of_a_driver_by_upstreams_role_can_provision_here() -> None:
    """Upstream's role lets it update claims, where ours patch; the difference is a role of ours."""
    rules = (
        PolicyRule(
            verbs=("get", "list", "watch", "create", "delete"),
            api_groups=("",),
            resources=("persistentvolumes",),
        ),
        PolicyRule(
            verbs=("get", "list", "watch", "update"), api_groups=("",), resources=("persistentvolumeclaims",)
        ),
    )
    async with world() as w:
        admin = w.role("admin")
        await apply_roles(admin)
        await admin.create(Namespace(metadata=ObjectMeta(name=TENANT)))
        await admin.create(ServiceAccount(metadata=ObjectMeta(name="upstream", namespace=TENANT)))
        await admin.create(StorageClass(metadata=ObjectMeta(name="c"), provisioner="x.example"))
        await admin.create(ClusterRole(metadata=ObjectMeta(name="runner"), rules=rules))
        bound = ClusterRoleBinding(
            metadata=ObjectMeta(name="runner"),
            role_ref=RoleRef(api_group=RBAC, kind="ClusterRole", name="runner"),
            subjects=(Subject(kind="ServiceAccount", name="upstream", namespace=TENANT),),
        )
        await admin.create(bound)

        async def may_patch(account: str) -> bool:
            at = context(account=account)
            async with account_client(w.core, w.caches, "csi-provisioner", at) as client:
                try:
                    await client.patch(PersistentVolumeClaim, "none", TENANT, merge={}, missing_ok=True)
                except Forbidden:
                    return False
                return client.cache(PersistentVolumeClaim) is w.caches.get(PersistentVolumeClaim)

        await until(lambda: may_patch("upstream"))
        assert not await may_patch("default")


@pytest.mark.parametrize("right", ["of a shared cache", "of the sidecar's group"])
async def test_a_sidecar_whose_account_loses_a_right_is_asked_to_end(right: str) -> None:
    """It may hold a cache of all, or be in a group that the account alone would not be put into any more."""
    resource, verbs = {
        "of a shared cache": ("secrets", ("list", "watch")),
        "of the sidecar's group": ("persistentvolumes", ("create",)),
    }[right]
    rule = PolicyRule(verbs=verbs, api_groups=("",), resources=(resource,))
    other = PolicyRule(verbs=("get",), api_groups=("",), resources=("configmaps",))
    async with world() as w:
        admin = w.role("admin")
        await admin.create(Namespace(metadata=ObjectMeta(name=TENANT)))
        await admin.create(ClusterRole(metadata=ObjectMeta(name="r"), rules=(rule, other)))
        bound = ClusterRoleBinding(
            metadata=ObjectMeta(name="r"),
            role_ref=RoleRef(api_group=RBAC, kind="ClusterRole", name="r"),
            subjects=(Subject(kind="ServiceAccount", name="default", namespace=TENANT),),
        )
        await admin.create(bound)
        user = RequestUser(*service_account_user(TENANT, "default"))

        async def may(verb: str, plural: str) -> bool:
            return w.core.authorizer.allows(user, Attributes(verb, plural=plural))

        await until(lambda: may(verbs[0], resource))
        at = context()
        async with account_client(w.core, w.caches, "csi-provisioner", at) as client:
            assert (client.cache(Secret) is w.caches.get(Secret)) is (resource == "secrets")
            role = await admin.get(ClusterRole, "r")
            await admin.update(structs.replace(role, rules=(rule,)))  # the one that it does not need
            await until(lambda: is_lost(may("get", "configmaps")))
            await asyncio.sleep(0)
            assert not at.stop.is_set()
            await admin.delete(ClusterRoleBinding, "r")
            async with asyncio.timeout(30):
                await at.stop.wait()
        assert not w.core.rbac.on_change


async def is_lost(right: Awaitable[bool]) -> bool:
    return not await right


async def apply_roles(client: Any) -> None:
    from volplane.cluster.apply import ROLES, apply

    await apply(client, (ROLES,))


def test_a_manifest_of_the_operator_gives_its_sidecars_their_roles_and_nobody_else_any() -> None:
    containers = [
        {"name": "a", "image": "k8s.gcr.io/sig-storage/csi-attacher:v3"},
        {"name": "p", "image": "other.example/csi-provisioner:v3"},
        {"name": "own", "image": "other.example/csi-resizer:v3", "command": ["/csi-resizer"]},
        {"name": "driver", "image": "other.example/driver"},
    ]
    spec = {"template": {"spec": {"serviceAccountName": "sa", "containers": containers}}}
    driver = {"kind": "DaemonSet", "metadata": {"name": "d", "namespace": "n"}, "spec": spec}
    plain = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers[3:]}}
    found = list(
        find_grants([driver, plain, {"kind": "Namespace", "metadata": {"name": "n"}}], ImageOverrides())
    )
    assert [(f["kind"], f["roleRef"]["name"]) for f in found] == [
        ("ClusterRoleBinding", "volplane:external-attacher"),
        ("ClusterRoleBinding", "volplane:external-provisioner"),
        ("RoleBinding", "volplane:csi-leases"),
    ]
    subject = {"kind": "ServiceAccount", "name": "sa", "namespace": "n"}
    assert all(f["subjects"] == [subject] for f in found)


# --- sidecars: files of their container alone


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """The volume of a pod that has been put links into, and a directory of the machine."""
    inside, outside = tmp_path / "volume", tmp_path / "machine"
    (inside / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("the node's")
    (inside / "out").symlink_to(outside)
    (inside / "file").symlink_to(outside / "secret")
    (inside / "up").symlink_to("../machine")
    (inside / "gone").symlink_to("/nowhere/at/all")
    (inside / "in").symlink_to("sub")
    (inside / "sub/loop").symlink_to("../out")
    os.mkfifo(inside / "pipe")
    return {"inside": inside, "outside": outside}


ESCAPES = ["out", "out/csi.sock", "file", "up/csi.sock", "gone", "sub/loop/csi.sock", "in/loop"]


@pytest.mark.parametrize("path", [*ESCAPES, "../machine/secret", "sub/../../machine", "./../machine/x"])
def test_a_sidecar_follows_no_path_out_of_its_volume(places: dict[str, Path], path: str) -> None:
    at = context(Mount(str(places["inside"]), "/s"))
    with pytest.raises(SystemExit):
        at.path(f"/s/{path}")
    with pytest.raises((SystemExit, FileNotFoundError)):
        at.read(f"/s/{path}")
    with pytest.raises((SystemExit, FileNotFoundError)), at.open_directory(f"/s/{path}"):
        pass


def test_a_sidecar_follows_links_inside_its_volume(places: dict[str, Path]) -> None:
    at = context(Mount(str(places["inside"]), "/s"))
    (places["inside"] / "sub/token").write_text("word")
    assert at.path("/s/in/csi.sock") == str(places["inside"] / "sub/csi.sock")
    assert at.read("/s/in/token") == b"word"
    with pytest.raises(SystemExit):
        at.read("/s/pipe")


async def test_a_token_is_not_read_from_a_file_of_the_machine(places: dict[str, Path]) -> None:
    """It would be sent to whatever server the pod's environment names."""
    (places["inside"] / "token").symlink_to(places["outside"] / "secret")
    (places["inside"] / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    mount = Mount(str(places["inside"]), "/var/run/secrets/kubernetes.io/serviceaccount")
    env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    with pytest.raises(SystemExit, match="leads out of its volume"):
        async with service_account_client("csi-attacher", context(mount, env=env)):
            pass


@pytest.mark.root
async def test_a_built_in_image_talks_to_the_api_server_of_its_node() -> None:
    """It connects from the machine's network, where a pod could name any address."""
    seen: list[dict[str, str]] = []

    async def spy(at: TaskContext) -> None:
        seen.append(dict(at.env))
        await at.stop.wait()

    elsewhere = {"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "80", "OWN": "x"}
    async with node_env() as here:
        here.images["spy"] = spy
        await here.start(cluster_host="127.0.0.1", cluster_port=6443)
        env = [{"name": name, "value": value} for name, value in elsewhere.items()]
        await here.pod(container={"image": "spy", "env": env})
        await here.wait_until_ready()
    asked = {name: seen[0][name] for name in elsewhere}
    assert asked == {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443", "OWN": "x"}


# --- sidecars: the driver's socket of their container alone


@asynccontextmanager
async def two_drivers(tmp_path: Path) -> AsyncIterator[tuple[Path, Path, list[str]]]:
    """The volume of a pod, another driver's socket outside of it, and the calls that the other one gets."""
    volume, machine = tmp_path / "volume", tmp_path / "machine"
    volume.mkdir()
    machine.mkdir()
    calls: list[str] = []

    def answer(method: str) -> bytes:
        calls.append(method)
        return reply_as("other", method)

    async with raw_driver(machine) as (other, socket):
        other.reply = answer
        yield volume, Path(socket), calls


@asynccontextmanager
async def own_driver(volume: Path) -> AsyncIterator[None]:
    async with raw_driver(volume) as (own, _):
        own.reply = lambda method: reply_as("own", method)
        yield


def reply_as(name: str, method: str) -> bytes:
    return v1.GetPluginInfoResponse(name=name).SerializeToString() if method == "GetPluginInfo" else b""


async def test_a_sidecar_does_not_follow_a_link_in_the_place_of_its_socket(tmp_path: Path) -> None:
    async with two_drivers(tmp_path) as (volume, outside, calls):
        at = context(Mount(str(volume), "/s"))
        options, open_socket = _resolve_socket(at, AttacherOptions(csi_address="/s/csi.sock"))
        async with CsiChannel(options.csi_address, open_socket=open_socket) as channel:
            async with own_driver(volume):
                await channel.ready(10)
                assert (await channel.call("GetPluginInfo", v1.GetPluginInfoRequest())).name == "own"
            (volume / "csi.sock").unlink(missing_ok=True)
            (volume / "csi.sock").symlink_to(outside)
            for _ in range(3):
                with pytest.raises(CallError) as refused:
                    await channel.call("GetPluginInfo", v1.GetPluginInfoRequest())
                assert refused.value.code is Code.UNAVAILABLE
            with pytest.raises(TimeoutError):
                await channel.ready(0.2)
            assert calls == []
            (volume / "csi.sock").unlink()
            async with own_driver(volume):  # the driver is back: the first call reaches it
                await channel.ready(10)
                assert (await channel.call("GetPluginInfo", v1.GetPluginInfoRequest())).name == "own"


async def test_a_sidecar_does_not_follow_a_link_in_the_place_of_its_sockets_directory(tmp_path: Path) -> None:
    async with two_drivers(tmp_path) as (volume, outside, calls):
        at = context(Mount(str(volume), "/s"))
        (volume / "run").mkdir()
        options, open_socket = _resolve_socket(at, AttacherOptions(csi_address="/s/run/csi.sock"))
        (volume / "run").rmdir()
        (volume / "run").symlink_to(outside.parent)
        async with CsiChannel(options.csi_address, open_socket=open_socket) as channel:
            with pytest.raises(CallError, match="leads out of the volume"):
                await channel.call("GetPluginInfo", v1.GetPluginInfoRequest())
        assert calls == []


async def test_a_liveness_probe_does_not_ask_another_driver(tmp_path: Path) -> None:
    host = Host()
    tasks = TaskRuntime(
        builtin_images(ImageDeps(service_account_client, host, ebs.AwsAccount(), {}, "")),
        NodePaths(str(tmp_path), identity=True),
    )
    async with two_drivers(tmp_path) as (volume, outside, calls), own_driver(volume):
        spec = ContainerSpec(
            id="pod_probe_0",
            name="probe",
            image="volplane/livenessprobe",
            args=("--csi-address=/s/csi.sock", "--health-port=9808"),
            mounts=(Mount(str(volume), "/s"),),
            log_path=str(tmp_path / "log"),
        )
        try:
            await tasks.start(spec)

            async def find_port() -> int:
                port = tasks.port("pod", 9808)
                return 0 if port == 9808 else port

            port = await until(find_port)
            http = HttpClient(f"http://127.0.0.1:{port}")

            async def find_status() -> int:
                try:
                    return (await http.request("GET", "/healthz")).status
                except HttpError:
                    return 0  # the probe listens when the driver has answered

            try:
                assert await until(find_status) == 200
                (volume / "csi.sock").unlink()
                (volume / "csi.sock").symlink_to(outside)
                assert (await http.request("GET", "/healthz")).status == 500
            finally:
                await http.close()
            assert calls == []
        finally:
            await tasks.close()
            await host.close()


REGISTRATION = [
    "--kubelet-registration-path=/csi/csi.sock",
    "--csi-address=/s/csi.sock",
]


@pytest.mark.parametrize("place", ["/registry", "/s/link", "/s/../registry"])
async def test_a_registrar_without_the_registry_mounted_registers_nothing(tmp_path: Path, place: str) -> None:
    registry, volume = tmp_path / "plugins_registry", tmp_path / "volume"
    registry.mkdir()
    volume.mkdir()
    (volume / "link").symlink_to(registry)
    host = Host()
    tasks = TaskRuntime(
        builtin_images(ImageDeps(service_account_client, host, ebs.AwsAccount(), {}, "")),
        NodePaths(str(tmp_path), identity=True),
    )
    path = f"--plugin-registration-path={str(registry) if place == '/registry' else place}"
    spec = ContainerSpec(
        id="x",
        name="registrar",
        image="evil.example/csi-node-driver-registrar:v9",
        args=(*REGISTRATION, path),
        mounts=(Mount(str(volume), "/s"),),
        log_path=str(tmp_path / "log"),
    )
    try:
        await tasks.start(spec)
        ended = await tasks.wait("x")
        assert ended.exit_code == 1
        assert not list(registry.iterdir())
        assert "volume" in (tmp_path / "log").read_text()
    finally:
        await tasks.close()
        await host.close()


async def test_without_anybody_to_ask_a_restricted_image_does_not_run(tmp_path: Path) -> None:
    host = Host()
    tasks = TaskRuntime(
        builtin_images(ImageDeps(service_account_client, host, ebs.AwsAccount(), {}, "")),
        NodePaths(str(tmp_path)),
    )
    try:
        with pytest.raises(ImageNotAllowed):
            await tasks.start(ContainerSpec(id="x", image="volplane/node-fencer"))
        assert await tasks.state("x") is None
    finally:
        await tasks.close()
        await host.close()
