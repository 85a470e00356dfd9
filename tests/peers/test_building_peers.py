"""How upstream's programs get into the cache, and what is said when they do not."""

from __future__ import annotations

import os
import platform
import stat
from pathlib import Path

import pytest

from tests.support import peers
from tools import peers as builds

# A go command that can download nothing.
GO = "#!/bin/sh\necho 'go: downloading something' >&2\necho 'this module is not here' >&2\nexit 1\n"
PEER = builds.Peer("some-peer", "example.invalid/some-peer", "v1.0.0", "./cmd/some-peer")


@pytest.fixture
def go_without_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tools" / "go"
    program.parent.mkdir()
    program.write_text(GO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("go_without_modules")
def test_a_build_that_fails_says_why_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builds, "CACHE", tmp_path)
    monkeypatch.setitem(peers.BUILT, PEER.name, PEER)
    assert peers.why_missing("some-peer") == "peer some-peer v1.0.0 is not built: `make peers` does"
    for _ in range(2):
        builds.build_missing(tmp_path, [PEER])
        said = capsys.readouterr().err
        assert "peers: [1/1] building some-peer v1.0.0 …" in said
        assert "peers: could not build some-peer v1.0.0: this module is not here" in said
    wanted = "peer some-peer v1.0.0 could not be built: this module is not here"
    assert peers.why_missing("some-peer") == wanted


def test_what_is_built_stays_until_its_version_is_bumped(tmp_path: Path) -> None:
    made = builds.program_path(tmp_path, PEER)
    made.parent.mkdir()
    made.write_text("#!/bin/sh\n")
    made.chmod(stat.S_IRWXU)
    builds.failure_path(tmp_path, PEER).write_text("an earlier attempt")
    builds.build_missing(tmp_path, [PEER])  # nothing to build: the program of this version is there
    assert (tmp_path / "bin" / "some-peer").resolve() == made.resolve()
    assert not builds.failure_path(tmp_path, PEER).exists()
    assert builds.is_built(tmp_path, PEER)
    assert not builds.is_built(tmp_path, PEER._replace(version="v1.0.1"))


# A go command whose proxy has one module, with a directory of manifests.
GO_WITH_A_MODULE = """#!/bin/sh
test "$4" = example.invalid/manifests@v1.0.0 || exit 1
printf '{"Dir": "%s"}' "$(dirname "$0")/module"
"""


def test_of_some_peers_only_the_manifests_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "tools" / "module" / "config"
    config.mkdir(parents=True)
    (config / "set.yaml").write_text("kind: StatefulSet\n")
    (config / "readme.txt").write_text("no manifest")
    go = tmp_path / "tools" / "go"
    go.write_text(GO_WITH_A_MODULE)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(builds, "CACHE", tmp_path / "cache")
    manifests = builds.Peer("manifests", "example.invalid/manifests", "v1.0.0", deploy=(("", "config"),))
    monkeypatch.setitem(peers.BUILT, "manifests", manifests)
    assert peers.find("manifests") is None
    builds.build_missing(builds.CACHE, [manifests])
    assert builds.is_built(builds.CACHE, manifests)
    assert [file.read_text() for file in peers.manifests("manifests", "*.*")] == ["kind: StatefulSet\n"]
    assert peers.find("manifests") == str(builds.manifests_path(builds.CACHE, manifests))
    assert list((builds.CACHE / "bin").iterdir()) == []
    assert not builds.is_built(builds.CACHE, manifests._replace(version="v1.0.1"))


# A go command that builds whatever is asked for.
GO_THAT_BUILDS = """#!/bin/sh
while test $# -gt 0; do
    test "$1" = -o && echo made > "$2" && chmod +x "$2"
    shift
done
"""


def test_of_most_programs_no_manifests_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "tools" / "go"
    go.parent.mkdir()
    go.write_text(GO_THAT_BUILDS)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}{os.pathsep}{os.environ['PATH']}")
    peer = PEER._replace(main="package main")
    builds.build_missing(tmp_path / "cache", [peer])
    assert builds.is_built(tmp_path / "cache", peer)
    assert (tmp_path / "cache" / "bin" / "some-peer").read_text() == "made\n"
    assert not builds.manifests_path(tmp_path / "cache", peer).exists()


def test_a_peer_that_ci_builds_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert not peers.must_be_there("csi-provisioner")
    monkeypatch.setenv("CI", "true")
    assert peers.must_be_there("csi-provisioner")
    assert peers.must_be_there("kubectl")
    assert peers.must_be_there("postgresql-manifests")
    assert not peers.must_be_there("csi-attacher")  # nobody builds it: it is found or it is not
    assert not peers.must_be_there("kube-scheduler")  # built when it is asked for
    for architecture, exists in (("x86_64", True), ("aarch64", False)):
        monkeypatch.setattr(platform, "machine", lambda found=architecture: found)
        assert peers.must_be_there("qemu-system-x86_64") is exists


def test_what_takes_long_is_built_only_when_it_is_asked_for() -> None:
    assert "kube-scheduler" not in [peer.name for peer in builds.select_peers([])]
    assert [peer.name for peer in builds.select_peers(["kube-scheduler"])] == ["kube-scheduler"]
    assert builds.select_peers(["all"]) == list(builds.PEERS)
