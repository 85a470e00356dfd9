"""authorization.k8s.io/v1: access reviews."""

from collections.abc import Mapping

from volplane.api.meta import FieldSelectorRequirement, LabelSelectorRequirement, Resource
from volplane.api.object import Object, field, no_omitempty


class FieldSelectorAttributes(Object):
    raw_selector: str = ""
    requirements: tuple[FieldSelectorRequirement, ...] = ()


class LabelSelectorAttributes(Object):
    raw_selector: str = ""
    requirements: tuple[LabelSelectorRequirement, ...] = ()


class ResourceAttributes(Object):
    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    field_selector: FieldSelectorAttributes | None = None
    label_selector: LabelSelectorAttributes | None = None


class NonResourceAttributes(Object):
    path: str = ""
    verb: str = ""


class SubjectAccessReviewSpec(Object):
    resource_attributes: ResourceAttributes | None = None
    non_resource_attributes: NonResourceAttributes | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}
    uid: str = ""


class SubjectAccessReviewStatus(Object):
    allowed: bool = no_omitempty(factory=bool)
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


class SubjectAccessReview(Resource):
    spec: SubjectAccessReviewSpec = SubjectAccessReviewSpec()
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class SelfSubjectAccessReviewSpec(Object):
    resource_attributes: ResourceAttributes | None = None
    non_resource_attributes: NonResourceAttributes | None = None


class SelfSubjectAccessReview(Resource):
    spec: SelfSubjectAccessReviewSpec = SelfSubjectAccessReviewSpec()
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class LocalSubjectAccessReview(Resource):
    spec: SubjectAccessReviewSpec = SubjectAccessReviewSpec()
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class SelfSubjectRulesReviewSpec(Object):
    namespace: str = ""


class ResourceRule(Object):
    verbs: tuple[str, ...] = no_omitempty(factory=tuple)
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()


class NonResourceRule(Object):
    verbs: tuple[str, ...] = no_omitempty(factory=tuple)
    non_resource_urls: tuple[str, ...] = field(name="nonResourceURLs", default=())


class SubjectRulesReviewStatus(Object):
    resource_rules: tuple[ResourceRule, ...] = no_omitempty(factory=tuple)
    non_resource_rules: tuple[NonResourceRule, ...] = no_omitempty(factory=tuple)
    incomplete: bool = no_omitempty(factory=bool)
    evaluation_error: str = ""


class SelfSubjectRulesReview(Resource):
    spec: SelfSubjectRulesReviewSpec = SelfSubjectRulesReviewSpec()
    status: SubjectRulesReviewStatus = SubjectRulesReviewStatus()
