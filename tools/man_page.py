"""Write the manual page volplane(1) from the help texts of the command line.

python -m tools.man_page > volplane.1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

from volplane.base.version import package_version
from volplane.cli import GROUPS, volplane

SUMMARY = "the Kubernetes volume control plane, without the cluster"
EXIT_CODES = (
    ("0", "success"),
    ("1", "the command failed; the reason is on the standard error"),
    ("2", "wrong usage: an unknown option or value"),
    ("3", "something waits or is not ready (explain, world, plugins, status), or was found (doctor, fsck)"),
    ("130", "interrupted with Ctrl-C, or a question was answered with no"),
)
ENVIRONMENT = (
    ("KUBECONFIG", "kubeconfig files, as of kubectl; used by the verbs that look at a cluster"),
    ("NO_COLOR", "if set, the output has no colours"),
    ("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL", "the account of the EBS driver"),
    ("XDG_CACHE_HOME", "where an archive (volplane.pyz, the kubectl plugin) unpacks itself; ~/.cache"),
)
FILES = (
    ("~/.volplane, ~/.volplane-NAME", "data directories of clusters"),
    ("~/.volplane/kubeconfig", "kubeconfig of the cluster"),
)


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    context = click.Context(volplane, info_name="volplane")
    yield f'.TH VOLPLANE 1 "" "volplane {package_version()}" "User Commands"'
    yield ".SH NAME"
    yield f"volplane \\- {_text(SUMMARY)}"
    yield ".SH SYNOPSIS"
    yield ".B volplane"
    yield _text("[OPTIONS] COMMAND [ARGUMENTS]")
    yield ".SH DESCRIPTION"
    yield _text(
        "Runs every component of Kubernetes that a volume needs, each with its real protocol, and explains"
        " why a volume of any cluster waits. As kubectl-volplane on PATH it is a plugin of kubectl: kubectl"
        " volplane explain …"
    )
    yield ".SH OPTIONS"
    yield from _options(volplane, context)
    for title, verbs in GROUPS.items():
        yield f".SH {_text(title.upper())}"
        for verb in verbs:
            yield from _verb(verb, context)
    for title, rows in (("EXIT STATUS", EXIT_CODES), ("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        yield f".SH {title}"
        for name, about in rows:
            yield from _entry(name, about)
    yield ".SH SEE ALSO"
    yield ".BR kubectl (1)"


def _verb(verb: str, parent: click.Context) -> Iterator[str]:
    command = volplane.get_command(parent, verb)
    assert command is not None
    context = click.Context(command, info_name=verb, parent=parent)
    yield f".SS {_text(f'volplane {verb}')}"
    yield ".B " + _text(f"volplane {verb}")
    yield _text(" ".join(command.collect_usage_pieces(context)))
    yield from _paragraphs(command.help or "")
    yield from _options(command, context)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help text; one that begins with click's mark is printed as it is."""
    for paragraph in text.split("\n\n"):
        kept = paragraph.lstrip("\n").startswith("\b")
        yield ".PP"
        if kept:
            yield from (".nf", *map(_text, paragraph.replace("\b", "").strip("\n").splitlines()), ".fi")
        else:
            yield _text(" ".join(paragraph.split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = None if getattr(parameter, "hidden", False) else parameter.get_help_record(context)
        if record is not None:
            yield from _entry(*record)


def _entry(name: str, about: str) -> Iterator[str]:
    yield ".TP"
    yield f"\\fB{_text(name)}\\fR"
    yield _text(about)


def _text(text: str) -> str:
    """Text as roff takes it, in ASCII; words in backticks are bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"[^\0-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    sys.stdout.write(page())
