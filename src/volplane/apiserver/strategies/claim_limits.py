"""LimitRanger for claims: the minimum and maximum size that a namespace's limit ranges allow.

Checked when a claim is created and when its size changes. A limit that is added later does not affect other
updates of existing claims.
"""

from __future__ import annotations

from volplane.api import quantity
from volplane.api.core import LimitRange, PersistentVolumeClaim
from volplane.api.errors import Forbidden
from volplane.apiserver.strategy import ApiCall

TYPE = "PersistentVolumeClaim"


async def check(call: ApiCall, claim: PersistentVolumeClaim) -> None:
    """Raises Forbidden."""
    limits = await call.reader.list(LimitRange, call.namespace)
    causes = [message for limit in limits for message in _list_violations(limit, claim)]
    if causes:
        why = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
        raise Forbidden.to(call.kind, claim.name, why)


def _list_violations(limit: LimitRange, claim: PersistentVolumeClaim) -> list[str]:
    asked = claim.spec.resources.requests.get("storage", "0")
    found = []
    for item in limit.spec.limits:
        if item.type != TYPE:
            continue
        least, most = item.min.get("storage"), item.max.get("storage")
        if least is not None and quantity.parse(asked) < quantity.parse(least):
            found.append(f"minimum storage usage per {TYPE} is {least}, but request is {asked}")
        if most is not None and quantity.parse(asked) > quantity.parse(most):
            found.append(f"maximum storage usage per {TYPE} is {most}, but request is {asked}")
    return found
