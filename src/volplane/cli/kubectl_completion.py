"""The program `kubectl_complete-volplane`, with which kubectl completes `kubectl volplane …`.

It gets the words after `volplane`, of which the last is incomplete. It prints a candidate with its
description on each line, and then what the shell is to do, as a sum of numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from click.shell_completion import CompletionItem, ShellComplete

from volplane.cli import volplane

NO_SPACE, NO_FILES, ONLY_DIRECTORIES = 2, 4, 16  # as in cobra, kubectl's command line


def main(words: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if words is None else words)
    completion = ShellComplete(volplane, {}, "volplane", "_VOLPLANE_COMPLETE")
    found = completion.get_completions(given[:-1], given[-1] if given else "")
    for item in found:
        if item.type == "plain":
            print(f"{item.value}\t{item.help}" if item.help else item.value)
    print(f":{_directive(found)}")


def _directive(found: Sequence[CompletionItem]) -> int:
    types = {item.type for item in found}
    if "file" in types:
        return 0
    if "dir" in types:
        return ONLY_DIRECTORIES
    return NO_FILES + (NO_SPACE if any(item.value.endswith("/") for item in found) else 0)
