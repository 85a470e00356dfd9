"""Parse a command line and the `$VARIABLES` in it. Pure, except for looking up programs.

There are two kinds of variables: those that differ between instances are left for the node to expand, all
others come from the user's environment. `$$` is a dollar sign.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping

from volplane.cluster.external_driver.model import Command

SOCKET = "/csi/csi.sock"
STATE = "/csi-data-dir"  # state directory of upstream's hostpath driver, and of others
SHARED = "/csi-shared-dir"
# Variables that differ between instances, and the pod field or path of their value.
FIELDS = {
    "NODE_ID": "spec.nodeName",
    "NODE_NAME": "spec.nodeName",
    "KUBE_NODE_NAME": "spec.nodeName",
    "CSI_NODE_NAME": "spec.nodeName",
    "NODE_IP": "status.hostIP",
    "POD_NAME": "metadata.name",
    "POD_NAMESPACE": "metadata.namespace",
    "POD_UID": "metadata.uid",
    "POD_IP": "status.podIP",
}
PATHS = {"CSI_ENDPOINT": f"unix://{SOCKET}", "CSI_SOCKET": SOCKET, "STATE_DIR": STATE, "SHARED_DIR": SHARED}
MODE = "CSI_MODE"  # the services of an instance: controller, node or all
INSTANCE = frozenset({*FIELDS, *PATHS, MODE})

_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)\}|\((\w+)\)|([A-Za-z_]\w*))")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPERATORS = "|&;<>()"


class BadCommand(ValueError):
    """The command is invalid; the message says why."""


def parse_command(line: str, directory: str, environment: Mapping[str, str] | None = None) -> Command:
    """Parse a command line: a program with arguments, or a shell command."""
    environment = os.environ if environment is None else environment
    if not line.strip():
        raise BadCommand("the command is empty")
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise BadCommand(f"the command cannot be read: {str(error).lower()}") from error
    if _is_for_shell(line):
        # The shell expands the variables; here every dollar sign is literal.
        return Command(("/bin/sh", "-c", line.replace("$", "$$")), {}, directory)
    env: dict[str, str] = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        env[found[1]] = found[2]
        words = words[1:]
    if not words:
        raise BadCommand("the command sets variables, but runs nothing")
    return build_command(words, env, directory, environment)


def build_command(
    words: list[str], env: Mapping[str, str], directory: str, environment: Mapping[str, str] | None = None
) -> Command:
    """The command of a program with arguments: looked up, with all known variables expanded."""
    environment = os.environ if environment is None else environment
    known = {**environment, **env}
    filled = [resolve_variables(word, known) for word in words]
    values = {name: resolve_variables(value, environment) for name, value in env.items()}
    return Command((find_program(filled[0], directory, known.get("PATH")), *filled[1:]), values, directory)


def _is_for_shell(line: str) -> bool:
    if "`" in line:
        return True
    # `$(NODE_ID)` is a variable in manifests; any other `$(…)` is a shell command substitution.
    plain = re.sub(r"\$\((\w+)\)", lambda m: m[1] if m[1] in INSTANCE else m[0], line)
    reader = shlex.shlex(plain, posix=True, punctuation_chars=_OPERATORS)
    reader.whitespace_split = True
    return any(token and set(token) <= set(_OPERATORS) for token in reader)


def find_program(program: str, directory: str, path: str | None = None) -> str:
    """The absolute path of a program. Raises BadCommand."""
    program = os.path.expanduser(program)
    if "/" not in program:
        place = shutil.which(program, path=path)
        if place is None:
            raise BadCommand(f'"{program}" is not a program on this machine')
        return os.path.abspath(place)
    place = os.path.normpath(os.path.join(directory, program))
    if not os.path.exists(place):
        raise BadCommand(f"{place} does not exist")
    if not os.path.isfile(place) or not os.access(place, os.X_OK):
        raise BadCommand(f"{place} cannot be executed")
    return place


def resolve_variables(text: str, known: Mapping[str, str]) -> str:
    """Expand all variables except those of an instance. Raises BadCommand."""

    def fill(name: str) -> str:
        if name in INSTANCE:
            return f"${{{name}}}"
        if name not in known:
            ours = ", ".join(f"${each}" for each in ("CSI_ENDPOINT", "NODE_ID", "STATE_DIR", "SHARED_DIR"))
            raise BadCommand(f"${name} is not set; an instance has {ours} and others")
        return known[name].replace("$", "$$")

    return _substitute(text, fill, dollar="$$")


def fill_variables(text: str, values: Mapping[str, str]) -> str:
    """Expand the variables of an instance."""
    return _substitute(text, lambda name: values[name], dollar="$")


def for_manifest(text: str) -> str:
    """The text as in a container's `command`: the node expands $(NAME), and `$$` is a dollar sign."""
    return _substitute(text, lambda name: f"$({name})", dollar="$$", stray="$$")


def _substitute(text: str, fill: Callable[[str], str], *, dollar: str, stray: str = "$") -> str:
    made, end = "", 0
    for match in _VARIABLE.finditer(text):
        made += text[end : match.start()].replace("$", stray)
        name = match[2] or match[3] or match[4]
        made += dollar if match[1] else fill(name)
        end = match.end()
    return made + text[end:].replace("$", stray)
