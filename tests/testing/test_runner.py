"""How cases are chosen and judged: on a world that does nothing, in virtual time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from volplane.cli.test_driver import _program_name as called
from volplane.cli.test_driver import _read_secrets, command
from volplane.csi import call_interceptor, v1
from volplane.csi.outcome import CallError, Code
from volplane.testing import runner
from volplane.testing.capabilities import CAPABILITY_NAMES, DriverCapabilities
from volplane.testing.case import Case, CaseFailure, CaseTable, NotSupported
from volplane.testing.cases import ALL_CASES
from volplane.testing.runner import CaseResult, CaseSettings, CaseVerdict

SETTINGS = CaseSettings(seed=1, timeout=60.0)


class Idle:
    """An environment without a driver."""

    def __init__(self, problems: list[str] | None = None) -> None:
        self.capabilities = DriverCapabilities(controller={"CREATE_DELETE_VOLUME"})
        self.tap, self.random = call_interceptor.CallInterceptor(), Random(0)
        self.problems, self.cleaned, self.recovered = problems or [], 0, 0
        self.repeated, self.waiting, self.case_timeout = 0, "", 0.0
        self.secrets = {"key": "sesame", "pin": "12"}

    async def clean(self) -> list[str]:
        self.cleaned += 1
        return self.problems

    async def recover(self) -> None:
        self.recovered += 1

    async def describe_wait(self) -> str:
        return self.waiting

    def log_positions(self) -> dict[str, int]:
        return {}

    def logs(self, since: dict[str, int]) -> dict[str, str]:
        return {"node-1": "last words"}


def case(run: Callable[[Idle], Awaitable[None]], *needs: str) -> Case:
    return Case("group/name", "CSI: CreateVolume", "It works.", run, needs)


async def judged(
    run: Callable[[Idle], Awaitable[None]], *needs: str, world: Idle | None = None
) -> CaseResult:
    return await runner.run_case(world or Idle(), case(run, *needs), SETTINGS)


async def nothing(world: Idle) -> None:
    return None


@pytest.mark.virtual
async def test_a_case_passes() -> None:
    world = Idle()
    result = await judged(nothing, "create", world=world)
    assert result.verdict is CaseVerdict.PASSED
    assert (world.cleaned, result.logs, result.calls) == (1, {}, [])


@pytest.mark.virtual
async def test_what_is_not_promised_is_not_run() -> None:
    async def never(world: Idle) -> None:
        raise AssertionError

    result = await judged(never, "create", "snapshot")
    assert result.verdict is CaseVerdict.SKIPPED
    assert result.reason == "not supported: CREATE_DELETE_SNAPSHOT is not among its controller capabilities"


@pytest.mark.virtual
async def test_a_case_may_find_out_that_nothing_was_promised() -> None:
    async def finds(world: Idle) -> None:
        raise NotSupported("its volumes stay where they are")

    assert (await judged(finds)).reason == "not supported: its volumes stay where they are"


@pytest.mark.virtual
async def test_a_broken_demand_has_its_own_section() -> None:
    async def broken(world: Idle) -> None:
        raise CaseFailure("too small", section="CSI: NodeStageVolume")

    result = await judged(broken)
    assert (result.verdict, result.section) == (CaseVerdict.FAILED, "CSI: NodeStageVolume")
    assert result.logs == {"node-1": "last words"}


@pytest.mark.virtual
async def test_a_call_that_fails_is_named_with_its_section() -> None:
    async def calls(world: Idle) -> None:
        async def send() -> None:
            raise CallError(Code.INTERNAL, "disk on fire")

        await world.tap.intercept("NodeStageVolume", "me", "here", v1.NodeStageVolumeRequest(), send)

    result = await judged(calls)
    assert result.reason == "NodeStageVolume: INTERNAL (disk on fire), expected OK"
    assert result.section == "CSI: NodeStageVolume"
    assert [call.method for call in result.calls] == ["NodeStageVolume"]


@pytest.mark.virtual
async def test_what_a_driver_repeats_of_its_secrets_is_not_told() -> None:
    async def talks(world: Idle) -> None:
        async def send() -> None:
            raise CallError(Code.INTERNAL, "sesame does not open disk 12")

        await world.tap.intercept("NodeStageVolume", "me", "here", v1.NodeStageVolumeRequest(), send)

    class Talkative(Idle):
        def logs(self, since: dict[str, int]) -> dict[str, str]:
            return {"node-1": "opening with sesame, c2VzYW1l"}

    result = await judged(talks, world=Talkative())
    assert "sesame" not in str(result)
    assert result.calls[0].message == "***stripped*** does not open disk 12"  # what is short is everywhere
    assert result.logs == {"node-1": "opening with ***stripped***, ***stripped***"}


@pytest.mark.virtual
async def test_a_case_has_its_own_calls_when_the_oldest_are_not_kept_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_interceptor, "MAX_RECORDED_CALLS", 20)

    async def calls(world: Idle) -> None:
        async def send() -> v1.ProbeResponse:
            return v1.ProbeResponse()

        for _ in range(7):
            await world.tap.intercept("Probe", "me", "here", v1.ProbeRequest(), send)
        raise CaseFailure("to be seen")

    world = Idle()
    numbers = [[c.number for c in (await judged(calls, world=world)).calls] for _ in range(6)]
    assert numbers == [list(range(7 * i + 1, 7 * i + 8)) for i in range(6)]


@pytest.mark.virtual
async def test_a_driver_that_does_not_answer_is_started_again() -> None:
    async def hangs(world: Idle) -> None:
        async def send() -> None:
            await asyncio.sleep(1e6)

        await world.tap.intercept("CreateVolume", "me", "here", v1.CreateVolumeRequest(), send)

    world = Idle()
    result = await judged(hangs, world=world)
    assert result.reason == "not finished after 60 s: no answer to CreateVolume"
    assert world.recovered == 1


@pytest.mark.virtual
async def test_what_cannot_be_cleaned_up_is_a_failure() -> None:
    result = await judged(nothing, world=Idle(["DeleteVolume: busy"]))
    assert result.verdict is CaseVerdict.FAILED
    assert "DeleteVolume: busy" in result.reason


@pytest.mark.virtual
async def test_a_case_has_the_same_chances_alone_as_among_others() -> None:
    drawn: list[float] = []

    async def draws(world: Idle) -> None:
        drawn.append(world.random.random())

    table = CaseTable()
    table.add("a/one", "X", "", draws)
    table.add("a/two", "X", "", draws)
    world = Idle()
    await runner.run(world, list(table), SETTINGS, lambda result: None)
    await runner.run(world, runner.select_cases(table, "two", ""), SETTINGS, lambda result: None)
    await runner.run(world, runner.select_cases(table, "two", ""), SETTINGS, lambda result: None, 2)
    assert drawn[1] == drawn[2]
    assert len({drawn[0], drawn[1], drawn[3]}) == 3


def test_cases_are_chosen_by_their_names() -> None:
    names = [c.name for c in runner.select_cases(ALL_CASES, "^twice/|^leaks/", "Snapshot|mounts")]
    assert "twice/CreateVolume" in names
    assert "leaks/files" in names
    assert not any("Snapshot" in name or "mounts" in name for name in names)


def test_cases_have_names_of_their_own_and_needs_that_are_known() -> None:
    names = [c.name for c in ALL_CASES]
    assert len(set(names)) == len(names) >= 150
    assert {need for c in ALL_CASES for need in c.needs} <= CAPABILITY_NAMES.keys()
    assert all(
        c.section.startswith(("CSI: ", "Kubernetes: ", "csi-sanity")) and c.requirement for c in ALL_CASES
    )


def test_the_list_names_every_case_with_its_section() -> None:
    done = CliRunner().invoke(command, ["--list", "--focus", "^attach/one"])
    assert done.exit_code == 0
    assert " ".join(done.output.split()) == "attach/one node only CSI: ControllerPublishVolume Errors"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a driver"),
        (("--driver", "a.yaml", "--driver-command", "./b"), "give a driver"),
        (("--manifest", "m.yaml"), "--manifest and --image must be given together"),
        (("--driver-command", "./b", "--image", "a=b"), "--manifest and --image must be given together"),
        (
            ("--manifest", "m.yaml", "--image", "foo="),
            "--image is registry/name=path-or-command, or registry",
        ),
        (("--manifest", "m.yaml", "--image", "foo"), "--image foo has no command: give foo=path-or-command"),
        (
            ("--driver-command", "/bin/true", "--container-runtime-endpoint", "unix:///x.sock"),
            "--container-runtime-endpoint is for --image IMAGE without a command",
        ),
        (
            ("--driver-command", "/bin/true", "--container-runtime-endpoint", "x.sock"),
            "--container-runtime-endpoint must be a socket such as unix:///run/containerd/containerd.sock",
        ),
        (("--driver-command", "./b", "--focus", "("), "--focus is a regular expression, not '('"),
        (("--driver-command", "./b", "--skip", "["), "--skip is a regular expression, not '['"),
        (
            ("--driver-command", "./b", "--timeout", "nan"),
            "not a finite number of seconds",
        ),
        (("--driver-command", "./b", "--timeout", "0"), "--timeout must be longer than 0s, not 0s"),
        (("--driver-command", "./b", "--seed", "x"), "Invalid value for '--seed'"),
        (("--driver-command", "./b", "--repeat", "0"), "Invalid value for '--repeat'"),
        (("--driver-command", "./b", "--html", "/no/such/x.html"), "there is no directory /no/such"),
        (("--driver-command", "./b", "--junit", "/"), "--junit / is a directory"),
        (("--driver-command", "./b", "--parameter", "=x"), "--parameter is KEY=VALUE, not '=x'"),
        (("--driver-command", "./b", "--mutable-parameter", "x"), "--mutable-parameter is KEY=VALUE"),
        (("--driver-command", "./b", "--focus", "no such case"), "--focus 'no such case' selects no case"),
        (("--driver-command", "./b", "--skip", "."), "all cases without --skip '.' selects no case"),
        (("--driver-command", "./b", "--secret-file", "/no/such"), "--secret-file /no/such: No such file"),
        (("--driver-command", "./b", "--secret-file", "/dev/null"), "/dev/null is not a list of KEY: VALUE"),
        (("--driver-command", "./b", "--secret", "x"), "KEY=VALUE"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_wrong_usage_has_its_own_exit_code(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 2
    assert said in done.output


def test_the_command_that_runs_it_again_is_one_that_can_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "volplane"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert called(str(program)) == str(program)
    monkeypatch.setenv("PATH", str(program.parent))
    assert called(str(program)) == "volplane"
    assert called("/x/volplane/__main__.py") == "volplane"


@pytest.mark.root
def test_a_driver_that_does_not_start_is_told_in_a_line() -> None:
    words = ["--driver-command", "sh -c 'echo no config >&2; exit 3'", "--focus", "identity/name"]
    done = subprocess.run(
        [sys.executable, "-m", "volplane", "test-driver", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ended with code 3: no config" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.root
@pytest.mark.parametrize("words", [[], ["--api-server"]], ids=["without", "with"])
def test_a_driver_that_misses_an_api_server_is_started_with_one(words: list[str]) -> None:
    driver = "sh -c 'echo no $$KUBECONFIG, neither in-cluster >&2; exit 3'"
    done = subprocess.run(
        [sys.executable, "-m", "volplane", "test-driver", "--driver-command", driver, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "/api/kubeconfig, neither" in done.stderr


@pytest.mark.virtual
async def test_a_method_that_hangs_is_waited_for_only_once() -> None:
    async def hangs(world: Idle) -> None:
        async def send() -> None:
            await asyncio.sleep(1e6)

        await world.tap.intercept("ListVolumes", "me", "here", v1.ListVolumesRequest(), send)

    world, loop = Idle(), asyncio.get_running_loop()
    assert (await judged(hangs, world=world)).reason.endswith("no answer to ListVolumes")
    began = loop.time()
    again = await judged(hangs, world=world)
    assert again.reason == "no answer to ListVolumes for 5 s, as in an earlier case"
    assert loop.time() - began < 7


@pytest.mark.virtual
async def test_a_method_that_answers_again_has_the_whole_time_again() -> None:
    async def answers(world: Idle) -> None:
        async def send() -> v1.ListVolumesResponse:
            return v1.ListVolumesResponse()

        await world.tap.intercept("ListVolumes", "me", "here", v1.ListVolumesRequest(), send)
        await asyncio.sleep(1)

    world = Idle()
    world.tap.unanswered = {"ListVolumes"}
    assert (await judged(answers, world=world)).verdict is CaseVerdict.PASSED
    assert world.tap.unanswered == set()


@pytest.mark.virtual
async def test_the_timeout_of_a_case_limits_its_cleanup_too() -> None:
    class Hanging(Idle):
        async def clean(self) -> list[str]:
            await asyncio.sleep(1e6)
            return []

    loop = asyncio.get_running_loop()
    began = loop.time()
    result = await judged(nothing, world=Hanging())
    assert result.reason.startswith("cleanup failed: cleanup does not finish")
    assert loop.time() - began < 61


@pytest.mark.virtual
async def test_a_method_that_hangs_in_a_cleanup_is_waited_for_only_once() -> None:
    class Hanging(Idle):
        async def clean(self) -> list[str]:
            async def send() -> None:
                await asyncio.sleep(1e6)

            await self.tap.intercept("DeleteVolume", "me", "here", v1.DeleteVolumeRequest(), send)
            return []

    world, loop = Hanging(), asyncio.get_running_loop()
    began = loop.time()
    assert (await judged(nothing, world=world)).reason == "cleanup failed: cleanup does not finish"
    assert world.tap.unanswered == {"DeleteVolume"}
    once = loop.time() - began
    again = await judged(nothing, world=world)
    assert again.reason == (
        "cleanup failed: cleanup does not finish: no answer to DeleteVolume for 5 s, as in an earlier case"
    )
    assert loop.time() - began < once + 7
    assert world.recovered == 2


def test_secrets_are_sent_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "secrets.yaml"
    file.write_text("enabled: true\npin: 007\nsize: 1.0\nempty:\nquoted: 'no'\n")
    assert _read_secrets(str(file)) == {
        "enabled": "true",
        "pin": "007",
        "size": "1.0",
        "empty": "",
        "quoted": "no",
    }
