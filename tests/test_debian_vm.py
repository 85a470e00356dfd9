"""The files of the virtual machine: made once by `make peers`, or the reason why not is kept."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from tests.support import vm
from tools import debian_vm


def test_why_it_cannot_be_made_is_what_skipped_tests_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: debian_vm.MACHINE)
    monkeypatch.setattr(debian_vm, "CACHE", tmp_path)
    monkeypatch.setattr(vm, "FILES", debian_vm.directory(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="`make peers` does, on x86_64"):
        vm.require()
    assert debian_vm.main(["--cache", str(tmp_path)]) == 0
    assert "could not make the virtual machine: there is no apt-get command" in capfd.readouterr().err
    with pytest.raises(pytest.skip.Exception, match="could not be made: there is no apt-get command"):
        vm.require()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI is meant to have it"):
        vm.require()


def test_it_is_made_on_no_other_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert debian_vm.main(["--cache", str(tmp_path)]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_fails_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("apt-get", "apt-cache", "dpkg-deb", "modprobe", "depmod"):
        (programs / name).write_text('#!/bin/sh\necho "E: no network" >&2\nexit 100\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    with pytest.raises(debian_vm.NotMade, match=r"^apt-(get -qq update|cache depends .*): E: no network$"):
        debian_vm.make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.peer(vm.PROGRAM)
def test_the_ram_disk_has_the_modules_in_the_order_in_which_they_are_loaded(tmp_path: Path) -> None:
    vm.require()
    for name in ("shell", "zlib.ko", "a.ko"):
        (tmp_path / name).write_text(f"content of {name}")
    modules = [tmp_path / "zlib.ko", tmp_path / "a.ko"]
    debian_vm.write_ram_disk(tmp_path / "initrd", tmp_path / "shell", modules)
    place = tmp_path / "unpacked"
    place.mkdir()
    with (tmp_path / "initrd").open("rb") as archive:
        subprocess.run([str(vm.FILES / "bin/busybox"), "cpio", "-i"], stdin=archive, cwd=place, check=True)
    loaded = sorted(path.name for path in (place / "modules").iterdir())
    assert loaded == ["00-zlib.ko", "01-a.ko"]
    assert (place / "modules/01-a.ko").read_text() == "content of a.ko"
    assert (place / "bin/busybox").stat().st_mode & 0o777 == 0o755
    assert "switch_root" in (place / "init").read_text()
