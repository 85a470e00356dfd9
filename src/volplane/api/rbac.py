"""rbac.authorization.k8s.io/v1: roles and bindings."""

from typing import ClassVar

from volplane.api.meta import LabelSelector, Resource
from volplane.api.object import Object, field, no_omitempty


class PolicyRule(Object):
    verbs: tuple[str, ...] = no_omitempty(factory=tuple)
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = field(name="nonResourceURLs", default=())


class Role(Resource):
    rules: tuple[PolicyRule, ...] = no_omitempty(factory=tuple)


class AggregationRule(Object):
    cluster_role_selectors: tuple[LabelSelector, ...] = ()


class ClusterRole(Resource):
    rules: tuple[PolicyRule, ...] = no_omitempty(factory=tuple)
    aggregation_rule: AggregationRule | None = None


class Subject(Object):
    atomic: ClassVar[bool] = True
    kind: str = no_omitempty(factory=str)
    api_group: str = ""
    name: str = no_omitempty(factory=str)
    namespace: str = ""


class RoleRef(Object):
    atomic: ClassVar[bool] = True
    api_group: str = no_omitempty(factory=str)
    kind: str = no_omitempty(factory=str)
    name: str = no_omitempty(factory=str)


class RoleBinding(Resource):
    subjects: tuple[Subject, ...] = ()
    role_ref: RoleRef = RoleRef()


class ClusterRoleBinding(Resource):
    subjects: tuple[Subject, ...] = ()
    role_ref: RoleRef = RoleRef()
