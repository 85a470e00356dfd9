"""The runtime and the registries of these tests are real: they run, serve, refuse, and leave nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.cri import image
from tests.support.cri.containerd import CGROUPS, HANDLERS, PAUSE, Containerd, run_containerd
from tests.support.cri.fixtures import PRIVATE
from tests.support.cri.registry import PASSWORD, USER, Registry
from tests.support.up import wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow]


def accepts(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


def pull(runtime: Containerd, *arguments: str) -> str:
    return runtime.ctr("images", "pull", "--hosts-dir", str(runtime.directory / "registries"), *arguments)


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_container_of_a_built_image_runs(handler: str, containerd: Containerd) -> None:
    if handler not in containerd.handlers:
        pytest.skip(f"{handler} does not start containers of this containerd")
    pull(containerd, "docker.io/library/busybox:latest")
    shown = containerd.ctr(
        "run", "--rm", "--runc-binary", str(containerd.find_handler(handler)),
        "docker.io/library/busybox:latest", f"hello-{handler}", "sh", "-c", "echo $PATH; id -u",
    )  # fmt: skip
    assert shown.splitlines() == [image.SEARCH_PATH, "0"]


@pytest.mark.peer("crictl")
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_pod_of_crictl_has_a_network(handler: str, containerd: Containerd, tmp_path: Path) -> None:
    if handler not in containerd.handlers:
        pytest.skip(f"{handler} does not start containers of this containerd")
    pod = {
        "metadata": {"name": f"pod-{handler}", "namespace": "default", "uid": f"uid-{handler}", "attempt": 0},
        "log_directory": str(tmp_path),
        "linux": {},
    }
    container = {
        "metadata": {"name": "server"},
        "image": {"image": "nginx"},
        "log_path": "server.log",
        "linux": {},
    }
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    (tmp_path / "container.json").write_text(json.dumps(container))
    sandbox = containerd.crictl("runp", "--runtime", handler, str(tmp_path / "pod.json")).strip()
    containerd.crictl("pull", "nginx")
    files = (str(tmp_path / "container.json"), str(tmp_path / "pod.json"))
    created = containerd.crictl("create", sandbox, *files).strip()
    containerd.crictl("start", created)
    address = json.loads(containerd.crictl("inspectp", sandbox))["status"]["network"]["ip"]
    wait_until("nginx listens", lambda: accepts(address, 80))
    with urllib.request.urlopen(f"http://{address}/") as page:
        assert page.read() == b"<h1>Welcome to nginx!</h1>\n"
    log = tmp_path / "server.log"  # nginx writes it after its reply
    wait_until("the request is in the log", lambda: "GET / HTTP/1.1" in log.read_text())
    containerd.crictl("stopp", sandbox)
    containerd.crictl("rmp", sandbox)


def test_debians_postgresql_runs_in_an_image(containerd: Containerd, registry: Registry) -> None:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("Debian's postgresql is not installed: tools/packages.sh")
    registry.push(image.postgres(), "library/postgres")
    pull(containerd, "docker.io/library/postgres:latest")
    start = "initdb --auth=trust >/dev/null && pg_ctl -w -o '-k /tmp -c listen_addresses=' start"
    ask = "psql -h /tmp -U postgres -d postgres -At -c 'SELECT 6 * 7'"
    shown = containerd.ctr(
        "run", "--rm", "docker.io/library/postgres:latest", "database", "sh", "-c", f"{start} && {ask}"
    )
    assert shown.splitlines()[-1] == "42"


def test_an_image_is_pulled_by_its_digest(containerd: Containerd) -> None:
    name = f"docker.io/library/busybox@{image.busybox().digest}"
    pull(containerd, name)
    assert name in containerd.list_images()


def test_a_private_registry_wants_a_password(containerd: Containerd) -> None:
    name = f"{PRIVATE}/team/app:v1"
    with pytest.raises(AssertionError, match=r"401 Unauthorized|authorization failed"):
        pull(containerd, name)
    pull(containerd, "--user", f"{USER}:{PASSWORD}", name)
    assert name in containerd.list_images()


def test_damaged_layers_are_noticed(containerd: Containerd, registry: Registry) -> None:
    damaged = image.busybox().add_files({"etc/motd": "damaged"})
    registry.push(damaged, "library/damaged")
    registry.damage(damaged.layers[-1].data)
    with pytest.raises(AssertionError, match=r"unexpected commit digest|failed to extract|invalid"):
        pull(containerd, "docker.io/library/damaged:latest")


def test_nothing_is_left_of_a_runtime_that_has_containers(registry: Registry) -> None:
    with run_containerd({"_default": registry.url}) as runtime:
        pull(runtime, PAUSE)
        directory = runtime.directory
        name = f"left-{directory.name}"
        runtime.ctr("run", "--detach", PAUSE, name)
        assert runtime.list_tasks() == [name]
        assert len(runtime.list_shims()) == 1
        assert list(CGROUPS.glob(f"**/{name}"))
    assert not directory.exists()
    assert machine.leftovers(directory) == {}
    assert runtime.list_shims() == []
    assert not list(CGROUPS.glob(f"**/{name}"))
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert runtime.bridge not in links
