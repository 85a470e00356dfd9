"""apps/v1: Deployment, ReplicaSet, StatefulSet, DaemonSet."""

from typing import Annotated, Any

from volplane.api.core import PersistentVolumeClaim, PodTemplateSpec
from volplane.api.meta import LabelSelector, Resource
from volplane.api.object import IntOrString, Object, Time, merge, no_omitempty, retain_keys


class RollingUpdateDeployment(Object):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DeploymentStrategy(Object):
    type: str = ""
    rolling_update: RollingUpdateDeployment | None = None


class DeploymentSpec(Object):
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    strategy: Annotated[DeploymentStrategy, retain_keys] = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class DeploymentCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_update_time: Time = ""
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class DeploymentStatus(Object):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    conditions: Annotated[tuple[DeploymentCondition, ...], merge("type")] = ()
    collision_count: int | None = None


class Deployment(Resource):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(Object):
    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class ReplicaSetCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class ReplicaSetStatus(Object):
    replicas: int = no_omitempty(factory=int)
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    observed_generation: int = 0
    conditions: Annotated[tuple[ReplicaSetCondition, ...], merge("type")] = ()


class ReplicaSet(Resource):
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class RollingUpdateStatefulSetStrategy(Object):
    partition: int | None = None
    max_unavailable: IntOrString | None = None


class StatefulSetUpdateStrategy(Object):
    type: str = ""
    rolling_update: RollingUpdateStatefulSetStrategy | None = None


class StatefulSetPersistentVolumeClaimRetentionPolicy(Object):
    when_deleted: str = ""
    when_scaled: str = ""


class StatefulSetOrdinals(Object):
    start: int = no_omitempty(factory=int)


class StatefulSetSpec(Object):
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()
    service_name: str = no_omitempty(factory=str)
    pod_management_policy: str = ""
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: StatefulSetPersistentVolumeClaimRetentionPolicy | None = None
    ordinals: StatefulSetOrdinals | None = None


class StatefulSetCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class StatefulSetStatus(Object):
    observed_generation: int = 0
    replicas: int = no_omitempty(factory=int)
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None
    conditions: Annotated[tuple[StatefulSetCondition, ...], merge("type")] = ()
    available_replicas: int = no_omitempty(factory=int)


class StatefulSet(Resource):
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class RollingUpdateDaemonSet(Object):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DaemonSetUpdateStrategy(Object):
    type: str = ""
    rolling_update: RollingUpdateDaemonSet | None = None


class DaemonSetSpec(Object):
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    update_strategy: DaemonSetUpdateStrategy = DaemonSetUpdateStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSetCondition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    last_transition_time: Time = ""
    reason: str = ""
    message: str = ""


class DaemonSetStatus(Object):
    current_number_scheduled: int = no_omitempty(factory=int)
    number_misscheduled: int = no_omitempty(factory=int)
    desired_number_scheduled: int = no_omitempty(factory=int)
    number_ready: int = no_omitempty(factory=int)
    observed_generation: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    collision_count: int | None = None
    conditions: Annotated[tuple[DaemonSetCondition, ...], merge("type")] = ()


class DaemonSet(Resource):
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(Resource):
    data: Any = None
    # Not `revision`: on every kind that is the resourceVersion as a number.
    number: int = no_omitempty(factory=int, name="revision")
