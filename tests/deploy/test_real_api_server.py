"""The manifests and our roles with a real kube-apiserver: the accounts may do what they must, and no more.

Only the API server and etcd are upstream's here; controllers, scheduler, node, sidecars and drivers are ours,
as processes. The sidecars have the arguments of the manifests and tokens of the manifests' service accounts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.dashboard.test_ui_anywhere import read, running_ui
from tests.deploy.test_deploy_files import CHART, containers, expanded
from tests.support import peers, role_processes
from tests.support.kube_apiserver import KubeApiServer, kube_apiserver
from tests.support.workload_lifecycle import MANAGER_FLAGS, WorkloadLifecycle
from tools import deploy
from volplane.client import kubeconfig
from volplane.cloud import CloudInstance, CloudOptions, serve_endpoint
from volplane.explain.journey.model import Journey, JourneyOutcome, StepSource
from volplane.host import Host
from volplane.store.memory import MemoryStore

ROOT = Path(__file__).parents[2]
PATIENCE = 180.0
CONTROLLERS = (
    "persistentvolume-binder-controller,persistentvolume-attach-detach-controller,node-lifecycle-controller,"
    "persistentvolumeclaim-protection-controller,persistentvolume-protection-controller"
)
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl")]

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: {cls}
  resources: {{requests: {{storage: {size}}}}}
  {more}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
    - name: c
      image: busybox
      command: [sh, -c, "{command}"]
      volumeMounts: [{{name: v, mountPath: /data}}]
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}]
"""
SNAPSHOT = """
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: moment}
spec: {source: {persistentVolumeClaimName: data}}
"""


# --- the manifests


def install(kubectl: Callable[..., str]) -> None:
    """As a user does it, every field checked by the server; and again, which changes nothing."""
    crds = str(deploy.OUTPUT / "crds.yaml")
    assert kubectl("apply", "--validate=strict", "-f", crds).count("created") == 6
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", crds)
    tried = kubectl("apply", "--dry-run=server", "--validate=strict", "-k", str(deploy.OUTPUT)).splitlines()
    assert len([line for line in tried if line.endswith("created (server dry run)")]) == len(CHART)
    done = kubectl("apply", "--validate=strict", "-k", str(deploy.OUTPUT)).splitlines()
    assert len([line for line in done if line.endswith(" created")]) == len(CHART)
    again = kubectl("apply", "--validate=strict", "-k", str(deploy.OUTPUT)).splitlines()
    # The selector of a budget is always sent whole, so kubectl calls it configured every time.
    changed = [line for line in again if not line.endswith(" unchanged")]
    assert all(line.startswith("poddisruptionbudget") for line in changed), changed


async def test_our_api_server_takes_every_field(tmp_path: Path) -> None:
    async with role_processes.server(tmp_path) as server:

        def kubectl(*arguments: str) -> str:
            command = [peers.path("kubectl"), "--kubeconfig", server.kubeconfig, *arguments]
            env = {**os.environ, "HOME": str(tmp_path)}
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=env)
            assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
            assert "Warning" not in done.stderr
            return done.stdout

        await asyncio.to_thread(install, kubectl)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    with kube_apiserver(tmp_path_factory.mktemp("kube")) as running:
        install(running.kubectl)
        yield running


@pytest.mark.peer("kube-apiserver")
@pytest.mark.peer("etcd")
def test_a_real_api_server_takes_every_field(real: KubeApiServer) -> None:
    for (kind, name), wanted in CHART.items():
        group = wanted["apiVersion"].rpartition("/")[0]
        place = ["-n", wanted["metadata"]["namespace"]] if "namespace" in wanted["metadata"] else []
        real.kubectl("get", f"{kind}.{group}" if group else kind, name, *place)


# --- the roles


