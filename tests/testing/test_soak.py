"""Soak tests of whole drivers: correct ones pass, and bugs that need a sequence are found and shortened."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import sample_driver
from tests.support.sample_driver.sequence_mutants import SEQUENCE_MUTANTS
from volplane.cluster import external_driver
from volplane.csi.client import CsiChannel
from volplane.testing.soak import report
from volplane.testing.soak import run as run_module
from volplane.testing.soak.executor import LifeRun
from volplane.testing.soak.run import SoakProgress, SoakRun, SoakSettings, soak
from volplane.testing.soak.steps import Fault, Life, Step, VolumeKind
from volplane.testing.soak.violation import Rule, Violation
from volplane.testing.socket_env import SocketEnv

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SEED = 3
SEEDS = {"second-unstage-wipes": 73}  # its first life unstages a volume with data twice
# Without timing a life fails in each rerun, and is shortened in a few seconds.
TIMING = "kill|cut|deadline|lost|concurrent"
NO_NODES = "^(Node|ControllerPublish|ControllerUnpublish|CreateSnapshot|unknown|no |other)|concurrent"
# mutant → what lives leave out, the rule, the call, a word of the text, and the most steps after shrinking
FOUND: dict[str, tuple[str, Rule, str, str, int]] = {
    "unpublishes-all-targets": (TIMING, Rule.MOUNT, "NodeUnpublishVolume", "not mounted any more", 5),
    "second-unstage-wipes": (f"{TIMING}|wrong order", Rule.DATA, "NodePublishVolume", "written", 7),
    "forgets-names": (NO_NODES, Rule.ANSWER, "CreateVolume", "the repeated call returns", 3),
    "expands-in-memory": (NO_NODES, Rule.ANSWER, "", "before it had", 4),
    "detaches-from-any-node": (TIMING, Rule.ANSWER, "ControllerPublishVolume", "expected FAILED", 4),
}


async def run_soak(
    mutant: str, settings: SoakSettings, replay: Life | None = None, secrets: Mapping[str, str] | None = None
) -> SoakRun:
    driver = external_driver.from_command(sample_driver.command_line(mutant))
    return await soak(driver, settings, SoakProgress(), replay=replay, secrets=secrets)


def test_every_sequence_mutant_is_found() -> None:
    assert FOUND.keys() == SEQUENCE_MUTANTS.keys()


@pytest.mark.parametrize("mutant", FOUND)
async def test_a_bug_that_needs_a_sequence_is_found_and_shortened(mutant: str) -> None:
    skip, rule, call, word, most = FOUND[mutant]
    run = await run_soak(
        mutant,
        SoakSettings(seconds=300, seed=SEEDS.get(mutant, SEED), skip=skip, max_lives=200, shrink_seconds=300),
    )
    assert run.failure is not None, run.statistics
    found = run.failure.violation
    assert (found.rule, found.call) == (rule, call or found.call), found
    assert word in found.text
    assert run.failure.is_reproduced
    assert len(run.failure.life.steps()) <= most, report.encode_life(run.failure.life)
    assert len(run.failure.life.volumes) <= 2


async def test_a_correct_driver_passes_random_lives() -> None:
    run = await run_soak(
        "none", SoakSettings(seconds=300, seed=SEED, max_lives=20), secrets={"key": "sesame"}
    )
    assert run.failure is None, run.failure
    assert run.statistics.lives == 20
    assert run.statistics.faults.total() > 5
    assert run.statistics.checks > 20


async def test_a_replay_fails_with_the_bug_and_passes_without_it() -> None:
    steps = (
        Step("CreateVolume"),
        Step("ControllerPublishVolume"),
        Step("ControllerUnpublishVolume", node=1),
        Step("ControllerPublishVolume", node=1),
    )
    life = Life((VolumeKind.MOUNT,), tuple((step,) for step in steps))
    broken = await run_soak("detaches-from-any-node", SoakSettings(), life)
    assert broken.failure is not None
    assert [line.answer for line in broken.failure.trace] == ["OK"] * 4
    assert (await run_soak("none", SoakSettings(), life)).failure is None


async def test_a_failure_is_kept_if_the_driver_does_not_start_again(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    line = f"test ! -e {stop} && exec env {sample_driver.command_line('unpublishes-all-targets')}"
    driver = external_driver.from_command(shlex.join(["/bin/sh", "-c", line]))
    progress = SoakProgress(on_start=lambda run: stop.touch())
    run = await soak(driver, SoakSettings(seed=SEED, skip=TIMING, max_lives=20), progress)
    assert run.failure is not None
    assert run.failure.violation.rule is Rule.MOUNT
    assert (run.failure.is_reproduced, run.failure.reruns) == (False, 1)


async def test_connections_to_killed_drivers_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life((VolumeKind.MOUNT,), ((Step("Probe", fault=Fault.KILL_AFTER),),))
    monkeypatch.setattr("volplane.testing.soak.run.generate", lambda random, menu: life)
    counts: list[int] = []

    def count_channels(run: SoakRun) -> None:
        gc.collect()
        counts.append(sum(isinstance(each, CsiChannel) for each in gc.get_objects()))

    driver = external_driver.from_command(sample_driver.command_line("none"))
    await soak(driver, SoakSettings(max_lives=3), SoakProgress(on_life=count_channels))
    assert len(counts) == 3
    assert counts[2] <= counts[0]


async def test_a_finding_is_kept_if_the_cleanup_after_it_is_interrupted() -> None:
    runs: list[SoakRun] = []
    driver = external_driver.from_command(sample_driver.command_line("unpublishes-all-targets"))

    def interrupt(violation: Violation, number: int) -> None:
        task.cancel()

    progress = SoakProgress(on_start=runs.append, on_violation=interrupt)
    settings = SoakSettings(seconds=300, seed=SEED, skip=TIMING, max_lives=200)
    task = asyncio.ensure_future(soak(driver, settings, progress))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runs[0].failure is not None
    assert runs[0].failure.violation.rule is Rule.MOUNT
    assert not runs[0].complete


async def test_copies_that_see_each_other_s_volumes_are_not_used_together(tmp_path: Path) -> None:
    """The second copy would find the volumes of the first among its leftovers."""
    line = sample_driver.command_line("none").replace("$SHARED_DIR", str(tmp_path))
    driver = external_driver.from_command(line)
    envs = [SocketEnv(driver, tmp_path / name, first_node=first) for name, first in (("1", 1), ("2", 3))]
    async with envs[0], envs[1]:
        assert [node.id for env in envs for node in env.nodes] == ["node-1", "node-2", "node-3", "node-4"]
        assert await run_module._see_each_other(envs)


async def test_copies_with_their_own_state_run_lives_together(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    life = Life((VolumeKind.MOUNT,), ((Step("CreateVolume"),),))
    monkeypatch.setattr("volplane.testing.soak.run.generate", lambda random, menu: life)
    run_life = LifeRun.run

    async def note_and_run(life: LifeRun) -> Violation | None:
        used.add(str(life._env.directory))
        return await run_life(life)

    monkeypatch.setattr(LifeRun, "run", note_and_run)
    run = await run_soak("none", SoakSettings(seconds=300, copies=2, max_lives=8))
    assert run.statistics.lives == 8
    assert len(used) == 2


def command(mutant: str, *words: str) -> list[str]:
    line = sample_driver.command_line(mutant)
    return [sys.executable, "-m", "volplane", "test-driver", "--driver-command", line, *words]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def test_an_interrupted_search_for_a_shorter_sequence_reports_the_failure() -> None:
    words = ("--soak", "5m", "--seed", str(SEED), "--skip", TIMING)
    line = command("unpublishes-all-targets", *words)
    with subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for output in process.stdout:
            if "searching for a shorter sequence" in output:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
    assert process.returncode == 1
    assert "is published and not mounted any more" in rest
    assert "a life failed" in rest
    assert "interrupted" in rest


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--soak", "0s"), "--soak must be longer than 0s"),
        (("--soak", "1m", "--replay", "x.json"), "give one of them"),
        (("--soak", "1m", "--focus", "x"), "cannot be used with --focus"),
        (("--soak", "1m", "--repeat", "2"), "cannot be used with --repeat"),
        (("--replay", "x", "--mutable-parameter", "a=b"), "cannot be used with --mutable-parameter"),
        (("--replay", "missing.json"), "No such file"),
        (("--replay", "bad.json"), "is not a life"),
        (("--replay", "call.json"), "Fly is not a call"),
        (("--replay", "volume.json"), "volume is 1, and there are 1 volumes"),
        (("--replay", "passed.json"), "nothing to replay"),
    ],
)
def test_wrong_usage_is_explained(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    (tmp_path / "bad.json").write_text('{"volumes": 1}')
    (tmp_path / "call.json").write_text('{"volumes": ["mount"], "moments": [[{"call": "Fly"}]]}')
    step = '{"call": "CreateVolume", "volume": 1}'
    (tmp_path / "volume.json").write_text(f'{{"volumes": ["mount"], "moments": [[{step}]]}}')
    (tmp_path / "passed.json").write_text('{"statistics": {}, "failure": null}')
    done = subprocess.run(
        command("none", *words), env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert reason in done.stderr
