"""scheduling.k8s.io/v1: PriorityClass."""

from volplane.api.meta import Resource
from volplane.api.object import no_omitempty


class PriorityClass(Resource):
    value: int = no_omitempty(factory=int)
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None