class Programs:
    """Our roles as processes; each with its own log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: list[str], config: str = "", program: str = "", **env: str) -> None:
        """`program`: one of upstream's, which gets the arguments without our verb."""
        begin = [program, *arguments[1:]] if program else [sys.executable, "-m", "volplane", *arguments]
        with self.log(name).open("wb") as log:
            self.running[name] = subprocess.Popen(
                [*begin, *(["--kubeconfig", config] if config else [])],
                cwd=self.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
                stdout=log,
                stderr=log,
            )

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def check(self) -> None:
        for name, process in self.running.items():
            assert process.poll() is None, f"{name} has ended:\n{self.log(name).read_text()[-3000:]}"

    def stop(self) -> None:
        for process in reversed(self.running.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def arguments(kind: str, workload: str, container: str, *, sockets: Path, node: Path) -> list[str]:
    """A container's arguments with its paths where this test has them; health at any port."""
    found = []
    for text in expanded(containers(CHART[kind, workload])[container]):
        for there, here in (
            ("/var/lib/csi/sockets/pluginproxy", sockets),
            ("=/csi", f"={node}/plugins/{workload[:3]}.csi.aws.com"),
            ("=unix:/csi", f"=unix:{node}/plugins/{workload[:3]}.csi.aws.com"),
            ("=/registration", f"={node}/plugins_registry"),
            ("=/var/lib/volplane/efs", f"={node.parent}/efs"),
        ):
            text = text.replace(there, str(here))
        found.append("--http-endpoint=127.0.0.1:0" if text.startswith("--http-endpoint=") else text)
    return found


def start_driver(
    programs: Programs,
    real: KubeApiServer,
    short: str,
    node: Path,
    extra: dict[str, str],
    upstream: Collection[str] = (),
) -> None:
    sockets = programs.directory / f"{short}-sockets"
    sockets.mkdir()
    account = real.account(f"{short}-csi-controller-sa")
    for name in containers(CHART["Deployment", f"{short}-csi-controller"]):
        words = arguments("Deployment", f"{short}-csi-controller", name, sockets=sockets, node=node)
        login = "" if name.endswith("-plugin") or name == "liveness-probe" else account
        env = {"POD_NAME": f"{short}-csi-controller-0", "NAMESPACE": "kube-system", **extra}
        program = peers.path(name) if name in upstream else ""
        if program:  # it ends if its driver does not answer within half a minute
            wait_for("the driver listens", programs, (sockets / "csi.sock").exists, True)
        programs.start(f"{short}-{name}", words, login, program, **env)
    for name in containers(CHART["DaemonSet", f"{short}-csi-node"]):
        words = arguments("DaemonSet", f"{short}-csi-node", name, sockets=sockets, node=node)
        if name.endswith("-plugin"):
            words += ["--root-dir", str(node), "--instance-id", "i-1"]
            words += ["--zone", "us-east-1a"] if short == "ebs" else []
        programs.start(f"{short}-node-{name}", words, CSI_NODE_NAME="n1", **extra)


@asynccontextmanager
async def everything(
    real: KubeApiServer, directory: Path, upstream: Collection[str] = ()
) -> AsyncIterator[Programs]:
    """`upstream`: the sidecars of the EBS driver that are upstream's programs."""
    host, node = Host(), directory / "n1"
    for place in ("plugins/ebs.csi.aws.com", "plugins/efs.csi.aws.com", "plugins_registry"):
        (node / place).mkdir(parents=True)
    cloud = CloudOptions(
        data_dir=str(directory),
        access_key="key",
        secret_key="secret",
        instances=(CloudInstance("i-1", "us-east-1a", str(node / "dev")),),
    )
    programs = Programs(directory)
    try:
        async with serve_endpoint(cloud, host, MemoryStore()) as address:
            keys = {**KEYS, "AWS_ENDPOINT_URL": address}
            admin = real.config("admin")
            try:
                await asyncio.to_thread(start_driver, programs, real, "ebs", node, keys, upstream)
                await asyncio.to_thread(start_driver, programs, real, "efs", node, {})
                snapshots = containers(CHART["Deployment", "snapshot-controller"])["snapshot-controller"]
                words = [a for a in expanded(snapshots) if not a.startswith("--http-endpoint")]
                account = await asyncio.to_thread(real.account, "snapshot-controller")
                words.append(f"--retry-crd-interval-max={PATIENCE:.0f}s")
                programs.start("snapshot-controller", words, account, POD_NAME="s-0", NAMESPACE="kube-system")
                programs.start("manager", ["controller-manager", f"--controllers={CONTROLLERS}"], admin)
                programs.start("scheduler", ["scheduler"], admin)
                location = ["--root-dir", str(node), "--instance-id", "i-1", "--zone", "us-east-1a"]
                programs.start(
                    "node", ["node", "--hostname-override", "n1", "--port=0", *location], admin, **keys
                )
                yield programs
            finally:
                await asyncio.to_thread(programs.stop)
    finally:
        await host.close()


def wait_for(what: str, programs: Programs, reported: Callable[[], Any], wanted: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := reported()) != wanted:
        programs.check()
        assert time.monotonic() < deadline, f"{what}: {found!r}, not {wanted!r}"
        time.sleep(0.2)


@pytest.mark.peer("kube-apiserver")
@pytest.mark.peer("etcd")
async def test_a_volume_goes_its_whole_way_on_a_real_api_server(real: KubeApiServer, tmp_path: Path) -> None:
    def field(kind: str, name: str, path: str) -> str:
        return real.kubectl("get", kind, name, "--ignore-not-found", "-o", f"jsonpath={{{path}}}")

    def apply(text: str) -> None:
        real.kubectl("apply", "--validate=strict", "-f", "-", stdin=text)

    def run_lifecycle(programs: Programs) -> None:
        def until(what: str, kind: str, name: str, path: str, wanted: str) -> None:
            wait_for(what, programs, lambda: field(kind, name, path), wanted)

        real.kubectl("create", "serviceaccount", "default")

        def registered() -> list[str]:
            return sorted(field("csinode", "n1", ".spec.drivers[*].name").split())

        wait_for("both drivers are registered", programs, registered, ["ebs.csi.aws.com", "efs.csi.aws.com"])
        apply(CLAIM.format(name="data", cls="gp3", size="1Gi", more=""))
        apply(POD.format(name="writer", claim="data", command="echo hello > /data/note && sync"))
        until("the pod has written", "pod", "writer", ".status.phase", "Succeeded")
        assert field("pvc", "data", ".status.phase") == "Bound"
        apply(SNAPSHOT)
        until("the snapshot is ready", "volumesnapshot", "moment", ".status.readyToUse", "true")
        source = "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: moment}"
        apply(CLAIM.format(name="copy", cls="gp3", size="2Gi", more=source))
        apply(POD.format(name="reader", claim="copy", command="grep hello /data/note"))
        until("the copy has the text", "pod", "reader", ".status.phase", "Succeeded")
        grown = '{"spec":{"resources":{"requests":{"storage":"3Gi"}}}}'
        real.kubectl("patch", "pvc", "copy", "-p", grown)
        volume = field("pvc", "copy", ".spec.volumeName")
        until("the disk has grown", "pv", volume, ".spec.capacity.storage", "3Gi")
        apply(CLAIM.format(name="shared", cls="efs", size="1Gi", more=""))
        until("a shared directory is bound", "pvc", "shared", ".status.phase", "Bound")
        real.kubectl("delete", "pod", "writer", "reader", "--timeout=120s")
        real.kubectl("delete", "volumesnapshot", "moment", "--timeout=120s")
        real.kubectl("delete", "pvc", "data", "copy", "shared", "--timeout=120s")

        def left() -> str:
            return real.kubectl("get", "pv,volumeattachments,volumesnapshotcontents", "-o", "name")

        wait_for("everything is gone", programs, left, "")

    async with everything(real, tmp_path) as programs:
        await asyncio.to_thread(run_lifecycle, programs)
        await asyncio.to_thread(programs.check)
    for name in programs.running:
        text = programs.log(name).read_text().lower()
        refused = [line for line in text.splitlines() if "forbidden" in line or "cannot list" in line]
        assert refused == [], name
    assert [p.name for p in (tmp_path / "disks").iterdir()] == []
    assert [p.name for p in (tmp_path / "snapshots").iterdir()] == []


@pytest.mark.peer("kube-apiserver")
@pytest.mark.peer("etcd")
async def test_every_controller_works_with_upstreams_roles(tmp_path: Path) -> None:
    with kube_apiserver(tmp_path) as real:  # of its own: the test counts nodes and refusals
        await _play_with_controllers(real, tmp_path)


async def _play_with_controllers(real: KubeApiServer, directory: Path) -> None:
    programs = Programs(directory)
    admin = kubeconfig.load(real.config("admin"))
    words = ["controller-manager", *MANAGER_FLAGS, f"--root-ca-file={real.authority}"]
    try:
        programs.start("manager", words, real.config("manager", real.manager_token))
        await WorkloadLifecycle(admin).play()
        programs.check()
    finally:
        await admin.close()
        await asyncio.to_thread(programs.stop)
    text = programs.log("manager").read_text()
    assert [line for line in text.splitlines() if "forbidden" in line] == []
    counted = str(real.request("/metrics")).splitlines()
    refused = [
        line for line in counted if line.startswith("apiserver_request_total{") and 'code="403"' in line
    ]
    assert refused == []


# --- who may only read


READER = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader-of-journeys}
rules:
  - apiGroups: ["", storage.k8s.io]
    resources: [nodes, pods, persistentvolumeclaims, persistentvolumes, volumeattachments, csinodes, events]
    verbs: [get, list, watch]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader-of-journeys}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader-of-journeys}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
