"""Python clients for scripts and operators, each with a typical scenario."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kr8s.asyncio
import kubernetes
import kubernetes.dynamic
import kubernetes.stream
import kubernetes_asyncio
import kubernetes_asyncio.stream
import lightkube
import pytest
import yaml
from kr8s.asyncio.objects import ConfigMap as KrConfigMap
from kr8s.asyncio.objects import Pod as KrPod
from kubernetes.client import ApiException
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Node, PersistentVolumeClaim, Pod
from lightkube.types import PatchType

from tests.support.up import Up, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    # What the clients do inside is theirs: old datetime calls, sockets left to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PATIENCE = 60


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect the sockets that clients leave open while their warnings are ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def sleeper(up: Up) -> str:
    """A running pod, into which all clients exec."""
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", "echo started; exec sleep infinity"],
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    up.apply(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sleeper"}, "spec": spec}))
    up.wait_running("sleeper", PATIENCE)
    return "sleeper"


@pytest.fixture
def namespace(up: Up, request: pytest.FixtureRequest) -> Iterator[str]:
    """One namespace per scenario."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:60].rstrip("-")
    up.kubectl("create", "namespace", name)
    # It is made after the namespace; a test that watches must not see it appear.
    wait_until("its root certificate", lambda: up.items("configmap", "-n", name))
    yield name
    up.kubectl("delete", "namespace", name, "--wait=false")


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


# --- kubernetes


@pytest.fixture
def official(up: Up) -> Iterator[kubernetes.client.ApiClient]:
    with kubernetes.config.new_client_from_config(up.kubeconfig) as api:
        yield api


def test_kubernetes_lists_in_pages_and_selects(official: Any, namespace: str) -> None:
    core: Any = kubernetes.client.CoreV1Api(official)
    for n in range(5):
        body = {**config_map(f"m{n}"), "metadata": {"name": f"m{n}", "labels": {"odd": str(n % 2)}}}
        core.create_namespaced_config_map(namespace, body)
    names: list[str] = []
    more = ""
    while True:
        page = core.list_namespaced_config_map(namespace, limit=2, _continue=more)
        names += [item.metadata.name for item in page.items]
        if not (more := page.metadata._continue):
            break
    assert names == ["kube-root-ca.crt", "m0", "m1", "m2", "m3", "m4"]
    odd = core.list_namespaced_config_map(namespace, label_selector="odd=1").items
    assert [item.metadata.name for item in odd] == ["m1", "m3"]
    one = core.list_namespaced_config_map(namespace, field_selector="metadata.name=m2").items
    assert [item.metadata.name for item in one] == ["m2"]
    gone = core.delete_collection_namespaced_config_map(namespace, label_selector="odd")
    assert gone.kind == "ConfigMapList" or len(gone.items) == 5


def test_kubernetes_watches_and_resumes(official: Any, namespace: str) -> None:
    core: Any = kubernetes.client.CoreV1Api(official)
    watch = kubernetes.watch.Watch()
    since = core.list_namespaced_config_map(namespace).metadata.resource_version
    writer = threading.Thread(target=_write_three, args=(core, namespace))
    writer.start()
    seen = []
    options = {"resource_version": since, "timeout_seconds": PATIENCE}
    for event in watch.stream(core.list_namespaced_config_map, namespace, **options):
        seen.append((event["type"], event["object"].metadata.name, (event["object"].data or {}).get("a")))
        if len(seen) == 3:
            watch.stop()
    writer.join()
    expected = [("ADDED", "seen", "1"), ("MODIFIED", "seen", "2"), ("DELETED", "seen", "2")]
    assert seen == expected
    # From where the first event was, the rest comes again.
    again = kubernetes.watch.Watch()
    first = next(again.stream(core.list_namespaced_config_map, namespace, **options))
    version = first["object"].metadata.resource_version
    again.stop()
    rest = kubernetes.watch.Watch().stream(
        core.list_namespaced_config_map, namespace, resource_version=version, timeout_seconds=1
    )
    assert [event["type"] for event in rest] == ["MODIFIED", "DELETED"]


def _write_three(core: Any, namespace: str) -> None:
    core.create_namespaced_config_map(namespace, config_map("seen", a="1"))
    core.patch_namespaced_config_map("seen", namespace, {"data": {"a": "2"}})
    core.delete_namespaced_config_map("seen", namespace)


def test_kubernetes_patches_and_is_told_what_is_wrong(official: Any, namespace: str) -> None:
    core: Any = kubernetes.client.CoreV1Api(official)
    core.create_namespaced_config_map(namespace, config_map("p", a="1", b="2"))
    patched = core.patch_namespaced_config_map("p", namespace, {"data": {"a": "10"}})
    assert patched.data == {"a": "10", "b": "2"}
    operations = [{"op": "remove", "path": "/data/b"}]
    assert core.patch_namespaced_config_map("p", namespace, operations).data == {"a": "10"}
    stale = core.read_namespaced_config_map("p", namespace)
    core.patch_namespaced_config_map("p", namespace, {"data": {"c": "3"}})
    with pytest.raises(ApiException) as conflict:
        core.replace_namespaced_config_map("p", namespace, stale)
    assert (conflict.value.status, json.loads(conflict.value.body or "")["reason"]) == (409, "Conflict")
    with pytest.raises(ApiException) as missing:
        core.read_namespaced_config_map("none", namespace)
    assert (missing.value.status, json.loads(missing.value.body or "")["details"]["name"]) == (404, "none")
    with pytest.raises(ApiException) as invalid:
        core.create_namespaced_config_map(namespace, config_map("Not_A_Name"))
    assert json.loads(invalid.value.body or "")["details"]["causes"][0]["field"] == "metadata.name"


