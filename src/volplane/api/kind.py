"""What a kind is, in one row: its names and URL, its rules, its table columns, its selectable fields.

The rows of the built-in kinds are in `api.kinds`. A kind that nothing here acts on has no Struct: its type is
defined from the published schema when it is first needed (`message`). A custom resource gets its row from its
definition while the server runs (`type` is then None), so code that serves or requests objects goes by
`Kind`, never by Struct alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from volplane.api import data_types
from volplane.api.meta import Resource
from volplane.api.name_validation import subdomain_problems

CRUD = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
READ_WRITE = ("get", "patch", "update")


class Subresource(Struct, frozen=True):
    """A path below an object; its kind is the parent's unless it says otherwise."""

    name: str
    verbs: tuple[str, ...] = READ_WRITE
    kind: str = ""
    group: str = ""
    version: str = ""


class SelectableValue(Struct, frozen=True):
    """A value that field selectors may ask for."""

    path: str  # in the stored JSON
    absent: str = ""  # its value in objects that do not have it


def selectable(*fields: str) -> Mapping[str, SelectableValue]:
    """Selectable fields from `label`, `label=path` or `label|value if absent`, and those that all kinds
    have."""
    return MappingProxyType(dict(map(_selectable_field, ("metadata.name", "metadata.namespace", *fields))))


def _selectable_field(text: str) -> tuple[str, SelectableValue]:
    field, _, absent = text.partition("|")
    label, _, path = field.partition("=")
    return label, SelectableValue(path or label, absent)


NAME_ONLY = selectable()

Pruner = Callable[[dict[str, Any]], list[str]]
NameCheck = Callable[[str, bool], list[str]]  # (name, is it a generateName?) → problems


class Kind(Struct, frozen=True):
    """One kind in one version."""

    struct: type[Resource] | None
    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = CRUD
    subresources: tuple[Subresource, ...] = ()

    # Of a kind that nothing here acts on
    message: str = ""  # its row in the published schema, from which its type is defined
    inactive: str = ""  # what does not happen to it here: "Ingress is stored but ..."

    # Rules
    strategy: str = ""  # path of the class with its rules, below volplane.apiserver; "": no rules
    check_name: NameCheck = subdomain_problems
    immutable: tuple[str, ...] = ()  # fields that an update may not change
    stored_as: str = ""  # the resource under whose keys its objects are stored, if not its own
    unconditional_update: bool = True  # PUT without resourceVersion
    create_on_update: bool = False  # PUT of a missing object creates it
    status_metadata: bool = True  # /status may change metadata
    generation: str = (
        ""  # "counted": 1 on create, +1 per change of spec; "late": absent until the first change
    )
    returns_deleted: bool = False  # DELETE returns the last object instead of a Status
    graceful_deletion: bool = False  # DELETE waits for the grace period
    propagation: str = "Background"  # default propagationPolicy
    qualified_finalizers: bool = True  # refuses finalizers without a domain
    warning: str = ""  # in every response about it

    # Reading
    selectable: Mapping[str, SelectableValue] = NAME_ONLY
    legacy_field_errors: bool = False  # the older message for an unknown field selector
    columns: str = "Name\nCreated At#date = metadata.creationTimestamp|null"  # see apiserver.tables.columns
    row_conditions: str = ""  # function of apiserver.tables.cells for the conditions of a row

    # Only of custom kinds
    singular_name: str = ""  # if it is not the kind in lower case
    list_kind_name: str = ""
    prune: Pruner | None = None  # removes unknown fields and returns their paths

    def __hash__(self) -> int:
        return hash((self.group, self.version, self.kind))

    @property
    def type(self) -> type[Resource] | None:
        """The Struct of its objects; None for a custom kind."""
        if self.struct is not None or not self.message:
            return self.struct
        return data_types.define_resource(self.message)

    @property
    def is_custom(self) -> bool:
        """Are its objects plain data?"""
        return self.struct is None and not self.message

    @property
    def singular(self) -> str:
        return self.singular_name or self.kind.lower()

    @property
    def list_kind(self) -> str:
        return self.list_kind_name or f"{self.kind}List"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The plural with its group, as messages name it: `pods`, `volumeattachments.storage.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def base_path(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, an object, or something below it."""
        parts = [self.base_path]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [p for p in (self.plural, name, subresource) if p]
        return "/".join(parts)

    @property
    def has_status(self) -> bool:
        """Is there a /status? The main endpoint then ignores status."""
        return self.subresource("status") is not None

    def subresource(self, name: str) -> Subresource | None:
        return next((s for s in self.subresources if s.name == name), None)
