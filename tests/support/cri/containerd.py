"""containerd as a process of the test, with its own socket, directories, CNI network and registries.

It is Debian's, or a newer one from the peers, which mounts images as volumes and reports container events.

It needs no settings of the machine, and leaves nothing on it: no shim, mount, network or cgroup.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import machine, peers
from tests.support.up import wait_until
from tests.support.vm_tests import CAP_SYS_RESOURCE, has_capability

NAMESPACE = "k8s.io"  # of the containers that CRI makes
PAUSE = "registry.k8s.io/pause:3.10"
HANDLERS = ("runc", "crun")
NEEDED = ("containerd", *HANDLERS, "docker-registry", "busybox", "ip")
NEWER = ("containerd-2", "containerd-shim-runc-v2")
CGROUPS = Path("/sys/fs/cgroup")
CNI_PROGRAMS = "/usr/lib/cni"
CNI_CACHE = Path("/var/lib/cni/results")  # containerd has no setting for it

CONFIG = """version = 2
root = "{root}"
state = "{state}"
# The plugins of other snapshotters and of gRPC over TCP look at the machine, and are not used.
disabled_plugins = [
    "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  restrict_oom_score_adj = {restrict}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{programs}"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
"""
HANDLER = """
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
        BinaryName = "{program}"
"""
# crun refuses a machine whose cgroup v1 and v2 both have controllers: hide v2 from it, in its own namespace.
CRUN = """#!/bin/sh
exec unshare --mount --propagation unchanged sh -c \
    'mount --make-rprivate /sys/fs/cgroup && umount /sys/fs/cgroup/unified && exec crun "$@"' crun "$@"
"""


class Containerd:
    """One runtime. It can be stopped, killed, frozen and started again; its containers go on."""

    def __init__(self, directory: Path, *, network: bool = True, newer: bool = False) -> None:
        """`newer`: that of the peers, from its next start on."""
        self.directory = directory
        self.newer = newer
        self.with_network = network
        self.process: subprocess.Popen[bytes] | None = None
        tag = hashlib.sha256(str(directory).encode()).digest()
        self.bridge = f"vpt{tag.hex()[:10]}"
        self.subnet = f"10.{200 + tag[0] % 50}.{tag[1]}"

    @property
    def handlers(self) -> tuple[str, ...]:
        """The OCI runtimes that can start its containers; Debian's crun is too old for a newer one."""
        return ("runc",) if self.newer else HANDLERS

    @property
    def socket(self) -> Path:
        return self.directory / "containerd.sock"

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    @property
    def networks(self) -> Path:
        """The directory of CNI configurations."""
        return self.directory / "net.d"

    # --- configuration

    def configure(self) -> None:
        self.networks.mkdir(parents=True, exist_ok=True)
        text = CONFIG.format(
            root=self.directory / "root",
            state=self.directory / "state",
            socket=self.socket,
            directory=self.directory,
            pause=PAUSE,
            programs=CNI_PROGRAMS,
            networks=self.networks,
            registries=self.directory / "registries",
            # Less than the own value needs the capability, and sandboxes ask for -998.
            restrict=str(not has_capability(CAP_SYS_RESOURCE)).lower(),
        )
        handlers = "".join(HANDLER.format(name=name, program=self.find_handler(name)) for name in HANDLERS)
        (self.directory / "config.toml").write_text(text + handlers)
        if self.with_network:
            self._configure_network()

    def find_handler(self, name: str) -> Path:
        """The program of an OCI runtime."""
        wrapper = self.directory / name
        if name == "crun" and _has_two_cgroup_versions():
            wrapper.write_text(CRUN)
            wrapper.chmod(0o755)
            return wrapper
        return Path(shutil.which(name) or name)

    def _configure_network(self) -> None:
        bridge = {
            "type": "bridge",
            "bridge": self.bridge,
            "isDefaultGateway": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.directory / "addresses"),
                "ranges": [[{"subnet": f"{self.subnet}.0/24"}]],
            },
        }
        network = {"cniVersion": "0.4.0", "name": self.bridge, "plugins": [bridge]}
        (self.networks / "10-test.conflist").write_text(json.dumps(network))
        self.add_bridge()

    def add_bridge(self) -> None:
        """With the directory as its alias, by which the leak check finds it."""
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "link", "set", self.bridge, "alias", str(self.directory))

    def map_registry(self, name: str, url: str) -> None:
        """Fetch the images of registry `name` (`_default`: of all others) from a URL, and nowhere else."""
        place = self.directory / "registries" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "hosts.toml").write_text(
            f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'
        )

    # --- start and stop

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            program = peers.path(NEWER[0]) if self.newer else "containerd"
            self.process = subprocess.Popen(
                [program, "--config", str(self.directory / "config.toml")],
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": _find_search_path(newer=self.newer)},
                start_new_session=True,
            )
        wait_until("containerd answers", self._answers, 30)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.read_log()[-3000:]
        return "cri" in self.ctr("plugins", "ls", "id==cri", "-q", check=False)

    def kill(self) -> None:
        """Kill it like a crash; shims and containers go on."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait(30)
            self.process = None

    def replace(self) -> None:
        """Put a new one in its place, which knows neither its containers nor its images."""
        self.kill()
        self._kill_containers()
        machine.purge(self.directory / "state")
        for name in ("root", "state"):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        self.start()

    def freeze(self) -> None:
        """Stop it from answering."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def read_log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    # --- what it has

    def ctr(self, *arguments: str, check: bool = True) -> str:
        """containerd's own command, which knows nothing of CRI."""
        done = subprocess.run(
            ["ctr", "--address", str(self.socket), "--namespace", NAMESPACE, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, f"ctr {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def crictl(self, *arguments: str, check: bool = True) -> str:
        """Upstream's client of CRI: what a node that uses this runtime should agree with."""
        done = subprocess.run(
            [peers.path("crictl"), "--runtime-endpoint", self.endpoint, "--timeout", "30s", *arguments],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert not check or done.returncode == 0, f"crictl {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def list_containers(self) -> list[str]:
        """The ids of all containers, sandboxes included, whether they run or not."""
        return self.ctr("containers", "ls", "-q").split()

    def list_images(self) -> list[str]:
        return self.ctr("images", "ls", "-q").split()

    def list_tasks(self) -> list[str]:
        """The ids of tasks, from the directories of their shims; also if it does not run."""
        place = self.directory / "state" / "io.containerd.runtime.v2.task" / NAMESPACE
        return sorted(path.name for path in place.glob("*"))

    def list_shims(self) -> list[int]:
        return [
            pid for pid, why in _commands().items() if "containerd-shim" in why and str(self.socket) in why
        ]

    # --- removal

    def remove(self) -> None:
        """Kill it with all its containers, and remove mounts, networks, cgroups and files."""
        self.kill()
        self._kill_containers()
        machine.purge(self.directory)
        for cached in CNI_CACHE.glob(f"{self.bridge}-*"):
            cached.unlink(missing_ok=True)
        shutil.rmtree(self.directory)

    def _kill_containers(self) -> None:
        tasks, shims = self.list_tasks(), self.list_shims()
        members = [pid for task in tasks for path in _find_cgroups(task) for pid in _read_members(path)]
        for pid in (*shims, *members, *(child for shim in shims for child in _descendants(shim))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for task in tasks:
            remove_cgroups(_find_cgroups(task))


def _find_search_path(*, newer: bool) -> str:
    """Where containerd finds its shim."""
    own = [os.path.dirname(peers.path(NEWER[1]))] if newer else []
    return os.pathsep.join((*own, os.environ["PATH"]))


def _has_two_cgroup_versions() -> bool:
    with suppress(OSError):
        return bool((CGROUPS / "unified" / "cgroup.controllers").read_text().strip())
    return False


def remove_cgroups(paths: list[Path]) -> None:
    """Remove cgroups without processes; the kernel may still be busy with those that were just killed."""
    for path in paths:
        wait_until(f"{path} is removed", lambda path=path: _is_removed(path), 10)  # type: ignore[misc]


def _is_removed(path: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            path.rmdir()
        except OSError:  # busy
            return False
    return True


def _find_cgroups(task: str) -> list[Path]:
    """The cgroups of a container in all hierarchies, innermost first."""
    found = [path for path in CGROUPS.glob(f"**/*{task}*") if path.is_dir()]
    below = [child for path in found for child in path.rglob("*/")]
    return sorted({*found, *below}, key=lambda path: -len(path.parts))


def _read_members(cgroup: Path) -> list[int]:
    try:
        return [int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _commands() -> dict[int, str]:
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (place / "cmdline").read_bytes()
            found[int(place.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def run_containerd(
    registries: Mapping[str, str], *, network: bool = True, newer: bool = False
) -> Iterator[Containerd]:
    """A runtime that fetches the images of registries from these URLs."""
    # A short path: that of a socket has at most 107 characters.
    runtime = Containerd(Path(tempfile.mkdtemp(prefix="cri-")), network=network, newer=newer)
    try:
        runtime.configure()
        for name, url in registries.items():
            runtime.map_registry(name, url)
        runtime.start()
        yield runtime
    finally:
        runtime.remove()