def test_kubernetes_dynamic_client_applies(official: Any, namespace: str) -> None:
    dynamic = kubernetes.dynamic.DynamicClient(official)
    maps = dynamic.resources.get(api_version="v1", kind="ConfigMap")
    body = config_map("applied", a="1")
    made = maps.server_side_apply(body=body, name="applied", namespace=namespace, field_manager="script")
    assert made.data.a == "1"
    assert made.metadata.managedFields[0].operation == "Apply"
    with pytest.raises(kubernetes.dynamic.exceptions.ConflictError):
        maps.server_side_apply(
            body=config_map("applied", a="2"), name="applied", namespace=namespace, field_manager="other"
        )
    classes = dynamic.resources.get(api_version="storage.k8s.io/v1", kind="StorageClass")
    assert "standard" in [item.metadata.name for item in classes.get().items]


def test_kubernetes_execs_and_reads_logs(official: Any, sleeper: str) -> None:
    core: Any = kubernetes.client.CoreV1Api(official)
    call = (core.connect_get_namespaced_pod_exec, sleeper, "default")
    kept = {"stderr": True, "stdin": False, "stdout": True, "tty": False}
    output = kubernetes.stream.stream(*call, command=["echo", "hello"], **kept)
    assert output == "hello\n"
    talk = kubernetes.stream.stream(*call, command=["sh"], **{**kept, "stdin": True}, _preload_content=False)
    talk.write_stdin("echo heard; exit 3\n")
    talk.run_forever(timeout=PATIENCE)
    assert talk.read_stdout() == "heard\n"
    assert talk.returncode == 3
    talk.close()
    # Preloaded, this client shows the bytes as Python writes them; that is its own doing.
    assert core.read_namespaced_pod_log(sleeper, "default", _preload_content=False).data == b"started\n"


def test_kubernetes_logs_in_with_a_service_accounts_token(official: Any, up: Up, namespace: str) -> None:
    core: Any = kubernetes.client.CoreV1Api(official)
    rbac: Any = kubernetes.client.RbacAuthorizationV1Api(official)
    account = kubernetes.client.V1ServiceAccount(metadata=kubernetes.client.V1ObjectMeta(name="reader"))
    core.create_namespaced_service_account(namespace, account)
    request = {"spec": {"expirationSeconds": 600, "audiences": []}}
    token = core.create_namespaced_service_account_token("reader", namespace, request).status.token
    settings = kubernetes.client.Configuration(host=official.configuration.host)
    settings.ssl_ca_cert = official.configuration.ssl_ca_cert
    settings.api_key = {"authorization": f"Bearer {token}"}
    with kubernetes.client.ApiClient(settings) as api:
        mine: Any = kubernetes.client.CoreV1Api(api)
        with pytest.raises(ApiException) as refused:
            mine.list_namespaced_config_map(namespace)
        assert refused.value.status == 403
        assert f"system:serviceaccount:{namespace}:reader" in json.loads(refused.value.body or "")["message"]
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}
        rbac.create_namespaced_role(namespace, {"metadata": {"name": "lists"}, "rules": [rule]})
        subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lists"}
        binding = {"metadata": {"name": "lists"}, "subjects": [subject], "roleRef": role}
        rbac.create_namespaced_role_binding(namespace, binding)
        assert mine.list_namespaced_config_map(namespace).items[0].metadata.name == "kube-root-ca.crt"


# --- kubernetes_asyncio


async def test_kubernetes_asyncio_watches_while_it_writes(up: Up, namespace: str) -> None:
    settings = kubernetes_asyncio.client.Configuration()
    await kubernetes_asyncio.config.load_kube_config(up.kubeconfig, client_configuration=settings)
    async with kubernetes_asyncio.client.ApiClient(settings) as api, asyncio.timeout(PATIENCE):
        core: Any = kubernetes_asyncio.client.CoreV1Api(api)
        since = (await core.list_namespaced_config_map(namespace)).metadata.resource_version

        async def follow() -> list[tuple[str, str]]:
            seen = []
            async with kubernetes_asyncio.watch.Watch() as watch:
                source = watch.stream(core.list_namespaced_config_map, namespace, resource_version=since)
                async for event in source:
                    seen.append((event["type"], event["object"].metadata.name))
                    if event["type"] == "DELETED":
                        return seen
            return seen

        following = asyncio.create_task(follow())
        await core.create_namespaced_config_map(namespace, config_map("x", a="1"))
        merge = {"_content_type": "application/merge-patch+json"}
        patched = await core.patch_namespaced_config_map(
            "x", namespace, {"data": {"a": None, "b": "2"}}, **merge
        )
        assert patched.data == {"b": "2"}
        await core.delete_namespaced_config_map("x", namespace)
        assert await following == [("ADDED", "x"), ("MODIFIED", "x"), ("DELETED", "x")]


