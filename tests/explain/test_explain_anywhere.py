"""`explain` runs on any operating system and starts fast: it imports nothing of Linux or of a node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Everything in the standard library that `explain` might use by accident and that other systems lack.
ONLY_LINUX = """
import asyncio, ctypes, os, signal, socket, sys
for name in ("memfd_create", "pidfd_open", "eventfd", "setns", "unshare", "sched_setaffinity", "splice",
             "copy_file_range", "posix_fadvise", "sendfile", "getrandom", "O_TMPFILE", "O_PATH"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("AF_NETLINK", "AF_VSOCK", "SO_PEERCRED"):
    if hasattr(socket, name):
        delattr(socket, name)
if hasattr(signal, "pidfd_send_signal"):
    del signal.pidfd_send_signal
sys.modules["uvloop"] = None
"""
RUN = """
import volplane.cli
try:
    volplane.cli.main(sys.argv[1:])
except SystemExit as end:
    code = end.code
import json
print(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""
SLOW_OR_LINUX = (
    "volplane.host",
    "volplane.csi",
    "grpc",
    "google.protobuf",
    "cryptography",
    "rich",
    "uvloop",
    "botocore",
)


def run_verb(*words: str) -> tuple[int, str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", ONLY_LINUX + RUN, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    return seen["code"], done.stdout + done.stderr, seen["modules"]


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """A kubeconfig of a server that does not exist, with a client certificate."""
    from volplane.apiserver.auth.certificates import CertificateAuthority
    from volplane.apiserver.auth.kubeconfig import write

    authority = CertificateAuthority(tmp_path / "pki")
    path = tmp_path / "config"
    write(
        path, server="https://127.0.0.1:1", ca=authority.pair.cert, user="u", pair=authority.client("u", "u")
    )
    return str(path)


@pytest.mark.parametrize("words", [("explain", "pvc/x"), ("world",), ("plugins",)])
def test_a_verb_that_looks_at_a_cluster_runs_without_linux(words: tuple[str, ...], nowhere: str) -> None:
    code, shown, modules = run_verb(*words, "--kubeconfig", nowhere)
    assert "cannot connect to https://127.0.0.1:1" in shown
    assert code == 1
    found = [name for name in modules if name.startswith(SLOW_OR_LINUX) and sys.modules.get(name) is not None]
    assert [name for name in found if name != "uvloop"] == []


@pytest.mark.parametrize("kind", ["claims", "volumes", "pods", "attachments", "nodes", "snapshots"])
def test_explaining_any_kind_imports_nothing_of_a_node(kind: str) -> None:
    """The explanations are imported when an object of their kind is explained."""
    script = ONLY_LINUX + f"import volplane.explain.{kind}\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = [name for name in done.stdout.split() if name.startswith(SLOW_OR_LINUX) and name != "uvloop"]
    assert loaded == []
