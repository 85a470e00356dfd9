"""Node selectors, affinity, taints, tolerations, topology spread."""

from typing import ClassVar

from volplane.api.meta import LabelSelector
from volplane.api.object import Object, Time, no_omitempty


class NodeSelectorRequirement(Object):
    key: str = no_omitempty(factory=str)
    operator: str = no_omitempty(factory=str)
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Object):
    atomic: ClassVar[bool] = True
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Object):
    atomic: ClassVar[bool] = True
    node_selector_terms: tuple[NodeSelectorTerm, ...] = no_omitempty(factory=tuple)


class PreferredSchedulingTerm(Object):
    weight: int = no_omitempty(factory=int)
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Object):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(Object):
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    topology_key: str = no_omitempty(factory=str)
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Object):
    weight: int = no_omitempty(factory=int)
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Object):
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class PodAntiAffinity(Object):
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Object):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class Toleration(Object):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(Object):
    max_skew: int = no_omitempty(factory=int)
    topology_key: str = no_omitempty(factory=str)
    when_unsatisfiable: str = no_omitempty(factory=str)
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class Taint(Object):
    key: str = no_omitempty(factory=str)
    value: str = ""
    effect: str = no_omitempty(factory=str)
    time_added: Time | None = None


class TopologySelectorLabelRequirement(Object):
    key: str = no_omitempty(factory=str)
    values: tuple[str, ...] = no_omitempty(factory=tuple)


class TopologySelectorTerm(Object):
    atomic: ClassVar[bool] = True
    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()
