"""JSON merge patch (RFC 7386): null removes, objects merge, everything else replaces.

As in Kubernetes, nulls inside new objects are dropped even inside lists, where RFC 7386 keeps them.
"""

from typing import Any


def merge(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Merge the patch into a copy of the target."""
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
    """Remove null members; null list elements stay, because removing them would shift the others."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value
