"""Command lines of drivers: words, variables, programs, and shell commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from volplane.cluster.external_driver import BadCommand, host_paths, parse_command
from volplane.cluster.external_driver.command import fill_variables, for_manifest
from volplane.cluster.external_driver.model import Command

KNOWN = {"PATH": "/usr/bin:/bin", "WHO": "me", "MONEY": "5$"}


def words(line: str, directory: str = "/") -> tuple[str, ...]:
    return parse_command(line, directory, KNOWN).argv


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/bin/sleep 5", ("/bin/sleep", "5")),
        ("/bin/sleep $CSI_ENDPOINT", ("/bin/sleep", "${CSI_ENDPOINT}")),
        ("/bin/sleep --node=${NODE_ID}", ("/bin/sleep", "--node=${NODE_ID}")),
        ("/bin/sleep --node=$(NODE_ID)", ("/bin/sleep", "--node=${NODE_ID}")),
        ("/bin/sleep '--a=b c' \"d e\"", ("/bin/sleep", "--a=b c", "d e")),
        ("/bin/sleep $WHO-x", ("/bin/sleep", "me-x")),
        ("/bin/sleep $MONEY", ("/bin/sleep", "5$$")),
        ("/bin/sleep 5$$", ("/bin/sleep", "5$$")),
        ("/bin/sleep a | /bin/cat", ("/bin/sh", "-c", "/bin/sleep a | /bin/cat")),
        ("/bin/sleep $NODE_ID && true", ("/bin/sh", "-c", "/bin/sleep $$NODE_ID && true")),
        ("/bin/sleep `true`", ("/bin/sh", "-c", "/bin/sleep `true`")),
        ("/bin/sleep $(cat /x)", ("/bin/sh", "-c", "/bin/sleep $$(cat /x)")),
        ("/bin/sleep 2>/x", ("/bin/sh", "-c", "/bin/sleep 2>/x")),
        ("/bin/sleep 'a|b'", ("/bin/sleep", "a|b")),
    ],
)
def test_a_line_is_a_program_or_the_shells(line: str, expected: tuple[str, ...]) -> None:
    assert words(line) == expected


def test_variables_before_the_program_are_its_environment() -> None:
    made = parse_command("LEVEL=5 WHERE=$NODE_ID /bin/sleep 1", "/", KNOWN)
    assert made.argv == ("/bin/sleep", "1")
    assert made.env == {"LEVEL": "5", "WHERE": "${NODE_ID}"}


def test_a_relative_program_is_one_of_its_directory(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "driver"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    made = parse_command("./bin/driver --x ./y", str(tmp_path), KNOWN)
    assert made.argv == (str(program), "--x", "./y")
    assert made.directory == str(tmp_path)


def test_a_program_without_a_path_is_found_where_programs_are() -> None:
    assert os.path.isabs(words("sleep 1")[0])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("A=1", "runs nothing"),
        ("/no/such/program", "/no/such/program does not exist"),
        ("no-such-program", '"no-such-program" is not a program on this machine'),
        ("/etc/passwd", "/etc/passwd cannot be executed"),
        ("/bin/sleep 'a", "cannot be read: no closing quotation"),
        ("/bin/sleep $NOBODY", r"\$NOBODY is not set; an instance has \$CSI_ENDPOINT, \$NODE_ID"),
    ],
)
def test_what_is_wrong_is_said(line: str, why: str) -> None:
    with pytest.raises(BadCommand, match=why):
        words(line)


@pytest.mark.parametrize(
    ("text", "manifest", "by_hand"),
    [
        ("--node=${NODE_ID}", "--node=$(NODE_ID)", "--node=here"),
        ("5$$", "5$$", "5$"),
        ("$$(NODE_ID)", "$$(NODE_ID)", "$(NODE_ID)"),
        ("a$", "a$$", "a$"),
        ("$1", "$$1", "$1"),
    ],
)
def test_variables_are_spelled_as_a_node_fills_them_in(text: str, manifest: str, by_hand: str) -> None:
    assert for_manifest(text) == manifest
    assert fill_variables(text, {"NODE_ID": "here"}) == by_hand


@pytest.mark.parametrize(
    ("argv", "brought"),
    [
        (("/home/me/driver/bin/run", "--config=/etc/hostname"), ("/home/me/driver",)),
        (("/root/run",), ("/root/run",)),  # never all of such a directory
        (("/home/me/bin/run",), ("/home/me/bin",)),
        (("/usr/bin/env", "x"), ()),
        ((f"{sys.base_prefix}/bin/python3", "-c", "pass"), ()),  # containers see the node's own interpreter
    ],
)
def test_a_program_below_a_covered_directory_is_brought_along(
    argv: tuple[str, ...], brought: tuple[str, ...]
) -> None:
    assert host_paths.hidden_paths(Command(argv)) == brought


def test_the_nodes_directory_is_not_brought_from_a_machine_with_a_kubelet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container has its node's own directory there; two mounts at one path would be refused."""
    plugins = tmp_path / "kubelet" / "plugins"
    plugins.mkdir(parents=True)
    command = Command(("/bin/sh", f"--kubelet-dir={plugins.parent}", str(plugins)))
    assert host_paths.hidden_paths(command) == (str(plugins.parent),)
    monkeypatch.setattr(host_paths, "KUBELET", str(plugins.parent))
    assert host_paths.hidden_paths(command) == ()


