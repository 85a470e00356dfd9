"""Build the upstream programs that the tests run against, and store manifests, outside the repository.

    python tools/peers.py [--cache DIR] [name … | all]

Each program is built from the source of the Go module proxy, verified with Go's checksum database, or
installed from PyPI with hashes, into `DIR/peers/<name>-<version>`. `DIR/bin/<name>` is a link to it, so that
a new version in the table below is built again. If a build fails, `<name>-<version>.failed` has the reason,
with which the tests that need the program are skipped. Upstream's manifests (roles, custom resource
definitions) are stored in `DIR/peers/<name>-<version>.deploy`; some peers consist of manifests only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

CACHE = Path(os.environ.get("VOLPLANE_CACHE") or Path.home() / ".cache" / "volplane")
CSI = "github.com/kubernetes-csi"
PATIENCE = 1800  # seconds for one build on a slow machine


class Peer(NamedTuple):
    name: str
    module: str
    version: str
    package: str = ""  # path in the module; "": use `main` below, or no program
    replace: tuple[tuple[str, str], ...] = ()  # modules that the module's archive does not contain
    # (module, directory of manifests, or a file); "" is the peer's own module
    deploy: tuple[tuple[str, str], ...] = ()
    main: str = ""
    variable: str = "main.version"  # the variable with the program's version
    staged: bool = False  # part of the Kubernetes repository, whose libraries are published separately
    libraries: str = ""  # the published version of libraries that go.mod takes from the Kubernetes repository
    optional: bool = False  # built only on request, because it takes long
    source: str = ""  # for a program of our own: its directory in this repository
    tests: bool = False  # the program is the test binary of `package`
    lock: str = ""  # for a Python program: the file with its pinned packages

    @property
    def is_program(self) -> bool:
        return bool(self.package or self.main or self.source or self.lock)


# kubectl's own main lies in a module that cannot be built by itself: this is all of it that matters.
KUBECTL = """package main

import (
\t"k8s.io/component-base/cli"
\t"k8s.io/kubectl/pkg/cmd"
\t"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
\tif err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
\t\tutil.CheckErr(err)
\t}
}
"""
# The OpenTelemetry collector's OTLP receiver, which appends what it receives to a file.
OTLP_RECEIVER = """package main

import (
\t"context"
\t"os"

\t"go.opentelemetry.io/collector/component/componenttest"
\t"go.opentelemetry.io/collector/confmap"
\t"go.opentelemetry.io/collector/consumer"
\t"go.opentelemetry.io/collector/pdata/ptrace"
\t"go.opentelemetry.io/collector/receiver/otlpreceiver"
\t"go.opentelemetry.io/collector/receiver/receivertest"
)

func check(err error) {
\tif err != nil {
\t\tpanic(err)
\t}
}

