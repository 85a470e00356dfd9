"""scheduling.k8s.io/v1: PriorityClass."""

from volplane.api.meta import Resource
from volplane.api.object import kept


class PriorityClass(Resource):
    value: int = kept(factory=int)
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None
