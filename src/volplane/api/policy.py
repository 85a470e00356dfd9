"""policy/v1: Eviction and PodDisruptionBudget."""

from collections.abc import Mapping
from typing import Annotated

from volplane.api.meta import Condition, DeleteOptions, LabelSelector, Resource
from volplane.api.object import IntOrString, Object, Time, merge, no_omitempty, replace_on_patch


class PodDisruptionBudgetSpec(Object):
    min_available: IntOrString | None = None
    selector: Annotated[LabelSelector | None, replace_on_patch] = None
    max_unavailable: IntOrString | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(Object):
    observed_generation: int = 0
    disrupted_pods: Mapping[str, Time] = {}
    disruptions_allowed: int = no_omitempty(factory=int)
    current_healthy: int = no_omitempty(factory=int)
    desired_healthy: int = no_omitempty(factory=int)
    expected_pods: int = no_omitempty(factory=int)
    conditions: Annotated[tuple[Condition, ...], merge("type")] = ()


class PodDisruptionBudget(Resource):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class Eviction(Resource):
    delete_options: DeleteOptions | None = None
