"""JSON merge patch (RFC 7386): null removes, objects merge, everything else replaces.

The subtle thing: nulls inside objects that are new are dropped too, also inside lists, where RFC 7386 would
keep them; the API's clients see it so.
"""

from typing import Any


def merge(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The target with the patch laid over it; neither is changed."""
    out = dict(target)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
            continue
        if not isinstance(value, dict | list):
            out[key] = value
            continue
        held = out.get(key)
        if isinstance(held, dict) and isinstance(value, dict):
            out[key] = merge(held, value)
        else:
            out[key] = without_nulls(value)
    return out


def without_nulls(value: Any) -> Any:
    """Members that are null go; list elements that are null stay, since their places count."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value
