"""rbac.authorization.k8s.io/v1: roles and bindings."""

from typing import ClassVar

from volplane.api.meta import LabelSelector, Resource
from volplane.api.object import Object, field, kept


class PolicyRule(Object):
    verbs: tuple[str, ...] = kept(factory=tuple)
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = field(name="nonResourceURLs", default=())


class Role(Resource):
    rules: tuple[PolicyRule, ...] = kept(factory=tuple)


class AggregationRule(Object):
    cluster_role_selectors: tuple[LabelSelector, ...] = ()


class ClusterRole(Resource):
    rules: tuple[PolicyRule, ...] = kept(factory=tuple)
    aggregation_rule: AggregationRule | None = None


class Subject(Object):
    atomic: ClassVar[bool] = True
    kind: str = kept(factory=str)
    api_group: str = ""
    name: str = kept(factory=str)
    namespace: str = ""


class RoleRef(Object):
    atomic: ClassVar[bool] = True
    api_group: str = kept(factory=str)
    kind: str = kept(factory=str)
    name: str = kept(factory=str)


class RoleBinding(Resource):
    subjects: tuple[Subject, ...] = ()
    role_ref: RoleRef = RoleRef()


class ClusterRoleBinding(Resource):
    subjects: tuple[Subject, ...] = ()
    role_ref: RoleRef = RoleRef()
