"""meta/v1: ObjectMeta, selectors, conditions, Status, options."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Raw

from volplane.api.object import Object, Time, field, merge, no_omitempty


class OwnerReference(Object):
    atomic: ClassVar[bool] = True
    api_version: str = no_omitempty(factory=str)
    kind: str = no_omitempty(factory=str)
    name: str = no_omitempty(factory=str)
    uid: str = no_omitempty(factory=str)
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ManagedFieldsEntry(Object):
    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: Time | None = None
    fields_type: str = ""
    fields_v1: Raw = Raw()  # decoded on demand: most readers do not need it
    subresource: str = ""


class ObjectMeta(Object):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    self_link: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Time = ""
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner_references: Annotated[tuple[OwnerReference, ...], merge("uid")] = ()
    finalizers: Annotated[tuple[str, ...], merge()] = ()
    managed_fields: tuple[ManagedFieldsEntry, ...] = ()


class LabelSelectorRequirement(Object):
    key: str = no_omitempty(factory=str)
    operator: str = no_omitempty(factory=str)
    values: tuple[str, ...] = ()


class LabelSelector(Object):
    atomic: ClassVar[bool] = True
    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class Condition(Object):
    type: str = no_omitempty(factory=str)
    status: str = no_omitempty(factory=str)
    observed_generation: int = 0
    last_transition_time: Time = ""
    reason: str = no_omitempty(factory=str)
    message: str = no_omitempty(factory=str)


class Preconditions(Object):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(Object):
    grace_period_seconds: int | None = None
    preconditions: Preconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None
    dry_run: tuple[str, ...] = ()
    ignore_store_read_error_with_cluster_breaking_potential: bool | None = None


class FieldSelectorRequirement(Object):
    key: str = no_omitempty(factory=str)
    operator: str = no_omitempty(factory=str)
    values: tuple[str, ...] = ()


class ListMeta(Object):
    self_link: str = ""
    resource_version: str = ""
    continue_: str = field(name="continue", default="")
    remaining_item_count: int | None = None


class StatusCause(Object):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Object):
    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(Object):
    metadata: ListMeta = ListMeta()
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0


class Resource(Object, weakref=True):
    """A top-level object. Its kind and apiVersion are not fields: see `api.kinds`."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def revision(self) -> int:
        return int(self.metadata.resource_version or 0)

    @property
    def key(self) -> str:
        """`namespace/name`, or only the name if there is no namespace."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    @property
    def is_deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None


class PartialObjectMetadata(Resource):
    """The metadata of an object whose kind has no type here: see `kinds.define_metadata_only_type`."""
