"""Backup and restore are killed at every step, and interrupted: no half result has the final name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backup.test_archive import back_up, describe_tree, make_archive, make_directory, restore
from tests.support.up import VOLPLANE
from volplane.cluster.backup import writer
from volplane.cluster.data_directory import DataDirectory

BACKUP = (
    "backup:moment",
    "backup:viewed",
    "backup:database",
    "backup:disk",
    "backup:complete",
    "backup:published",
)
RESTORE = ("restore:member", "restore:member#4", "restore:complete", "restore:synced", "restore:renamed")


def run(*words: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"VOLPLANE_FAILPOINT": failpoint} if failpoint else {})}
    return subprocess.run(
        [VOLPLANE, *words], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.root
@pytest.mark.parametrize("failpoint", BACKUP)
def test_a_killed_backup_leaves_nothing(failpoint: str, tmp_path: Path) -> None:
    layout = make_directory(tmp_path / "d")
    archive = tmp_path / "b" / "b.tar"
    archive.parent.mkdir()
    words = ("backup", str(archive), "--disks", "--data-dir", str(layout.directory))
    assert run(*words, failpoint=failpoint).returncode == -signal.SIGKILL
    assert [path.name for path in archive.parent.iterdir()] == (
        ["b.tar"] if failpoint == "backup:published" else []
    )
    archive.unlink(missing_ok=True)
    done = run(*words)
    assert done.returncode == 0, done.stderr
    restored = restore(archive, tmp_path / "r")
    assert describe_tree(restored.shared) == describe_tree(layout.shared)


@pytest.mark.parametrize("failpoint", RESTORE)
def test_a_killed_restore_is_complete_or_not_there(failpoint: str, tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    words = ("restore", str(archive), "--data-dir", str(tmp_path / "r"))
    assert run(*words, failpoint=failpoint).returncode == -signal.SIGKILL
    if failpoint == "restore:renamed":
        assert (tmp_path / "r" / "efs" / "fs-1" / "a" / "file").read_text() == "content"
        return
    assert not (tmp_path / "r").exists()
    assert run(*words).returncode == 0
    assert (tmp_path / "r" / "efs" / "fs-1" / "a" / "file").read_text() == "content"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "d", "r"]


# Stops itself at a failpoint's place, as if the user pressed Ctrl-C there.
INTERRUPTED = """
import signal, os, sys
from volplane.base import failpoint
from volplane.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
failpoint.hit = lambda name: os.kill(os.getpid(), signal.SIGINT) if name == sys.argv[1] else None
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("verb", "failpoint"), [("backup", "backup:database"), ("restore", "restore:member")]
)
def test_ctrl_c_cleans_up(verb: str, failpoint: str, tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    target = tmp_path / "new.tar" if verb == "backup" else archive
    directory = tmp_path / "d" if verb == "backup" else tmp_path / "r"
    before = sorted(path.name for path in tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, failpoint, verb, str(target), "--data-dir", str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("backup", "{tmp}/x.tar", "--data-dir", "{tmp}/none"), 1, "no cluster in {tmp}/none"),
        (("backup", "{tmp}/none/x.tar", "--data-dir", "{tmp}/d"), 1, "cannot write to {tmp}/none: No such"),
        (("backup", "{tmp}/b.tar", "--data-dir", "{tmp}/d"), 1, "b.tar exists already: choose another name"),
        (("backup", "{tmp}/d/x.tar", "--data-dir", "{tmp}/d"), 1, "is in the data directory"),
        (("restore", "{tmp}/none.tar", "--data-dir", "{tmp}/r"), 2, "does not exist"),
        (("restore", "{tmp}/b.tar", "--data-dir", "{tmp}/d"), 1, "{tmp}/d is not empty: choose a directory"),
    ],
)
def test_what_is_wrong_is_said(words: tuple[str, ...], code: int, sentence: str, tmp_path: Path) -> None:
    make_archive(tmp_path)
    done = run(*(word.format(tmp=tmp_path) for word in words))
    assert done.returncode == code
    assert sentence.format(tmp=tmp_path) in done.stderr


def test_a_leftover_of_a_file_system_without_unnamed_files_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_UNNAMED", frozenset({21}))
    real = os.open

    def refuse_unnamed(path: object, flags: int, *more: object, **names: object) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(21, "Is a directory")
        return real(path, flags, *more, **names)  # type: ignore[arg-type]

    make_archive(tmp_path)
    (tmp_path / ".new.tar.partial").write_text("of a backup that was killed")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse_unnamed)
        back_up(DataDirectory(tmp_path / "d"), tmp_path / "new.tar")
    assert not (tmp_path / ".new.tar.partial").exists()
    assert restore(tmp_path / "new.tar", tmp_path / "r").state.exists()
