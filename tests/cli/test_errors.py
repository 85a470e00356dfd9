"""What verbs say about wrong input, with which exit code; colours; and JSON of what they print."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.controllers import objects
from tests.support.https_apiserver import https_apiserver
from tests.support.up import VOLPLANE
from volplane import cli
from volplane.testing.cases import ALL_CASES

LOOKING = (
    ("explain", "pvc/x"),
    ("journey", "pvc/x"),
    ("states", "pvc/x"),
    ("world",),
    ("plugins",),
)
ON_THIS_MACHINE = (
    ("status",),
    ("logs",),
    ("stop",),
    ("start",),
    ("env",),
    ("crash", "node/worker-1"),
    ("start", "node/worker-1"),
    ("delete", "--yes"),
)
CLUSTER = (
    "current-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: %s}]\n"
)
KUBECONFIGS = {
    "not YAML": ("a: [\n", "not YAML: while parsing a flow node"),
    "binary": ("\0", "not YAML: unacceptable character"),
    "list": ("- 1\n", "not a kubeconfig"),
    "empty": ("", "no current-context; choose one with --context"),
    "no server": (CLUSTER % "{}", "cluster 'a' has no server"),
    "scheme": (CLUSTER % "{server: 'ftp://x'}", "cluster 'a': not an HTTP address: 'ftp://x'"),
    "port": (CLUSTER % "{server: 'http://127.0.0.1:99999'}", "cluster 'a': Port out of range 0-65535"),
    "nobody": (CLUSTER % "{server: 'http://127.0.0.1:1'}", "cannot connect to http://127.0.0.1:1"),
}


def run_verb(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code, and the errors."""
    code = 0
    try:
        cli.main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    return code, capsys.readouterr().err


@pytest.mark.parametrize("words", LOOKING, ids=lambda words: words[0])
@pytest.mark.parametrize("config", KUBECONFIGS)
def test_a_kubeconfig_that_cannot_be_used(
    words: tuple[str, ...], config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, reason = KUBECONFIGS[config]
    (tmp_path / "config").write_text(text)
    code, errors = run_verb(capsys, *words, "--kubeconfig", str(tmp_path / "config"))
    assert code == 1
    assert errors.startswith("volplane: ")
    assert reason in errors


@pytest.mark.parametrize("words", LOOKING, ids=lambda words: words[0])
def test_a_kubeconfig_that_cannot_be_read(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file or directory")):
        code, errors = run_verb(capsys, *words, "--kubeconfig", str(path))
        assert (code, errors.startswith("volplane: ")) == (1, True)
        assert f"{path}: {reason}" in errors


@pytest.mark.root
@pytest.mark.parametrize("words", [*LOOKING, *ON_THIS_MACHINE], ids=" ".join)
@pytest.mark.parametrize("what", ["missing", "a file", "empty"])
def test_a_directory_without_a_cluster(
    words: tuple[str, ...], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    if what == "a file":
        directory.touch()
    elif what == "empty":
        directory.mkdir()
    code, errors = run_verb(capsys, *words, "--data-dir", str(directory))
    assert code == 1
    assert errors.startswith(("volplane: no cluster in ", "volplane: no cluster runs in "))
    assert "volplane up" in errors


@pytest.mark.parametrize("words", ON_THIS_MACHINE, ids=" ".join)
def test_a_name_and_a_directory_exclude_each_other(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, errors = run_verb(capsys, *words, "--name", "dev", "--data-dir", "/x")
    assert code == 2
    assert "--name and --data-dir exclude each other" in errors


@pytest.mark.parametrize("verb", [verb for verb in cli.VERBS if verb != "unshare"])  # that one runs a command
def test_an_unknown_option_is_wrong_usage(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, errors = run_verb(capsys, verb, "--no-such-option")
    assert code == 2
    assert "No such option" in errors


def test_an_unknown_verb_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, errors = run_verb(capsys, "fly")
    assert code == 2
    assert "No such command 'fly'" in errors


def test_the_list_of_cases_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(("test-driver", "--list", "-o", "json", "--focus", "^identity/"))
    listed = json.loads(capsys.readouterr().out)
    assert [case["name"] for case in listed] == [c.name for c in ALL_CASES if c.name.startswith("identity/")]
    assert all(case["section"] for case in listed)
    code, errors = run_verb(capsys, "test-driver", "-o", "json", "--driver", "x")
    assert code == 2
    assert "-o json needs --list; use --json FILE for the results" in errors


def output_on_a_terminal(*words: str, env: dict[str, str]) -> str:
    """What a verb prints on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [VOLPLANE, *words], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **env}
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # the terminal is closed
        pass
    finally:
        os.close(ours)
        process.wait(60)
    return shown.decode()


ESCAPE = "\x1b["


@pytest.mark.parametrize(
    ("words", "env", "coloured"),
    [
        ((), {}, True),
        ((), {"NO_COLOR": "1"}, False),
        ((), {"NO_COLOR": "any text"}, False),
        ((), {"NO_COLOR": ""}, True),
        (("--no-color",), {}, False),
    ],
    ids=["by default", "NO_COLOR", "NO_COLOR with a text", "NO_COLOR empty", "--no-color"],
)
async def test_colours(words: tuple[str, ...], env: dict[str, str], coloured: bool) -> None:
    async with https_apiserver() as server:
        await server.client.create(objects.claim("data"))
        verb = ("explain", "pvc/data", "--kubeconfig", server.kubeconfig)
        clean = {"TERM": "xterm", **env}
        for line in ((*words, *verb), (*verb, *words)):  # before the verb and after it
            shown = await asyncio.to_thread(output_on_a_terminal, *line, env=clean)
            assert "pvc/default/data" in shown
            assert (ESCAPE in shown) == coloured, repr(shown)
