"""`volplane world`, `volplane plugins` and the metrics of a real cluster, in one process and in many.

A pod runs, a volume cannot be mounted, a volume is attached to another node, a claim is not bound, and a
FlexVolume driver is installed while the cluster runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.flex_script import FlexScript
from tests.support.up import VOLPLANE, Up

pytestmark = [pytest.mark.root, pytest.mark.peer("kubectl"), pytest.mark.slow]

EBS, FLEX = "kubernetes.io/csi:ebs.csi.aws.com", "example.com/disks"
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteOnce], storageClassName: {cls}, resources: {{requests: {{storage: 1Gi}}}}}}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers: [{{name: c, image: busybox, command: [sleep, inf], volumeMounts: [{{name: d, mountPath: /d}}]}}]
  volumes: [{{name: d, {source}}}]
---
"""
CLASSES = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: unmountable}
provisioner: ebs.csi.aws.com
mountOptions: [no-such-option]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: without-provisioner}
provisioner: nothing.example.com
---
"""


def pod(name: str, node: str, claim: str = "", flex: str = "") -> str:
    source = f"flexVolume: {{driver: {flex}}}" if flex else f"persistentVolumeClaim: {{claimName: {claim}}}"
    return POD.format(name=name, node=node, source=source)


class World:
    """A cluster with the pods above."""

    def __init__(self, up: Up, script: FlexScript, *, separate: bool) -> None:
        self.up, self.script, self.separate = up, script, separate

    def run(self, verb: str, *arguments: str, own: bool = True) -> subprocess.CompletedProcess[str]:
        where = ("--data-dir", str(self.up.directory)) if own else ()
        return subprocess.run(
            [VOLPLANE, verb, *arguments, *where], capture_output=True, text=True, timeout=100
        )

    def roles(self, verb: str, *arguments: str) -> dict[str, Any]:
        done = self.run(verb, *arguments, "-o", "json")
        assert done.returncode in (0, 3), done.stderr
        return {role["role"]: role for role in json.loads(done.stdout)["roles"]}

    def volumes(self, role: str, pod: str) -> list[Any]:
        """What a role knows about the volumes of a pod."""
        return [v for v in self.roles("world", role)[role]["volumes"] if v["pods"] == [f"default/{pod}"]]

    def volume(self, role: str, pod: str) -> Any:
        (found,) = self.volumes(role, pod)
        return found

    def plugin(self, role: str, name: str) -> Any:
        plugins = self.roles("plugins", role)[role]["plugins"]
        return next((plugin for plugin in plugins if plugin["name"] == name), None)

    def metrics(self, role: str) -> dict[str, float]:
        """The samples of a role, scraped over HTTP."""
        if role != "controller-manager":
            text = self.up.kubectl("get", "--raw", f"/api/v1/nodes/{role}/proxy/metrics")
        elif self.separate:
            port = self.up.memory().controller_manager_port
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                text = answer.read().decode()
        else:
            text = self.up.kubectl("get", "--raw", "/metrics")
        samples = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}


@pytest.fixture(scope="module", params=[(), ("--separate",)], ids=["one process", "separate"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("flex")
    script = FlexScript(directory / "exec", directory / "home")
    with Up(*request.param, "--volume-plugin-dir", str(directory / "exec")) as up:
        here = World(up, script, separate=bool(request.param))
        script.install(attach=True)
        up.wait("the FlexVolume driver is loaded", lambda: _is_loaded(here))
        claims = (("data", "standard"), ("bad", "unmountable"), ("unbound", "without-provisioner"))
        up.apply(CLASSES + "".join(CLAIM.format(name=name, cls=cls) for name, cls in claims))
        up.apply(pod("web", "worker-1", "data") + pod("flex", "worker-1", flex=FLEX))
        up.wait_running("web")
        up.wait_running("flex")
        up.apply(
            pod("bad", "worker-1", "bad")
            + pod("next", "worker-2", "data")
            + pod("early", "worker-2", "unbound")
        )
        yield here


def _is_loaded(here: World) -> bool:
    roles = here.roles("plugins").values()
    return all(any(plugin["name"] == FLEX for plugin in role["plugins"]) for role in roles)


def test_a_running_pod_has_what_it_needs(world: World) -> None:
    attached = world.volume("attachdetach", "web")
    assert (attached["node"], attached["plugin"], attached["pending"]) == ("worker-1", EBS, None)
    assert (attached["desired"], attached["actual"]) == ("attached", "attached, in use")
    mounted = world.volume("node/worker-1", "web")
    assert (mounted["volume"], mounted["name"]) == (attached["volume"], attached["name"])
    assert (mounted["desired"], mounted["actual"], mounted["pending"]) == ("mounted", "mounted", None)
    flex = world.volume("attachdetach", "flex")
    assert (flex["plugin"], flex["actual"], flex["pending"]) == (FLEX, "attached, in use", None)


def test_a_volume_that_cannot_be_mounted_shows_the_error_and_the_next_try(world: World) -> None:
    def failed() -> Any:
        volume = world.volume("node/worker-1", "bad")
        pending = volume["pending"]
        return volume if pending and pending.get("reason") == "Retry" and "next_try" in pending else None

    volume = world.up.wait("the mount has failed", failed)
    assert "cannot be mounted" in volume["pending"]["text"]
    assert (volume["desired"], volume["actual"]) == ("mounted", "attached")
    assert world.volume("attachdetach", "bad")["pending"] is None


def test_a_multi_attach_shows_on_both_sides(world: World) -> None:
    def waits() -> Any:
        return world.volume("attachdetach", "next") if world.volumes("attachdetach", "next") else None

    volume = world.up.wait("the controller waits", waits)
    assert volume["node"] == "worker-2"
    assert volume["pending"]["reason"] == "AttachedToOtherNode"
    assert volume["pending"]["text"].endswith("it is attached to worker-1")
    assert volume["pending"]["since"]
    there = world.volume("node/worker-2", "next")
    assert (there["actual"], there["pending"]["reason"]) == ("", "NotAttached")


def test_a_claim_that_is_not_bound_is_desired_and_has_no_volume(world: World) -> None:
    volume = world.up.wait("the kubelet waits", lambda: world.volumes("node/worker-2", "early"))[0]
    assert (volume["volume"], volume["name"], volume["desired"]) == ("", "d", "mounted")
    assert "unbound" in volume["pending"]["text"]
    assert world.volumes("attachdetach", "early") == []


def test_the_tables_are_readable_and_the_exit_code_tells_whether_something_is_to_be_done(
    world: World,
) -> None:
    done = world.run("world", "--pending")
    assert done.returncode == 3
    assert "\x1b[" not in done.stdout  # no colours where it is no terminal
    lines = done.stdout.splitlines()
    assert lines[0].startswith("attachdetach (attach/detach controller): ")
    assert any(line.startswith("    ▶ cannot attach the volume to worker-2") for line in lines)
    assert not any("default/web" in line for line in lines)
    assert "node/worker-2 (kubelet): " in done.stdout
    done = world.run("plugins")
    assert done.returncode == 0
    assert "  NAME " in done.stdout
    assert "STAGE_UNSTAGE_VOLUME" in done.stdout


def test_plugins_have_kind_version_capabilities_health_and_origin(world: World) -> None:
    driver = world.plugin("node/worker-1", "ebs.csi.aws.com")
    assert (driver["kind"], driver["healthy"]) == ("CSI", True)
    assert driver["version"]
    assert "STAGE_UNSTAGE_VOLUME" in driver["capabilities"]
    assert Path(driver["origin"]).is_socket()
    assert driver["since"]
    built_in = world.plugin("node/worker-1", "kubernetes.io/empty-dir")
    assert (built_in["kind"], built_in["origin"]) == ("built-in", "volplane.volumes.emptydir")
    for role in ("node/worker-1", "node/worker-2", "controller-manager"):
        flex = world.plugin(role, FLEX)
        assert (flex["kind"], flex["origin"], flex["healthy"]) == ("FlexVolume", str(world.script.path), True)
        assert "attach" in flex["capabilities"]
    controllers = world.plugin("controller-manager", "ebs.csi.aws.com")
    assert {"attachRequired", "csi-attacher"} <= {*controllers["capabilities"]}


def test_without_the_data_directory_the_controllers_side_is_derived_from_the_api(
    world: World, tmp_path: Path
) -> None:
    shutil.copy(world.up.kubeconfig, tmp_path / "config")
    where = ("--kubeconfig", str(tmp_path / "config"))
    done = world.run("world", "-o", "json", *where, own=False)
    assert done.returncode == 3
    controller, *kubelets = json.loads(done.stdout)["roles"]
    assert (controller["role"], controller["source"]) == ("attachdetach", "api")
    reasons = [volume["pending"]["reason"] for volume in controller["volumes"] if volume["pending"]]
    assert reasons == ["AttachedToOtherNode"]
    assert [(kubelet["role"], kubelet["source"]) for kubelet in kubelets] == [
        ("node/worker-1", "none"),
        ("node/worker-2", "none"),
    ]
    assert "only the kubelet knows it" in world.run("world", *where, own=False).stdout
    done = world.run("plugins", "node/worker-1", *where, own=False)
    assert "CSINode, node ID" in done.stdout
    assert "not known: built-in plugins" in done.stdout


@pytest.mark.parametrize("verb", ["world", "plugins"])
def test_mistakes_get_a_clear_error(world: World, verb: str, tmp_path: Path) -> None:
    done = world.run(verb, "node/worker-9")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "volplane: node worker-9 does not exist; nodes: worker-1, worker-2\n"
    done = world.run(verb, "pods")
    assert (done.returncode, "cannot show pods: write " in done.stderr) == (1, True)
    done = world.run(verb, "--data-dir", str(tmp_path), own=False)
    assert (done.returncode, "volplane up --data-dir" in done.stderr) == (1, True)
    done = world.run(verb, "--kubeconfig", world.up.kubeconfig)
    assert (done.returncode, "--data-dir and --name exclude --kubeconfig" in done.stderr) == (2, True)


# --- metrics


def test_the_controllers_count_desired_and_actual_volumes(world: World) -> None:
    found = world.metrics("controller-manager")
    total = "attachdetach_controller_total_volumes"
    assert found[f'{total}{{plugin_name="{EBS}",state="desired_state_of_world"}}'] == 3
    assert found[f'{total}{{plugin_name="{EBS}",state="actual_state_of_world"}}'] == 2
    assert found[f'{total}{{plugin_name="{FLEX}",state="actual_state_of_world"}}'] == 1
    in_use = "storage_count_attachable_volumes_in_use"
    assert found[f'{in_use}{{node="worker-1",volume_plugin="{EBS}"}}'] == 2
    assert found[f'pv_collector_total_pv_count{{plugin_name="{EBS}",volume_mode="Filesystem"}}'] == 2
    assert found['pv_collector_bound_pv_count{storage_class="standard"}'] == 1
    claims = 'namespace="default",storage_class="{}",volume_attributes_class=""'
    assert found[f"pv_collector_bound_pvc_count{{{claims.format('unmountable')}}}"] == 1
    assert found[f"pv_collector_unbound_pvc_count{{{claims.format('without-provisioner')}}}"] == 1
    attach = f'operation_name="volume_attach",status="success",volume_plugin="{EBS}"'
    assert found[f'storage_operation_duration_seconds_count{{migrated="false",{attach}}}'] == 2
    assert f'storage_operation_duration_seconds_bucket{{le="0.25",migrated="false",{attach}}}' in found
    provision = 'operation_name="provision",plugin_name="ebs.csi.aws.com"'
    assert found[f"volume_operation_total_seconds_count{{{provision}}}"] == 2


def test_a_kubelet_counts_its_volumes_and_times_its_operations(world: World) -> None:
    found = world.metrics("worker-1")
    total = "volume_manager_total_volumes"
    desired = found[f'{total}{{plugin_name="{EBS}",state="desired_state_of_world"}}']
    assert desired == (2 if world.separate else 3)  # in one process, of both nodes
    assert found[f'{total}{{plugin_name="{EBS}",state="actual_state_of_world"}}'] == 1
    seconds = "storage_operation_duration_seconds_count"
    mount = f'operation_name="volume_mount",status="{{}}",volume_plugin="{EBS}"'
    assert found[f'{seconds}{{migrated="false",{mount.format("success")}}}'] == 1
    assert found[f'{seconds}{{migrated="false",{mount.format("fail-unknown")}}}'] >= 1
    verify = f'operation_name="verify_controller_attached_volume",status="success",volume_plugin="{EBS}"'
    assert found[f'{seconds}{{migrated="false",{verify}}}'] == 2
    overall = f'operation_name="overall_volume_mount",plugin_name="{EBS}"'
    assert found[f"volume_operation_total_seconds_count{{{overall}}}"] == 1
    call = 'driver_name="ebs.csi.aws.com",grpc_status_code="OK",method_name="/csi.v1.Node/NodePublishVolume"'
    assert found[f'csi_operations_seconds_count{{{call},migrated="false"}}'] == 1


# --- the end: what changes the cluster


def test_a_volume_that_moves_is_detached_and_counted(world: World) -> None:
    world.up.kubectl("delete", "pod", "web", "--now")
    world.up.wait_running("next")
    assert world.volume("attachdetach", "next")["pending"] is None
    detach = f'migrated="false",operation_name="volume_detach",status="success",volume_plugin="{EBS}"'
    assert world.metrics("controller-manager")[f"storage_operation_duration_seconds_count{{{detach}}}"] == 1
    unmount = f'migrated="false",operation_name="{{}}",status="success",volume_plugin="{EBS}"'
    found = world.metrics("worker-1")
    for operation in ("volume_unmount", "unmount_device"):
        assert found[f"storage_operation_duration_seconds_count{{{unmount.format(operation)}}}"] == 1


def test_a_node_that_is_down_is_said_to_be_silent(world: World) -> None:
    if not world.separate:
        pytest.skip("only a process of its own can be killed")
    done = subprocess.run(
        [VOLPLANE, "crash", "node/worker-2", "--data-dir", str(world.up.directory)], capture_output=True
    )
    assert done.returncode == 0
    shown = world.run("world", "node/worker-2").stdout
    assert "not known: its kubelet does not answer" in shown
    assert world.roles("plugins", "node/worker-2")["node/worker-2"]["source"] == "api"


def test_a_cluster_that_is_stopped_does_not_answer(world: World) -> None:
    world.up.stop()
    done = world.run("world")
    assert (done.returncode, done.stdout) == (1, "")
    assert "volplane up" in done.stderr or "does not answer" in done.stderr
