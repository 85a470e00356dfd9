"""A wait in a few words, for tables of plans: `Wait AttachedToOtherNode(b, a)`."""

from __future__ import annotations

from msgspec import structs

from volplane.rules.waits import Wait


def describe_wait(wait: Wait) -> str:
    values = [value for value in structs.asdict(wait.data).values() if value]
    texts = [value if isinstance(value, str) else "+".join(value) for value in values]
    data = f"({', '.join(texts)})" if texts else ""
    return f"Wait {wait.reason}{data}" + (f": {wait.message}" if wait.message else "")