def test_the_interpreter_of_a_script_is_brought_along(tmp_path: Path) -> None:
    script, program = tmp_path / "app" / "driver", tmp_path / "python" / "bin" / "python9"
    for path in (script, program):
        path.parent.mkdir(parents=True)
        path.touch()
    script.write_text(f"#!{program} -u\n")
    assert host_paths.hidden_paths(Command((str(script),))) == (str(script.parent), str(tmp_path / "python"))


def test_the_neighbours_of_a_script_are_brought_along(tmp_path: Path) -> None:
    script = tmp_path / "app" / "driver.py"
    script.parent.mkdir()
    script.touch()
    assert host_paths.hidden_paths(Command(("/usr/bin/env", str(script)))) == (str(script.parent),)


def test_a_link_in_a_covered_directory_is_brought_along(tmp_path: Path) -> None:
    link = tmp_path / "venv"
    link.symlink_to("/usr/lib")
    assert str(link) in host_paths.hidden_paths(Command(("/usr/bin/env", str(link))))


def test_the_sources_of_editable_installs_are_brought(tmp_path: Path) -> None:
    """`pip install -e` writes their directory into the environment, which may be far from it."""
    environment, sources = tmp_path / "venv", tmp_path / "driver" / "src"
    packages = environment / "lib/python3.11/site-packages"
    for directory in (environment / "bin", packages, sources):
        directory.mkdir(parents=True)
    (packages / "driver.pth").write_text(f"import site\n{sources}\n{tmp_path / 'removed'}\n")
    program = environment / "bin" / "python"
    program.symlink_to("/usr/bin/env")
    assert host_paths.hidden_paths(Command((str(program),))) == (str(sources), str(environment))


def test_a_program_that_a_script_starts_is_visible_by_a_link(tmp_path: Path) -> None:
    program, link = tmp_path / "versions" / "driver-1.0", tmp_path / "bin" / "driver"
    for path in (program, link):
        path.parent.mkdir()
    program.touch()
    link.symlink_to(program)
    wanted = host_paths.hidden_paths(Command(("/bin/sh", "run.sh", str(link))))
    assert wanted == (str(link.parent), str(program.parent))


def test_a_python_of_an_environment_that_a_script_starts_is_visible(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    assert host_paths.hidden_paths(Command(("/bin/sh", "run.sh", str(python)))) == (str(tmp_path / "venv"),)


def test_the_libraries_of_an_installed_program_that_a_script_starts_are_visible(tmp_path: Path) -> None:
    """A program in JavaScript loads them from beside its directory `bin`."""
    program = tmp_path / "driver" / "bin" / "driver"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    wanted = host_paths.hidden_paths(Command(("/bin/sh", "run.sh", str(program))))
    assert wanted == (str(tmp_path / "driver"),)


def test_a_program_in_a_home_directory_does_not_show_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "bin" / "tool"
    program.parent.mkdir()
    program.touch(0o755)
    assert host_paths.hidden_paths(Command(("/bin/sh", "run.sh", str(program)))) == (str(program.parent),)