"""
EVENTS = {"ProvisioningSucceeded", "SuccessfulAttachVolume"}


@pytest.mark.peer("kube-apiserver", "etcd", "csi-provisioner", "csi-resizer")
async def test_a_user_who_may_only_read_sees_a_journey_with_upstreams_sidecars(
    real: KubeApiServer, tmp_path: Path
) -> None:
    def reasons() -> set[str]:
        return set(real.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}").split())

    def prepare(programs: Programs) -> str:
        if "default" not in real.kubectl("get", "serviceaccounts", "-o", "name"):
            real.kubectl("create", "serviceaccount", "default")
        real.kubectl("apply", "--validate=strict", "-f", "-", stdin=READER)
        claim = CLAIM.format(name="seen", cls="gp3", size="1Gi", more="")
        pod = POD.format(name="user", claim="seen", command="sleep 1000000")
        real.kubectl("apply", "--validate=strict", "-f", "-", stdin=f"{claim}---{pod}")

        def phase() -> str:
            return real.kubectl("get", "pod", "user", "-o", "jsonpath={.status.phase}")

        wait_for("the pod runs", programs, phase, "Running")
        wait_for("events are stored", programs, lambda: reasons() >= EVENTS, True)
        return real.account("reader", "default")

    def clean_up() -> None:
        real.kubectl("delete", "pod/user", "pvc/seen", "--timeout=120s")

    async with everything(real, tmp_path, upstream=("csi-provisioner", "csi-resizer")) as programs:
        config = await asyncio.to_thread(prepare, programs)
        words = ("journey", "pvc/seen", "--all", "-o", "json", "--kubeconfig", config)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "volplane", *words),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "KUBECONFIG": ""},
        )
        output, _ = await process.communicate()
        (journey,) = msgspec.json.decode(output, type=list[Journey])
        assert journey.outcome is JourneyOutcome.IN_USE
        assert {step.what for step in journey.steps if step.source is StepSource.EVENT} >= EVENTS
        assert ("field", "StartContainer") in {(step.source.value, step.what) for step in journey.steps}
        # `nodes/proxy` is more than reading: it is asked for, and its refusal is told.
        assert any("metrics of the kubelet of n1" in line and "forbidden" in line for line in journey.unknown)
        async with running_ui("--kubeconfig", config) as link:
            cluster, shown, states = await read(
                link, "/cluster", "/journey/pvc/default/seen?show=all", "/object/pvc/default/seen"
            )
        assert "in use" in cluster
        assert "SuccessfulAttachVolume" in shown
        assert "Bound" in states
        await asyncio.to_thread(clean_up)
        await asyncio.to_thread(programs.check)
