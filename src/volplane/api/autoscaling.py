"""autoscaling/v1: Scale."""

from volplane.api.meta import Resource
from volplane.api.object import Object, no_omitempty


class ScaleSpec(Object):
    replicas: int = 0


class ScaleStatus(Object):
    replicas: int = no_omitempty(factory=int)
    selector: str = ""


class Scale(Resource):
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()
