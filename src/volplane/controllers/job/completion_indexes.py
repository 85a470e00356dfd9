"""Indexes of an Indexed job: `0-2,5` on the wire, a set inside."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.core import Pod

ANNOTATION = "batch.kubernetes.io/job-completion-index"


def parse(text: str, completions: int) -> set[int]:
    """The indexes below the number of completions, which may have been lowered meanwhile."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first), completions - 1) + 1))
    return found


def write(indexes: Iterable[int]) -> str:
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(indexes), None]:
        if run and index != run[-1] + 1:
            parts.append(_run(run))
            run = []
        if index is not None:
            run.append(index)
    return ",".join(parts)


def _run(run: list[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    # Two neighbours are two entries; a range has at least three.
    return f"{run[0]},{run[1]}" if len(run) == 2 else f"{run[0]}-{run[-1]}"


def index_of(pod: Pod, completions: int | None) -> int | None:
    """The pod's index if it has one that counts."""
    text = pod.metadata.annotations.get(ANNOTATION, "")
    if not text.isdigit() or int(text) >= (completions or 0):
        return None
    return int(text)
