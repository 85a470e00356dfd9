"""node.k8s.io/v1: RuntimeClass."""

from collections.abc import Mapping

from volplane.api.core import Toleration
from volplane.api.meta import Resource
from volplane.api.object import Object, Quantity, no_omitempty


class Overhead(Object):
    pod_fixed: Mapping[str, Quantity] = {}


class Scheduling(Object):
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClass(Resource):
    handler: str = no_omitempty(factory=str)
    overhead: Overhead | None = None
    scheduling: Scheduling | None = None
