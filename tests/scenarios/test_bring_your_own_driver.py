"""Drivers of other people under `volplane up`: by a command, by a file, by their own manifests."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import peers
from tests.support.up import VOLPLANE, Up, wait_until
from volplane.cli import main

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.peer("kubectl")]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "04-your-own-driver"
HOSTPATH = "hostpath.csi.k8s.io"
PATIENCE = 100.0
KILL = ("sh", "-c", "kill -9 2")  # the first process is the container's own, the second the driver


def claim(name: str, storage_class: str = "", **spec: Any) -> dict[str, Any]:
    chosen = {"storageClassName": storage_class} if storage_class else {}
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {**wanted, **chosen, **spec},
    }


def pod(name: str, claims: str, command: str, node: str = "") -> dict[str, Any]:
    container = {
        "name": "work",
        "image": "busybox",
        "command": ["sh", "-ec", f"{command}; touch /tmp/done; sleep infinity"],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/done"]}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claims}}],
        },
    }


def apply(up: Up, *objects: dict[str, Any]) -> None:
    up.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def ready(up: Up, name: str) -> None:
    up.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={PATIENCE:.0f}s")


def remove(up: Up, *what: str) -> None:
    up.kubectl("delete", *what, f"--timeout={PATIENCE:.0f}s")
    wait_until("no volume is left", lambda: not up.items("pv"), PATIENCE)


def classes(up: Up) -> dict[str, Any]:
    return {c["metadata"]["name"]: c for c in up.items("storageclass")}


# --- a file


@pytest.fixture(scope="module")
def folders() -> Iterator[Up]:
    with Up("--driver", str(EXAMPLE / "driver.yaml"), nodes=2) as up:
        yield up
    assert up.leftovers() == {}


def test_the_drivers_own_class_is_the_only_one(folders: Up) -> None:
    assert list(classes(folders)) == ["folders"]
    (driver,) = folders.items("csidriver")
    assert driver["metadata"]["name"] == "folders.example.com"
    assert driver["spec"]["attachRequired"] is False
    assert "driver folders.example.com 1.0: one controller" in folders.log()
    assert "StorageClass folders (Immediate)" in folders.log()


def test_the_example_prints_what_its_readme_says(folders: Up) -> None:
    blocks = (EXAMPLE / "README.md").read_text().split("```")
    last = ""
    for line in filter(None, blocks[3].splitlines()):
        words = shlex.split(line.replace("examples/04-your-own-driver", str(EXAMPLE)))
        last = folders.kubectl(*words[1:], *(["--timeout=100s"] if words[1] == "wait" else []))
    assert last.strip() == blocks[5].strip()
    place = folders.directory / "shared" / "folders.example.com"
    assert [p.name for p in place.glob("*/*")] == ["line"]
    remove(folders, "-f", str(EXAMPLE / "app.yaml"))
    assert list(place.iterdir()) == []


def test_a_driver_that_was_killed_comes_back_with_its_state(folders: Up) -> None:
    apply(folders, claim("kept"), pod("before", "kept", "echo hello > /data/line", "worker-1"))
    ready(folders, "before")
    node = "folders-example-com"
    for one in folders.items("pods", "-n", node):
        name = one["metadata"]["name"]  # the exec may die with the container
        folders.kubectl("exec", name, "-n", node, "-c", "driver", "--", *KILL, check=False)
    wait_until("they were started again", lambda: all(restarts(folders, node)), PATIENCE)
    apply(folders, pod("after", "kept", "grep hello /data/line", "worker-1"))
    ready(folders, "after")
    remove(folders, "pod/before", "pod/after", "pvc/kept")


def test_every_instance_has_a_liveness_probe_that_answers(folders: Up) -> None:
    node = "folders-example-com"
    for one in folders.items("pods", "-n", node):
        beside = {s["name"]: s for s in one["status"]["containerStatuses"]}
        assert beside["liveness-probe"]["ready"], beside
        assert not beside["liveness-probe"]["restartCount"]
        said = folders.kubectl("logs", one["metadata"]["name"], "-n", node, "-c", "liveness-probe")
        assert "ServeMux listening" in said


def test_the_next_start_need_not_be_told_again(folders: Up) -> None:
    apply(folders, claim("kept"), pod("before", "kept", "echo hello > /data/line"))
    ready(folders, "before")
    folders.kubectl("delete", "pod/before", f"--timeout={PATIENCE:.0f}s")
    folders.stop()
    folders.arguments = folders.arguments[:4]  # the directory and the number of nodes
    folders.start()
    assert f"options of the last start: --driver {EXAMPLE / 'driver.yaml'}" in folders.log()
    assert list(classes(folders)) == ["folders"], "EBS is not there only because nobody spoke of another"
    apply(folders, pod("after", "kept", "grep hello /data/line"))
    ready(folders, "after")
    remove(folders, "pod/after", "pvc/kept")


def restarts(up: Up, namespace: str) -> list[int]:
    reported = [s for p in up.items("pods", "-n", namespace) for s in p["status"]["containerStatuses"]]
    return [s["restartCount"] for s in reported if s["name"] == "driver" and s["ready"]]


# --- a command, with a process per role


@pytest.mark.peer("hostpathplugin")
def test_upstreams_driver_by_its_command() -> None:
    program = shlex.quote(peers.path("hostpathplugin"))
    line = f"{program} --endpoint=$CSI_ENDPOINT --nodeid=$NODE_ID --enable-attach --statedir=$STATE_DIR"
    with Up("--separate", "--driver-command", line, nodes=2) as up:
        assert list(classes(up)) == [HOSTPATH]
        assert up.get("csidriver", HOSTPATH)["spec"]["attachRequired"] is True
        apply(up, claim("data"), pod("writer", "data", "echo hello > /data/line"))
        ready(up, "writer")
        assert up.get("pod", "writer")["spec"]["nodeName"] == "worker-1"
        snapshot = {
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {"name": "snap"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
        }
        apply(up, snapshot)
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}
        restored = claim("copy", dataSource=source)
        apply(up, restored, pod("reader", "copy", "grep hello /data/line"))
        ready(up, "reader")
        up.kubectl("delete", "pod/writer", "pod/reader", f"--timeout={PATIENCE:.0f}s")
        up.kubectl("delete", "volumesnapshot/snap", f"--timeout={PATIENCE:.0f}s")
        remove(up, "pvc/data", "pvc/copy")
    assert up.leftovers() == {}


# --- the author's manifests, unmodified


@pytest.mark.peer("hostpathplugin")
def test_upstreams_own_manifests_work_as_they_are() -> None:
    directory = peers.manifests("hostpathplugin", "kubernetes-1.20/hostpath/csi-hostpath-plugin.yaml")[
        0
    ].parent
    mapped = f"k8s.gcr.io/sig-storage/hostpathplugin={shlex.quote(peers.path('hostpathplugin'))}"
    there = Path("/var/lib/csi-hostpath-data").exists()
    with Up("--manifest", str(directory), "--image", mapped, nodes=2) as up:
        for name in ("csi-storageclass.yaml", "csi-pvc.yaml", "csi-app.yaml"):
            up.kubectl("apply", "-f", str(peers.manifests("hostpathplugin", f"examples/{name}")[0]))
        ready(up, "my-csi-app")
        up.kubectl("exec", "my-csi-app", "--", "sh", "-c", "echo hello > /data/line")
        node = up.get("pod", "my-csi-app")["spec"]["nodeName"]
        own = up.directory / "n" / node.removeprefix("worker-") / "host/var/lib/csi-hostpath-data"
        assert [p.read_text() for p in own.glob("*/line")] == ["hello\n"]
        ended = [s for s in statuses(up, "csi-hostpathplugin-0") if "running" not in s["state"]]
        assert ended == []
        up.kubectl("delete", "pod", "my-csi-app", "--grace-period=1", f"--timeout={PATIENCE:.0f}s")
        remove(up, "pvc", "csi-pvc")
    assert up.leftovers() == {}
    assert Path("/var/lib/csi-hostpath-data").exists() is there, "a node's own directory, not the machine's"


@pytest.mark.peer("hostpathplugin", "csi-provisioner")
def test_an_instance_on_every_node_as_upstream_deploys_it() -> None:
    """Each has its own provisioner, its own state, and a health port that its neighbours want, too."""
    (roles,) = peers.manifests("csi-provisioner", "deploy/kubernetes/rbac.yaml")
    directory = peers.manifests("hostpathplugin", "kubernetes-distributed/hostpath/*-plugin.yaml")[0].parent
    mapped = f"k8s.gcr.io/sig-storage/hostpathplugin={shlex.quote(peers.path('hostpathplugin'))}"
    with Up("--manifest", str(directory), "--manifest", str(roles), "--image", mapped, nodes=2) as up:
        nodes = ("worker-1", "worker-2")
        for node in nodes:
            writes = pod(f"on-{node}", f"data-{node}", f"echo {node} > /data/line", node)
            apply(up, claim(f"data-{node}", "csi-hostpath-slow"), writes)
        for index, node in enumerate(nodes, 1):
            ready(up, f"on-{node}")
            own = up.directory / "n" / str(index) / "host/var/lib/csi-hostpath-data"
            assert [p.read_text() for p in own.glob("*/line")] == [f"{node}\n"]
        ended = [
            s
            for p in up.items("pods", "-l", "app.kubernetes.io/name=csi-hostpathplugin")
            for s in p["status"]["containerStatuses"]
            if "running" not in s["state"] or s["restartCount"]
        ]
        assert ended == []
        up.kubectl("delete", *(f"pod/on-{n}" for n in nodes), f"--timeout={PATIENCE:.0f}s")
        remove(up, *(f"pvc/data-{n}" for n in nodes))
    assert up.leftovers() == {}


def statuses(up: Up, name: str) -> list[Any]:
    reported: list[Any] = up.get("pod", name)["status"]["containerStatuses"]
    return reported


# --- what cannot start


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--driver-command", "no-such-driver"), '"no-such-driver" is not a program on this machine'),
        (("--driver", "/no/such.yaml"), "/no/such.yaml: no such file or directory"),
        (("--manifest", "/no/such.yaml"), "/no/such.yaml does not exist"),
        (("--image", "a="), "--image is registry/name=path-or-command"),
        (
            ("--image", "a"),
            "--image a has no command: give a=path-or-command, or --container-runtime-endpoint",
        ),
    ],
)
def test_what_is_not_there_is_said_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], why: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["up", "--data-dir", str(tmp_path / "d"), *arguments])
    assert end.value.code == (2 if "--image" in arguments else 1)
    assert why in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        (
            "--driver-command",
            "sh -c 'echo no disk; exit 3'",
            "ended with code 3 before it was queried; its log:\n    no disk",
        ),
        ("--manifest", "m.yaml", "ConfigMap no_name is refused: "),
    ],
)
def test_what_cannot_start_ends_with_its_reason(tmp_path: Path, option: str, given: str, why: str) -> None:
    (tmp_path / "m.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: no_name}\n")
    asked = [VOLPLANE, "up", "--data-dir", str(tmp_path / "d"), "--nodes", "1", option, given]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "d").exists()
