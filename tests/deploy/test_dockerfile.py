"""The Dockerfile as far as it can be tried without an engine: its own commands, in another directory."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from msgspec import Struct

from volplane.cli import VERBS

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Dockerfile"
PREFIX = "/opt/volplane"
PATIENCE = 600


class Instruction(Struct, frozen=True):
    name: str
    words: str


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, FROM first."""
    text = re.sub(r"\\\n\s*", " ", FILE.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found: list[list[Instruction]] = []
    for line in lines:
        name, words = line.split(maxsplit=1)
        if name == "FROM":
            found.append([])
        found[-1].append(Instruction(name, words))
    return found


def test_both_stages_start_from_one_base_that_is_named_by_its_tag() -> None:
    build, final = (stage[0].words for stage in stages())
    base = build.removesuffix(" AS build")
    assert base == final
    assert re.fullmatch(r"python:3\.11-slim-[a-z]+", base)
    assert sys.version_info[:2] == (3, 11)  # what the tests below install with is what the image has


def test_the_image_has_the_programs_that_a_node_calls_and_is_nobody() -> None:
    final = stages()[1]
    installed = next(i.words for i in final if "apt-get install" in i.words)
    assert {"btrfs-progs", "e2fsprogs", "util-linux", "xfsprogs"} <= set(installed.split())
    assert [i.words for i in final if i.name == "COPY"] == [f"--from=build {PREFIX} {PREFIX}"]
    assert [i.words for i in final if i.name == "USER"] == ["65532:65532"]
    assert final[-1] == Instruction("ENTRYPOINT", '["volplane"]')
    path = next(i.words for i in final if i.name == "ENV").split()[0].removeprefix("PATH=")
    assert path.split(":")[0] == f"{PREFIX}/bin"


def context(directory: Path) -> None:
    """What a build is sent: everything that .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    for name in (line.removeprefix("!") for line in lines if line.startswith("!")):
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            # An editable install leaves its notes there; they would not be in a fresh checkout.
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, target, ignore=ignored)
        else:
            shutil.copyfile(ROOT / name, target)


@pytest.mark.slow
def test_its_commands_install_a_volplane_that_runs(tmp_path: Path) -> None:
    sent, work, prefix = tmp_path / "context", tmp_path / "build", tmp_path / "volplane"
    context(sent)
    work.mkdir()
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PIP_NO_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    run = 0
    for instruction in stages()[0][1:]:
        if instruction.name == "COPY":
            *sources, target = instruction.words.split()
            for source in sources:
                _copy(sent / source, work / target, into=target.endswith("/"))
        elif instruction.name == "RUN":
            command = instruction.words.replace(PREFIX, str(prefix))
            command = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", command)
            done = subprocess.run(
                command,
                shell=True,
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            run += 1
        else:
            assert instruction.name in ("ENV", "WORKDIR")
    assert run == 5
    shutil.rmtree(work)  # the second stage has only the prefix
    shutil.rmtree(sent)
    nobody = {"PATH": f"{prefix}/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    reported = subprocess.run(
        ["volplane", "--help"], cwd="/", env=nobody, capture_output=True, text=True, timeout=PATIENCE
    )
    assert reported.returncode == 0, reported.stderr
    assert all(verb in reported.stdout for verb in VERBS)
    loaded = """
import importlib, volplane.cli, volplane
for verb in volplane.cli.VERBS:
    importlib.import_module(volplane.cli.module_of(verb))
from volplane.cluster.apply import MANIFESTS, load_manifest
print(volplane.__file__, sum(len(list(load_manifest(name))) for name in MANIFESTS))
"""
    python = [str(prefix / "bin" / "python"), "-I", "-c", loaded]
    reported = subprocess.run(python, cwd="/", env=nobody, capture_output=True, text=True, timeout=PATIENCE)
    assert reported.returncode == 0, reported.stderr
    place, count = reported.stdout.split()
    assert place.startswith(str(prefix))
    assert int(count) > 30
    left = {p.name for p in prefix.glob("lib/python*/site-packages/*")}
    assert not any(fnmatch(name, pattern) for name in left for pattern in ("pip", "setuptools", "pytest*"))


def _copy(source: Path, target: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        place = target / source.name if into else target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