func main() {
\tctx := context.Background()
\tfile, err := os.OpenFile(os.Args[2], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
\tcheck(err)
\tsink, err := consumer.NewTraces(func(_ context.Context, traces ptrace.Traces) error {
\t\tline, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
\t\tif err == nil {
\t\t\t_, err = file.Write(append(line, 10))
\t\t}
\t\treturn err
\t})
\tcheck(err)
\tfactory := otlpreceiver.NewFactory()
\tsettings := factory.CreateDefaultConfig()
\tcheck(confmap.NewFromStringMap(map[string]any{
\t\t"protocols": map[string]any{"http": map[string]any{"endpoint": os.Args[1]}},
\t}).Unmarshal(settings))
\tmade, err := factory.CreateTraces(ctx, receivertest.NewNopSettings(factory.Type()), settings, sink)
\tcheck(err)
\tcheck(made.Start(ctx, componenttest.NewNopHost()))
\t_, err = os.Stdout.WriteString("ready\\n")
\tcheck(err)
\tselect {}
}
"""
# The leader election of CSI sidecars: `csi-elector KUBECONFIG NAMESPACE LOCK IDENTITY` says that it leads.
CSI_ELECTOR = """package main

import (
\t"context"
\t"os"
\t"time"

\t"github.com/kubernetes-csi/csi-lib-utils/leaderelection"
\t"k8s.io/client-go/kubernetes"
\t"k8s.io/client-go/tools/clientcmd"
)

func main() {
\tconfig, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
\tif err != nil {
\t\tpanic(err)
\t}
\telection := leaderelection.NewLeaderElection(
\t\tkubernetes.NewForConfigOrDie(config), os.Args[3], func(ctx context.Context) {
\t\t\tprintln("leading")
\t\t\t<-ctx.Done()
\t\t})
\telection.WithNamespace(os.Args[2])
\telection.WithIdentity(os.Args[4])
\telection.WithLeaseDuration(4 * time.Second)
\telection.WithRenewDeadline(3 * time.Second)
\telection.WithRetryPeriod(time.Second)
\tif err := election.Run(); err != nil {
\t\tpanic(err)
\t}
}
"""
ROOT = Path(__file__).resolve().parents[1]
GO_DRIVER = "tests/support/go_driver"


def _digest(directory: str) -> str:
    """A version for sources of this repository: changed ones are built again."""
    found = hashlib.sha256()
    for file in sorted((ROOT / directory).iterdir()):
        found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:12]


def _locked_version(name: str) -> str:
    """The version in tools/<name>.lock, which `tools/lock.py` writes."""
    lines = Path(__file__).with_name(f"{name}.lock").read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{name}=="))


SNAPSHOT_CLIENT = f"{CSI}/external-snapshotter/client/v8"
SNAPSHOT_CLIENT_VERSION = "v8.2.0"
KUBERNETES = "35.4"

# The newest versions that the proxy serves with a checksum and that run against the API of v1.35.
PEERS = (
    Peer("csi-sanity", f"{CSI}/csi-test/v5", "v5.6.0", "./cmd/csi-sanity"),
    Peer(
        "hostpathplugin",
        f"{CSI}/csi-driver-host-path",
        "v1.7.2",
        "./cmd/hostpathplugin",
        deploy=(("", "deploy"), ("", "examples")),
    ),
    Peer(
        "csi-provisioner",
        f"{CSI}/external-provisioner/v5",
        "v5.1.0",
        "./cmd/csi-provisioner",
        deploy=(("", "deploy/kubernetes"),),
    ),
    Peer(
        "csi-resizer",
        f"{CSI}/external-resizer",
        "v1.14.0",
        "./cmd/csi-resizer",
        deploy=(("", "deploy/kubernetes"),),
    ),
    Peer(
        "csi-snapshotter",
        f"{CSI}/external-snapshotter/v8",
        "v8.3.0",
        "./cmd/csi-snapshotter",
        replace=((SNAPSHOT_CLIENT, SNAPSHOT_CLIENT_VERSION),),
        deploy=(("", "deploy/kubernetes/csi-snapshotter"),),
    ),
    Peer(
        "snapshot-controller",
        f"{CSI}/external-snapshotter/v8",
        "v8.3.0",
        "./cmd/snapshot-controller",
        replace=((SNAPSHOT_CLIENT, SNAPSHOT_CLIENT_VERSION),),
        deploy=(
            ("", "deploy/kubernetes/snapshot-controller"),
            (f"{SNAPSHOT_CLIENT}@{SNAPSHOT_CLIENT_VERSION}", "config/crd"),
        ),
    ),
    Peer("csi-elector", f"{CSI}/csi-lib-utils", "v0.24.0", main=CSI_ELECTOR),
    Peer(
        "kubectl",
        "k8s.io/kubectl",
        f"v0.{KUBERNETES}",
        main=KUBECTL,
        variable="k8s.io/component-base/version.gitVersion",
    ),
    Peer(
        "crictl",
        "sigs.k8s.io/cri-tools",
        "v1.30.0",
        "./cmd/crictl",
        variable="github.com/kubernetes-sigs/cri-tools/pkg/version.Version",
        libraries="v0.30.0",
    ),
    Peer(
        "kube-scheduler",
        "k8s.io/kubernetes",
        f"v1.{KUBERNETES}",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        variable="k8s.io/component-base/version.gitVersion",
        staged=True,
        optional=True,
    ),
    Peer(
        "kube-controller-manager",
        "k8s.io/kubernetes",
        f"v1.{KUBERNETES}",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        variable="k8s.io/component-base/version.gitVersion",
        staged=True,
        optional=True,
    ),
    Peer(
        "kube-apiserver",
        "k8s.io/kubernetes",
        f"v1.{KUBERNETES}",
        "k8s.io/kubernetes/cmd/kube-apiserver",
        variable="k8s.io/component-base/version.gitVersion",
        staged=True,
        optional=True,
    ),
    # A node for comparison in `make bench`.
    Peer(
        "kubelet",
        "k8s.io/kubernetes",
        f"v1.{KUBERNETES}",
        "k8s.io/kubernetes/cmd/kubelet",
        variable="k8s.io/component-base/version.gitVersion",
        staged=True,
        optional=True,
    ),
    Peer(
        "e2e.test",
        "k8s.io/kubernetes",
        f"v1.{KUBERNETES}",
        "k8s.io/kubernetes/test/e2e",
        variable="k8s.io/component-base/version.gitVersion",
        staged=True,
        tests=True,
        optional=True,
    ),
    Peer(
        "agnhost",  # the image of that name, which the suite uses
        "k8s.io/kubernetes",
        f"v1.{KUBERNETES}",
        "k8s.io/kubernetes/test/images/agnhost",
        staged=True,
        optional=True,
    ),
    Peer(
        "metrics-server",
        "sigs.k8s.io/metrics-server",
        "v0.9.0",
        "./cmd/metrics-server",
        variable="k8s.io/client-go/pkg/version.gitVersion",
        deploy=(("", "manifests/base"),),
        optional=True,
    ),
    Peer(
        "helm",
        "helm.sh/helm/v3",
        "v3.22.0",
        "./cmd/helm",
        variable="helm.sh/helm/v3/internal/version.version",
        optional=True,
    ),
    Peer("act", "github.com/nektos/act", "v0.2.89", ".", optional=True),
    Peer(
        "aws-ebs-csi-driver",
        "github.com/kubernetes-sigs/aws-ebs-csi-driver",
        "v1.63.1",
        "./cmd",
        deploy=(("", "deploy/kubernetes"), ("", "charts")),
        variable="github.com/kubernetes-sigs/aws-ebs-csi-driver/pkg/driver.driverVersion",
        optional=True,
    ),
    Peer(
        "spiffe-csi-driver",
        "github.com/spiffe/spiffe-csi",
        "v0.2.3",
        "./cmd/spiffe-csi-driver",
        deploy=(("", "example/config"),),
        optional=True,
    ),
    Peer(
        "otlp-receiver",
        "go.opentelemetry.io/collector/receiver/otlpreceiver",
        "v0.150.0",
        main=OTLP_RECEIVER,
        optional=True,
    ),
    # Debian's does not mount images as volumes.
    Peer(
        "containerd-2",
        "github.com/containerd/containerd/v2",
        "v2.4.2",
        "./cmd/containerd",
        variable="github.com/containerd/containerd/v2/version.Version",
        optional=True,
    ),
    Peer(
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2",
        "v2.4.2",
        "./cmd/containerd-shim-runc-v2",
        variable="github.com/containerd/containerd/v2/version.Version",
        optional=True,
    ),
    # Not upstream's: a driver in Go without any of our code, which passes all cases of `test-driver`.
    Peer(
        "directories-driver",
        "github.com/container-storage-interface/spec",
        _digest(GO_DRIVER),
        source=GO_DRIVER,
    ),
    Peer("moto_server", "moto", "5.2.5", lock="moto.lock"),
    # What users install packages with, and what checks them.
    *(Peer(name, name, _locked_version(name), lock=f"{name}.lock") for name in ("uv", "pipx", "twine")),
    Peer("mkdocs", "mkdocs", _locked_version("mkdocs"), lock="mkdocs.lock"),  # make docs
    # Databases with manifests of other projects. Later versions of the first use a non-root image without
    # fsGroup, which cannot write to a new disk; later versions of the second have no database.
    Peer("postgresql-manifests", "github.com/tektoncd/results", "v0.4.0", deploy=(("", "config"),)),
    Peer(
        "redis-manifests",
        "k8s.io/kubernetes",
        "v1.20.0",
        deploy=(("", "test/e2e/testing-manifests/statefulset/redis"),),
    ),
    # The FlexVolume drivers that Kubernetes had as examples, of the last version with all of them.
    Peer(
        "flexvolume-samples",
        "k8s.io/kubernetes",
        "v1.7.0",
        deploy=(("", "examples/volumes/flexvolume/lvm"), ("", "examples/volumes/flexvolume/nfs")),
    ),
)


class BuildFailed(Exception):
    """A build step failed; the message is shown to the user."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the upstream programs that the tests run against.")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where to store them ({CACHE})")
    parser.add_argument("names", nargs="*", help="build build only these; `all`: also those that take long")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {peer.name for peer in PEERS} - {"all"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    build_missing(options.cache, select_peers(options.names))
    return 0  # tests that need a missing peer are skipped, or fail in CI


def select_peers(names: Sequence[str]) -> list[Peer]:
    if "all" in names:
        return list(PEERS)
    return [peer for peer in PEERS if (peer.name in names if names else not peer.optional)]


def build_missing(cache: Path, peers: Iterable[Peer]) -> None:
    (cache / "peers").mkdir(parents=True, exist_ok=True)
    (cache / "bin").mkdir(exist_ok=True)
    if all(is_built(cache, peer) for peer in peers):
        return
    with _exclusive_lock(cache):
        missing = [peer for peer in peers if not is_built(cache, peer)]
        for number, peer in enumerate(missing, 1):
            _say(f"[{number}/{len(missing)}] building {peer.name} {peer.version} …")
            start = time.monotonic()
            try:
                build(cache, peer)
            except (BuildFailed, OSError) as error:
                failure_path(cache, peer).write_text(f"{error}\n")
                _say(f"could not build {peer.name} {peer.version}: {error}")
            else:
                _say(f"built {peer.name} {peer.version} in {time.monotonic() - start:.0f} s")


# --- where things are


def build_path(cache: Path, peer: Peer) -> Path:
    return cache / "peers" / f"{peer.name}-{peer.version}"


def program_path(cache: Path, peer: Peer) -> Path:
    return build_path(cache, peer) / "bin" / peer.name if peer.lock else build_path(cache, peer)


def failure_path(cache: Path, peer: Peer) -> Path:
    return build_path(cache, peer).with_name(f"{peer.name}-{peer.version}.failed")


def manifests_path(cache: Path, peer: Peer) -> Path:
    return build_path(cache, peer).with_name(f"{peer.name}-{peer.version}.deploy")


def is_built(cache: Path, peer: Peer) -> bool:
    return (not peer.deploy or manifests_path(cache, peer).is_dir()) and (
        not peer.is_program or _is_linked(cache, peer)
    )


def _is_linked(cache: Path, peer: Peer) -> bool:
    link = cache / "bin" / peer.name
    return link.is_symlink() and link.resolve() == program_path(cache, peer).resolve() and link.exists()


# --- one build


def build(cache: Path, peer: Peer) -> None:
    target = program_path(cache, peer)
    if peer.lock:
        _install(build_path(cache, peer), peer)
    elif shutil.which("go") is None:
        raise BuildFailed("there is no go command on PATH")
    elif peer.is_program and not target.exists():
        with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as place:
            source = Path(place) / "source"
            _sources(peer, source)
            _keep_manifests(cache, peer)
            verb = ("test", "-c", "-vet=off") if peer.tests else ("build",)
            _go(*verb, *_build_flags(peer), "-o", f"{place}/made", peer.package or ".", cwd=source)
            os.replace(f"{place}/made", target)
    elif peer.deploy and not manifests_path(cache, peer).is_dir():
        _keep_manifests(cache, peer)
    failure_path(cache, peer).unlink(missing_ok=True)
    if peer.is_program:
        fresh = cache / "bin" / f".{peer.name}.{os.getpid()}"
        fresh.symlink_to(Path("..") / target.relative_to(cache))
        os.replace(fresh, cache / "bin" / peer.name)


def _install(place: Path, peer: Peer) -> None:
    """Install a Python program in its own environment, and remove the rest of an earlier attempt."""
    shutil.rmtree(place, ignore_errors=True)
    lock = str(Path(__file__).with_name(peer.lock))
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--require-hashes", "--no-deps", "-r", lock]
    for command in ([sys.executable, "-m", "venv", str(place)], [str(place / "bin" / "python"), *pip]):
        done = subprocess.run(["nice", *command], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise BuildFailed(
                _error_lines(done.stdout, done.stderr) or f"{command[2]} ended with {done.returncode}"
            )


def _build_flags(peer: Peer) -> list[str]:
    version = peer.version.replace("v0.", "v1.", 1)  # kubectl v1.35.4 is built from libraries v0.35.4
    return ["-mod=mod", "-buildvcs=false", "-trimpath", "-ldflags", f"-s -w -X {peer.variable}={version}"]


def _sources(peer: Peer, place: Path) -> None:
    """Prepare a module to build in: upstream's with its go.mod and go.sum, or a new one with our `main`."""
    if peer.main:
        place.mkdir()
        (place / "main.go").write_text(peer.main)
        _go("mod", "init", f"peers/{peer.name}", cwd=place)
        _go("get", f"{peer.module}@{peer.version}", cwd=place)
        _go("mod", "tidy", cwd=place)
        return
    if peer.source:
        shutil.copytree(ROOT / peer.source, place)
        return
    if peer.staged:
        place.mkdir()
        _go("mod", "init", f"peers/{peer.name}", cwd=place)
        published = peer.version.replace("v1.", "v0.", 1)
        replaced = _use_published(_staged_modules(peer), published)
        _go("mod", "edit", f"-require={peer.module}@{peer.version}", *replaced, cwd=place)
        return
    shutil.copytree(_download(f"{peer.module}@{peer.version}"), place, copy_function=shutil.copyfile)
    for directory in (place, *place.rglob("*/")):  # the module cache is read-only
        directory.chmod(0o755)
    shutil.rmtree(
        place / "vendor", ignore_errors=True
    )  # an archive contains only the list of a vendor directory
    for module, version in peer.replace:
        _go("mod", "edit", f"-replace={module}={module}@{version}", cwd=place)
    if peer.libraries:
        _go("mod", "edit", *_use_published(_staged_modules(peer), peer.libraries), cwd=place)


def _use_published(modules: Iterable[str], version: str) -> list[str]:
    return [f"-replace={module}={module}@{version}" for module in modules]


def _staged_modules(peer: Peer) -> list[str]:
    """The libraries that go.mod replaces by directories of the Kubernetes repository."""
    module = json.loads(
        _go("mod", "edit", "-json", str(_download(f"{peer.module}@{peer.version}") / "go.mod"), cwd=Path("/"))
    )
    staging = ("./staging/", "k8s.io/kubernetes/staging/")
    return [r["Old"]["Path"] for r in module["Replace"] if r["New"]["Path"].startswith(staging)]


def _keep_manifests(cache: Path, peer: Peer) -> None:
    """Copy all manifests, then rename: an interrupted copy leaves nothing."""
    if not peer.deploy:
        return
    with tempfile.TemporaryDirectory(prefix="manifests-", dir=cache) as place:
        for module, directory in peer.deploy:
            source = _download(module or f"{peer.module}@{peer.version}") / directory
            found = [source] if source.is_file() else _list_manifests(source)
            for file in found:
                kept = Path(place) / "kept" / directory / file.relative_to(source)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, kept)
        shutil.rmtree(manifests_path(cache, peer), ignore_errors=True)
        os.replace(f"{place}/kept", manifests_path(cache, peer))


def _list_manifests(directory: Path) -> list[Path]:
    """Manifests, and the templates of Helm charts."""
    return [file for file in directory.rglob("*") if file.is_file() and file.suffix in (".yaml", ".tpl")]


def _download(module: str) -> Path:
    answer = _go("mod", "download", "-json", module, cwd=Path("/"))
    return Path(json.loads(answer)["Dir"])


def _go(*arguments: str, cwd: Path) -> str:
    command = ["nice", "go", *arguments]
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"go {arguments[0]} took more than {PATIENCE} s") from None
    if done.returncode:
        raise BuildFailed(
            _error_lines(done.stdout, done.stderr) or f"go {arguments[0]} ended with {done.returncode}"
        )
    return done.stdout


def _error_lines(stdout: str, stderr: str) -> str:
    try:
        said = json.loads(stdout).get("Error", "")  # `go mod download -json` reports errors on stdout
    except ValueError:
        said = ""
    lines = [
        line for line in (said or stderr or stdout).splitlines() if not line.startswith("go: downloading")
    ]
    return "\n".join(lines[-15:])


@contextmanager
def _exclusive_lock(cache: Path) -> Iterator[None]:
    """Lock the cache: a second run on the machine waits, and finds everything built."""
    with (cache / "peers" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(f"peers: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
