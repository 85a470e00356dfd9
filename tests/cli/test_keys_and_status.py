"""Certificates: when they expire, how they are renewed, how all keys are replaced. Free space in status."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.test_lifecycle import Machine, make_machine
from tests.support.up import VOLPLANE
from volplane.apiserver.auth import certificates
from volplane.apiserver.auth.certificates import CertificateAuthority, inspect_certificates
from volplane.cli import status as status_verb
from volplane.cli.status import ClusterStatus, add_health, read_status, render_status
from volplane.cluster.data_directory import DataDirectory


@pytest.fixture
def home() -> Iterator[Machine]:
    yield from make_machine()


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.peer("kubectl")
def test_all_keys_are_replaced(home: Machine) -> None:
    home.run("up", "--nodes", "1", "--detach", "--update-kubeconfig")
    directory = home.home / ".volplane"
    copied = home.home / "copied"
    shutil.copy(directory / "kubeconfig", copied)
    home.kubectl(directory, "create", "configmap", "kept")
    assert "certificates valid until 20" in home.run("status")
    refused = home.run("rotate-certificates", "--yes", code=1)
    assert "is in use by process" in refused
    assert "volplane stop" in refused
    home.run("stop")
    old = {path.name: path.read_bytes() for path in (directory / "pki").iterdir()}
    assert "Replace all keys" in home.run("rotate-certificates", stdin="n\n", code=130)
    assert {path.name: path.read_bytes() for path in (directory / "pki").iterdir()} == old
    env = home.run("env")

    for failpoint in ("rotation:half", "rotation:renamed", ""):
        done = subprocess.run(
            [VOLPLANE, "rotate-certificates", "--yes"],
            env={**home.env, "VOLPLANE_FAILPOINT": failpoint},
            timeout=60,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if failpoint else 0)
    assert not (directory / "pki.old").exists()
    home.run("start", "--update-kubeconfig")
    new = {path.name: path.read_bytes() for path in (directory / "pki").iterdir()}
    assert new.keys() == old.keys()
    assert not [name for name in old if new[name] == old[name]]
    assert home.run("env") != env
    assert home.kubectl(directory, "get", "configmap", "kept", "-o", "name").strip() == "configmap/kept"
    current = subprocess.run(
        ["kubectl", "get", "nodes", "-o", "name"], env=home.env, capture_output=True, text=True, check=True
    )
    assert current.stdout.split() == ["node/worker-1"]
    refused = subprocess.run(
        ["kubectl", "--kubeconfig", str(copied), "get", "nodes"], capture_output=True, text=True, check=False
    ).stderr
    assert "certificate signed by unknown authority" in refused


def test_certificates_that_end_soon_are_shown_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "LIFETIME", timedelta(days=40))
        CertificateAuthority(tmp_path / "pki").server("long", ("localhost",))
        patched.setattr(certificates, "LIFETIME", timedelta(days=12, hours=1))
        CertificateAuthority(tmp_path / "pki").server("short", ("localhost",))
    shown = inspect_certificates(tmp_path / "pki")
    assert [(state.path.stem, state.days_left) for state in shown] == [
        ("short", 12),
        ("ca", 39),
        ("long", 39),
    ]
    (tmp_path / "up.lock").touch()
    status = add_health(DataDirectory(tmp_path), read_status(DataDirectory(tmp_path)))
    (line,) = [line for line in render_status(status) if "valid until" in line]
    assert line.endswith("Z: stop and start the cluster to renew them")
    CertificateAuthority(tmp_path / "pki").server("short", ("localhost",))
    assert {state.path.stem: state.days_left > 3000 for state in inspect_certificates(tmp_path / "pki")} == {
        "ca": False,
        "long": False,
        "short": True,
    }


def test_damaged_certificates_are_described(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.server("swapped", ("localhost",))
    authority.server("damaged", ("localhost",))
    authority.server("keyless", ("localhost",))
    (tmp_path / "swapped.key").write_bytes((tmp_path / "damaged.key").read_bytes())
    (tmp_path / "damaged.crt").write_text("no certificate")
    (tmp_path / "keyless.key").unlink()
    other = CertificateAuthority(tmp_path / "other")
    other.server("foreign", ("localhost",))
    for suffix in ("crt", "key"):
        shutil.copy(tmp_path / "other" / f"foreign.{suffix}", tmp_path)
    problems = {state.path.stem: state.problem for state in inspect_certificates(tmp_path)}
    assert problems["swapped"] == "swapped.key is not its key; the next start replaces it"
    assert problems["damaged"] == "it cannot be read; the next start replaces it"
    assert problems["keyless"].startswith("its key cannot be used: ")
    assert problems["foreign"] == "it was signed by another CA; the next start replaces it"
    assert problems["ca"] == ""


@pytest.mark.parametrize(
    ("free", "text"),
    [
        (1 << 40, "1.0 TiB free on its disk"),
        (200 << 20, "only 200.0 MiB free on its disk: no disk is created"),
        (50 << 20, "only 50.0 MiB free on its disk: pods are evicted, and no disk is created"),
        (
            1 << 20,
            "only 1.0 MiB free on its disk: objects can be deleted, none can be created; no cluster starts",
        ),
    ],
)
def test_status_tells_what_a_full_disk_prevents(
    free: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_verb, "free_space", lambda _: free)
    layout = DataDirectory(tmp_path)
    status: ClusterStatus = add_health(layout, read_status(layout))
    assert list(render_status(status))[-1] == f"  {text}"