async def test_kubernetes_asyncio_execs(up: Up, sleeper: str) -> None:
    settings = kubernetes_asyncio.client.Configuration()
    await kubernetes_asyncio.config.load_kube_config(up.kubeconfig, client_configuration=settings)
    async with kubernetes_asyncio.stream.WsApiClient(settings) as api, asyncio.timeout(PATIENCE):
        core: Any = kubernetes_asyncio.client.CoreV1Api(api)
        output = await core.connect_get_namespaced_pod_exec(
            sleeper, "default", command=["sh", "-c", "echo answer $((6*7))"], stdout=True, stderr=True
        )
        assert output == "answer 42\n"


# --- lightkube


def test_lightkube_binds_a_claim(up: Up, namespace: str) -> None:
    settings = lightkube.KubeConfig.from_file(up.kubeconfig)
    client = lightkube.Client(config=settings, namespace=namespace, field_manager="lightkube")
    requests = VolumeResourceRequirements(requests={"storage": "1Gi"})
    spec = PersistentVolumeClaimSpec(accessModes=["ReadWriteOnce"], resources=requests)
    client.create(PersistentVolumeClaim(metadata=ObjectMeta(name="disk"), spec=spec))
    for kind, claim in client.watch(PersistentVolumeClaim, server_timeout=PATIENCE):
        assert kind in ("ADDED", "MODIFIED")
        assert isinstance(claim, PersistentVolumeClaim)
        if claim.status and claim.status.phase == "Bound":
            break
    else:
        pytest.fail("the claim is not bound")
    client.delete(PersistentVolumeClaim, "disk")


def test_lightkube_patches_applies_and_waits(up: Up, namespace: str) -> None:
    settings = lightkube.KubeConfig.from_file(up.kubeconfig)
    client = lightkube.Client(config=settings, namespace=namespace, field_manager="lightkube")
    client.apply(ConfigMap(metadata=ObjectMeta(name="m", labels={"app": "x"}), data={"a": "1"}))
    client.apply(ConfigMap(metadata=ObjectMeta(name="m", labels={"app": "x"}), data={"b": "2"}))
    assert client.get(ConfigMap, "m").data == {"b": "2"}
    client.patch(ConfigMap, "m", {"data": {"c": "3"}}, patch_type=PatchType.MERGE)
    operations = [{"op": "replace", "path": "/data/b", "value": "20"}]
    client.patch(ConfigMap, "m", operations, patch_type=PatchType.JSON)
    assert [m.data for m in client.list(ConfigMap, labels={"app": "x"})] == [{"b": "20", "c": "3"}]
    with pytest.raises(ApiError) as missing:
        client.get(ConfigMap, "none")
    assert missing.value.status.code == 404
    assert client.wait(Node, "worker-1", for_conditions=["Ready"]).metadata.name == "worker-1"  # type: ignore[union-attr]
    assert {pod.status.phase for pod in client.list(Pod, namespace="kube-system")} == {"Running"}  # type: ignore[union-attr]


# --- kr8s


async def test_kr8s_creates_watches_patches_and_execs(up: Up, namespace: str, sleeper: str) -> None:
    async with asyncio.timeout(PATIENCE):
        api = await kr8s.asyncio.api(kubeconfig=up.kubeconfig, namespace=namespace)
        made = await KrConfigMap({**config_map("k", a="1")}, namespace=namespace, api=api)
        await made.create()
        await made.patch({"data": {"b": "2"}})
        await made.label(app="kr8s")
        found: list[Any] = [
            m async for m in api.get("configmaps", namespace=namespace, label_selector="app=kr8s")
        ]
        assert [m.raw["data"] for m in found] == [{"a": "1", "b": "2"}]
        async for kind, seen in api.watch("configmaps", namespace=namespace, label_selector="app=kr8s"):
            assert (kind, seen.name) == ("ADDED", "k")
            break
        await made.delete()
        await made.wait("delete")
        assert not await made.exists()
        pod = await KrPod.get(sleeper, namespace="default", api=api)
        assert await pod.ready()
        done = await pod.exec(["sh", "-c", "echo out; echo err >&2; exit 4"], check=False)
        assert (done.returncode, done.stdout, done.stderr) == (4, b"out\n", b"err\n")
        assert [line async for line in pod.logs()] == ["started"]
        with pytest.raises(kr8s.NotFoundError):
            await KrConfigMap.get("none", namespace=namespace, api=api, timeout=1)


def test_the_kubeconfig_says_who_we_are(up: Up) -> None:
    """All clients above authenticate with this certificate."""
    config = yaml.safe_load(Path(up.kubeconfig).read_text())
    assert base64.b64decode(config["users"][0]["user"]["client-certificate-data"]).startswith(b"-----BEGIN")
